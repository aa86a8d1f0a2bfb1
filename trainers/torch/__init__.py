"""Models of torch: transformers from a Hugging Face config, and the learner that trains any torch model."""
