"""Whether a model predicts each token from those before it alone, which `NextTokenLoss` relies on.

A model whose output at a place depends on later places sees what it has to predict: its loss falls towards zero, and
it learns nothing. The model's class does not say so (BERT's classes do both), so it is tried out: one short row is
computed twice, the second time with another last token, and no logit before it may move.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from state.config.model import ModelSpec
from state.errors import Mistake, Unsupported
from trainers.torch.devices import is_out_of_memory
from trainers.torch.hf_config import CONFIG_PLACE, NOT_TRAINED, build_module, hf_config

TRIED_PLACES = 8
"""Length of the row that is computed."""
TOLERANCE = 1e-5
"""Largest movement that is rounding, as a part of the largest logit. Of models that look ahead it is above 1e-4."""
TWIN_LAYERS = 2
TWIN_VOCABULARY = 256
MAX_TWIN_PARAMETERS = 64_000_000
"""Largest model that is made to be tried out and thrown away: 256 MB for a second or two."""
_TWINS: tuple[Mapping[str, int], ...] = (
    {"num_hidden_layers": TWIN_LAYERS, "vocab_size": TWIN_VOCABULARY},
    {"num_hidden_layers": TWIN_LAYERS},
    {},
)
"""Changes to a config that leave a model's kind as it is, and make it smaller; not every kind takes them."""


def check_small_twin(spec: ModelSpec) -> None:
    """Raise `Unsupported` if a small model of this kind looks ahead. One that cannot be made small is not tried out."""
    for changed in _TWINS:
        try:
            with torch.device("meta"):
                size = sum(one.numel() for one in build_module(spec, changed=changed).parameters())
            if size > MAX_TWIN_PARAMETERS:
                continue
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                torch.manual_seed(0)
                found = looks_ahead(build_module(spec, changed=changed), TWIN_VOCABULARY)
        except Exception:  # of any model class: the smaller config may be none of its kind
            continue
        if found is not None:
            _refuse(spec, looks=found)
            return


def check_causal(module: torch.nn.Module, spec: ModelSpec, vocabulary: int) -> None:
    """Raise `Unsupported` if a module with random or trained parameters looks ahead."""
    _refuse(spec, looks=bool(looks_ahead(module, vocabulary)))


def looks_ahead(module: torch.nn.Module, vocabulary: int) -> bool | None:
    """Return whether a logit depends on a later token; None if that cannot be told.

    Args:
        module: of a language model, on a device; it is computed without dropout, and left in its mode.
        vocabulary: tokens are below it.
    """
    device = next(module.parameters()).device
    if device.type == "meta" or vocabulary < 2:
        return None
    with _evaluating(module), torch.no_grad():
        tokens = torch.arange(TRIED_PLACES, device=device)[None] % min(vocabulary, TWIN_VOCABULARY)
        other = tokens.clone()
        other[0, -1] = (other[0, -1] + 1) % min(vocabulary, TWIN_VOCABULARY)
        try:
            one, two = (_logits(module, row)[0, :-1].float() for row in (tokens, other))
            moved, largest = float((one - two).abs().max()), float(one.abs().max())
        except Exception as error:  # a step fails as well, and says why
            if is_out_of_memory(error):
                raise
            return None
    is_finite = moved < float("inf") and largest < float("inf")  # False for NaN, too
    return moved > TOLERANCE * largest if is_finite else None


def _logits(module: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    is_half = getattr(getattr(module, "config", None), "_attn_implementation", "") == "flash_attention_2"
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=is_half):  # its kernels take no float32
        logits: torch.Tensor = module(input_ids=tokens).logits
    return logits


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def _refuse(spec: ModelSpec, *, looks: bool) -> None:
    if not looks:
        return
    kind = (spec.hf or {}).get("model_type")
    config: Any = hf_config(spec)
    why = f"a place of this {kind} sees the tokens after it, and with them what it has to predict"
    if getattr(config, "is_decoder", None) is False:
        mistake = Mistake(f"{CONFIG_PLACE}.is_decoder", "false", f"true, as {why}")
    else:
        allowed = f"a model that predicts each token from those before it; {why}"
        mistake = Mistake(f"{CONFIG_PLACE}.model_type", str(kind), allowed)
    raise Unsupported("model", (mistake,), NOT_TRAINED)
