"""The check of values that come from elsewhere: finite, and not too large."""

import math

import numpy as np

from epochal.state.model.tensors import CHECK_CHUNK_ELEMENTS, Float32Array


def check_values(values: Float32Array, max_abs: float) -> str | None:
    """Return the rule that a flat array breaks (`finite` or `max_abs`), or None; takes constant memory.

    Args:
        values: float32, one-dimensional.
        max_abs: the largest magnitude allowed; `math.inf` for any finite value.
    """
    for start in range(0, values.size, CHECK_CHUNK_ELEMENTS):
        chunk = values[start : start + CHECK_CHUNK_ELEMENTS]
        with np.errstate(invalid="ignore"):
            low, high = float(chunk.min()), float(chunk.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            return "finite"
        if low < -max_abs or high > max_abs:
            return "max_abs"
    return None


def sum_of_squares(values: Float32Array) -> float:
    """Return the sum of the squares of a part's values, each taken as a float64."""
    return float(np.square(values, dtype=np.float64).sum())
