"""Tries a model out on one short row, before a run begins with its first parameters.

transformers makes modules of many configs with which no step can be computed. And a model whose output at a place
depends on later places sees what it has to predict, so that it learns nothing; its class does not say so (BERT's do
both). Therefore the row is computed twice, the second time with another last token: no logit before it may move.
"""

import re
from typing import Any

import torch

from epochal.state.errors import Mistake, Unsupported
from epochal.trainers.torch.devices import is_out_of_memory
from epochal.trainers.torch.hf_config import CONFIG_PLACE, NOT_TRAINED, first_line, quiet

TRIED_PLACES = 8
"""Length of the row."""
TRIED_VOCABULARY = 256
"""Tokens of the row are below it."""
TOLERANCE = 1e-5
"""Largest movement that is rounding, as a part of the largest logit. Of models that look ahead it is above 1e-4."""
MAX_INITIAL_VALUE = 1e4
"""Larger parameters were not initialised by the model's class: their memory is arbitrary."""
_NOT_OF_THE_CONFIG = re.compile(r"cuda|triton|not implemented|not supported on|sequence[ _]length", re.IGNORECASE)
"""Errors of a kernel that this machine lacks, or of so short a row: they say nothing about the config."""


def check_first_module(module: Any, vocabulary: int) -> None:
    """Raise `Unsupported` if a module cannot be computed, computes numbers that are not finite, or looks ahead.

    Args:
        module: with the run's first parameters, on the CPU; in training mode, and left so.
        vocabulary: tokens are below it.
    """
    longest = getattr(module.config, "max_position_embeddings", None)
    places = min(TRIED_PLACES, longest) if isinstance(longest, int) else TRIED_PLACES
    known = min(vocabulary, TRIED_VOCABULARY)
    row = torch.arange(places)[None] % known
    other = row.clone()
    other[0, -1] = (other[0, -1] + 1) % known
    try:
        with quiet(), torch.no_grad():
            module.eval()
            one, two = (module(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0] for ids in (row, other))
    except Exception as error:  # of any model's class
        if is_out_of_memory(error):
            raise
        if isinstance(error, ImportError | NotImplementedError) or _NOT_OF_THE_CONFIG.search(str(error)):
            return
        raise _refused(first_line(error), "a config with which the model can be computed") from error
    finally:
        module.train()
    if not bool(torch.isfinite(one).all()):
        if all(float(part.detach().abs().max()) <= MAX_INITIAL_VALUE for part in module.parameters()):
            reason = "with random parameters it computes numbers that are not finite"
            raise _refused(reason, "a config with which the model can be computed")
    elif places > 1 and float((one - two)[:-1].abs().max()) > TOLERANCE * float(one.abs().max()):
        why = "it sees the tokens after a place, and with them what it has to predict"
        is_decoder = getattr(module.config, "is_decoder", None)
        hint = "is_decoder = true" if is_decoder is False else "a model that predicts each token from those before it"
        raise _refused(why, hint)


def _refused(reason: str, allowed: str) -> Unsupported:
    return Unsupported("model", (Mistake(CONFIG_PLACE, f"refused: {reason}", allowed),), NOT_TRAINED)
