"""Whether a model's forward pass works: transformers makes modules of many configs with which no step can be computed.

The rule kept here: only what the config itself is the cause of is refused. A lack of memory, and a pass that this
machine's device or the length of the tried row does not allow, say nothing about the config.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch

from epochal.state.errors import Mistake, Unsupported
from epochal.trainers.torch.devices import is_out_of_memory
from epochal.trainers.torch.hf_config import CONFIG_PLACE, NOT_TRAINED, first_line, quiet

TRIED_PLACES = 8
"""Length of the row that is computed."""
TRIED_VOCABULARY = 256
"""Tokens of the row are below it."""
MAX_INITIAL_VALUE = 1e4
"""Larger parameters were not initialised by the model's class: their memory is arbitrary."""
_NOT_OF_THE_CONFIG = re.compile(r"cuda|triton|not implemented|not supported on|sequence[ _]length", re.IGNORECASE)
_OF_SHAPES = re.compile(
    r"must match the size of tensor|shapes cannot be multiplied|is invalid for input of size|not in range for dimension"
    r"|selected index k out of range|dropout probability|broadcast a dimension|Expected size for first two dimensions"
)
"""Errors of a pass without numbers that the same pass with numbers has as well."""
_SIZE_KEY = re.compile(r"(^|_)(num|n|size|dim|rank|experts|heads|layers|embd|inner|state)(_|$)")


def tried_row(module: torch.nn.Module, vocabulary: int) -> torch.Tensor:
    """Return one row of tokens for a module: as long as its positions allow, with some of them to spare."""
    config = getattr(module, "config", None)
    longest = getattr(config, "max_position_embeddings", None)
    places = min(TRIED_PLACES, max(1, longest // 2)) if isinstance(longest, int) else TRIED_PLACES
    device = next(module.parameters()).device
    return torch.arange(places, device=device)[None] % min(vocabulary, TRIED_VOCABULARY)


def check_computable(module: torch.nn.Module, vocabulary: int) -> None:
    """Raise `Unsupported` if a module with random parameters cannot be computed, or its logits are not finite.

    Args:
        module: as the unchanged config makes it, on a device that computes; it is left in its mode.
        vocabulary: tokens are below it.
    """
    try:
        _train_pass(module, vocabulary)
        with in_mode(module, training=False), torch.no_grad():
            is_finite = bool(torch.isfinite(logits_of(module, tried_row(module, vocabulary))).all())
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if not _is_of_the_config(error):
            return
        raise _refused(first_line(error)) from error
    if not is_finite and all(float(one.detach().abs().max()) <= MAX_INITIAL_VALUE for one in module.parameters()):
        raise _refused("with random parameters it computes numbers that are not finite")


def check_shapes(module: torch.nn.Module, vocabulary: int) -> None:
    """Raise `Unsupported` if the shapes inside a module on torch's `meta` device do not fit each other.

    Where the pass needs numbers, it ends, and nothing is said of what comes after.
    """
    try:
        _train_pass(module, vocabulary)
    except Exception as error:
        if _OF_SHAPES.search(str(error)):
            raise _refused(first_line(error)) from error


def check_dimensions(hf: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `Unsupported` if a parameter has no numbers, because a size of the config is 0."""
    for name, shape in shapes.items():
        if 0 in shape:
            zeros = ", ".join(key for key, value in hf.items() if type(value) is int and not value and _is_size(key))
            allowed = "sizes above 0" + (f"; these are 0: {zeros}" if zeros else "")
            raise _refused(f"a size of it is 0, as parameter {name} has the shape {list(shape)}", allowed)


def logits_of(module: torch.nn.Module, tokens: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
    """Return the module's logits of rows of tokens."""
    is_half = getattr(getattr(module, "config", None), "_attn_implementation", "") == "flash_attention_2"
    cast = torch.autocast(tokens.device.type, torch.bfloat16) if is_half else nullcontext()
    with cast:  # its kernels take no float32, and there is no autocast on `meta`
        logits: torch.Tensor = module(input_ids=tokens, **more).logits
    return logits


@contextmanager
def in_mode(module: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """Let a module train, or not, until the context is left."""
    was_training = module.training
    module.train(training)
    try:
        yield
    finally:
        module.train(was_training)


def _train_pass(module: torch.nn.Module, vocabulary: int) -> None:
    """Compute one row as a step does: with its mask of ones, and with dropout."""
    tokens = tried_row(module, vocabulary)
    with quiet(), in_mode(module, training=True), torch.no_grad():
        logits_of(module, tokens, attention_mask=torch.ones_like(tokens))


def _is_of_the_config(error: Exception) -> bool:
    is_of_machine = isinstance(error, ImportError | NotImplementedError)
    return not is_of_machine and _NOT_OF_THE_CONFIG.search(str(error)) is None


def _is_size(key: str) -> bool:
    return _SIZE_KEY.search(key) is not None


def _refused(reason: str, allowed: str = "a config with which the model can be computed") -> Unsupported:
    return Unsupported("model", (Mistake(CONFIG_PLACE, f"refused: {reason}", allowed),), NOT_TRAINED)
