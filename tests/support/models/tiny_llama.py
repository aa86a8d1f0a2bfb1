"""A Llama of two small layers over bytes, as a state file describes it, and as transformers makes it without us."""

from typing import Any

from epochal.state.config.model_table import Architecture, ModelSpec

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
LLAMA_SPEC = ModelSpec(architecture=Architecture.HF_LLAMA, hf=LLAMA)
LLAMA_STATE: dict[str, Any] = {"model__LLM__architecture": "HfLlama", "model__LLM__hf": LLAMA}
"""Fields of a state file whose model it is."""


def spec_of(**changed: Any) -> ModelSpec:
    """The same with other values in the config; any architecture."""
    return ModelSpec(architecture=Architecture.HF_AUTO, hf=LLAMA | changed)


def plain_llama(parameters: Any, **changed: Any) -> Any:
    """transformers' own module with these parameters (arrays by name), as anybody would make it."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    hf = {key: value for key, value in (LLAMA | changed).items() if key != "model_type"}
    module = AutoModelForCausalLM.from_config(LlamaConfig(**hf), dtype=torch.float32)
    with torch.no_grad():
        for name, one in module.named_parameters():
            one.copy_(torch.tensor(parameters[name]))
    return module


def plain_loss(module: Any, tokens: Any, labels: Any = None) -> Any:
    """The summed loss of one document by transformers itself, a tensor with its graph."""
    import torch

    ids = torch.tensor([tokens.tolist()])
    wanted = ids if labels is None else torch.tensor([labels.tolist()])
    count = int((wanted[0, 1:] != -100).sum())
    return module(input_ids=ids, labels=wanted).loss * count
