"""What data look like: lengths of documents, frequencies of tokens, what of a sample is learnt."""
