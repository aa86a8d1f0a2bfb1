"""Whether a model predicts each token from those before it alone, which `NextTokenLoss` relies on.

A model whose output at a place depends on later places sees what it has to predict: its loss falls towards zero, and
it learns nothing. The model's class does not say so (BERT's classes do both), so it is tried out: one short row is
computed twice, the second time with another last token, and no logit before it may move.
"""

from collections.abc import Mapping
from typing import Any

import torch

from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import Mistake, Unsupported
from epochal.trainers.torch.devices import is_out_of_memory
from epochal.trainers.torch.forward_trial import (
    TRIED_VOCABULARY,
    check_computable,
    check_shapes,
    in_mode,
    logits_of,
    tried_row,
)
from epochal.trainers.torch.hf_config import CONFIG_PLACE, NOT_TRAINED, build_module, hf_config

TOLERANCE = 1e-5
"""Largest movement that is rounding, as a part of the largest logit. Of models that look ahead it is above 1e-4."""
TWIN_LAYERS = 2
MAX_TWIN_PARAMETERS = 64_000_000
"""Largest model that is made to be tried out and thrown away: 256 MB for a second or two."""
_TWINS: tuple[Mapping[str, int], ...] = (
    {"num_hidden_layers": TWIN_LAYERS, "vocab_size": TRIED_VOCABULARY},
    {"num_hidden_layers": TWIN_LAYERS},
)
"""Changes to a config that leave a model's kind as it is, and make it smaller; not every kind takes them."""


def check_untrained(spec: ModelSpec, original: torch.nn.Module, vocabulary: int) -> None:
    """Raise `Unsupported` if a model cannot be computed, or looks ahead.

    A large model is not made: the shapes inside it are compared, and a small one of its kind is tried out instead. If
    that fails, nothing is said, because the smaller config may be none of its kind.

    Args:
        spec: the model.
        original: its module on torch's `meta` device.
        vocabulary: tokens are below it.
    """
    looks = None
    if _size_of(original) > MAX_TWIN_PARAMETERS:
        check_shapes(original, vocabulary)
    else:
        try:
            looks = _tried_out(spec, vocabulary)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
    _refuse(spec, looks=_looks_ahead_if_small(spec) if looks is None else looks)


def _tried_out(spec: ModelSpec, vocabulary: int) -> bool | None:
    """Return what `looks_ahead` does of the model itself. Raise `Unsupported` if it cannot be computed."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        module = build_module(spec)
        check_computable(module, vocabulary)
        return looks_ahead(module, vocabulary)


def _looks_ahead_if_small(spec: ModelSpec) -> bool:
    """Return whether a small model of this kind looks ahead; False if none can be tried out."""
    for changed in _TWINS:
        try:
            with torch.device("meta"):
                size = _size_of(build_module(spec, changed=changed))
            if size > MAX_TWIN_PARAMETERS:
                continue
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                torch.manual_seed(0)
                found = looks_ahead(build_module(spec, changed=changed), TRIED_VOCABULARY)
        except Exception:  # of any model class: the smaller config may be none of its kind
            continue
        if found is not None:
            return found
    return False


def _size_of(module: torch.nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


def check_causal(module: torch.nn.Module, spec: ModelSpec, vocabulary: int) -> None:
    """Raise `Unsupported` if a module with random or trained parameters looks ahead."""
    _refuse(spec, looks=bool(looks_ahead(module, vocabulary)))


def looks_ahead(module: torch.nn.Module, vocabulary: int) -> bool | None:
    """Return whether a logit depends on a later token; None if unknown.

    Args:
        module: of a language model, on a device; it is computed without dropout, and left in its mode.
        vocabulary: tokens are below it.
    """
    device = next(module.parameters()).device
    if device.type == "meta" or vocabulary < 2:
        return None
    with in_mode(module, training=False), torch.no_grad():
        tokens = tried_row(module, vocabulary)
        other = tokens.clone()
        other[0, -1] = (other[0, -1] + 1) % min(vocabulary, TRIED_VOCABULARY)
        try:
            one, two = (logits_of(module, row)[0, :-1].float() for row in (tokens, other))
            moved, largest = float((one - two).abs().max()), float(one.abs().max())
        except Exception as error:  # a step fails as well, and says why
            if is_out_of_memory(error):
                raise
            return None
    is_finite = moved < float("inf") and largest < float("inf")  # False for NaN, too
    return moved > TOLERANCE * largest if is_finite else None


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
