"""Muon's step for one hidden matrix, an array of NumPy or a tensor of torch.

The rule is that of `torch.optim.Muon` (https://kellerjordan.github.io/posts/muon/) with its step length
`match_rms_adamw`. That class iterates in bfloat16 everywhere, for which most processors have no instructions: a step of
a matrix of 96 x 96 takes twelve times as long on one of these, one of 256 x 256 thirty times. Here the caller chooses.
"""

import math
from typing import Any

from epochal.state.config.model_table import Muon

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration, whose slope at 0 is as steep as possible."""
_EPSILON = 1e-7
_RMS = 0.2
"""Root of the mean square of AdamW's usual step, as a share of the learning rate."""


def muon_step(matrix: Any, slope: Any, momentum: Any, settings: Muon, learning_rate: float, dtype: Any = None) -> None:
    """Take one step: change `matrix` and its moment `momentum` in place.

    Args:
        matrix, momentum: float32, of one shape.
        slope: the gradient, of the same shape.
        settings: momentum, decay and number of iterations.
        learning_rate: of the schedule.
        dtype: torch's, of the iteration; None iterates in float32.
    """
    momentum += (1 - settings.momentum) * (slope - momentum)
    ahead = slope + settings.momentum * (momentum - slope)
    ahead = ahead if dtype is None else ahead.to(dtype)
    matrix *= 1 - learning_rate * settings.weight_decay
    matrix -= learning_rate * _RMS * math.sqrt(max(matrix.shape)) * orthogonal(ahead, settings.ns_steps)


def orthogonal(matrix: Any, iterations: int) -> Any:
    """Return a matrix with the same singular vectors, and singular values near 1 (Newton-Schulz)."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if is_tall else matrix
    found = found / ((found * found).sum() ** 0.5 + _EPSILON)
    a, b, c = _COEFFICIENTS
    for _ in range(iterations):
        gram = found @ found.T
        found = a * found + (b * gram + c * (gram @ gram)) @ found
    return found.T if is_tall else found
