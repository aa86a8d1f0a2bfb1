"""The averages of an outcome's differences, part by part: the first lines of the update in `docs/merging.md`.

The rule kept here is that of `state/merging.py`: elementwise float32 operations in the outcome's order, each rounded
once. A `sparse` difference is added index by index; the bits are those of its decoded values, added all.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from epochal.state.codecs.codec import EncodedTensor
from epochal.state.codecs.sparse import Indices, SparseCodec
from epochal.state.errors import InternalError
from epochal.state.model.tensors import Float32Array

Part: TypeAlias = Float32Array | EncodedTensor
"""One tensor of a contribution: its flat values, or encoded."""
Mean: TypeAlias = Callable[[Sequence[Part], int, Float32Array, Float32Array], None]
"""Averages one part: of the tensors, from this value on, into the first array; the second, of its size, is scratch."""

_QUOTIENT_BITS = 40
_MAX_TOTAL = 2**63


def mean_over_all(counts: Sequence[int], factors: Sequence[float]) -> Mean:
    """Return the mean weighted by `counts` and `factors`: Δ = w₁·d₁ + … + wₙ·dₙ.

    Each wᵢ is the float32 nearest to the exact ratio of its count, times its factor, rounded once more.
    """
    weights = _weights(counts, sum(counts), factors)

    def average(tensors: Sequence[Part], start: int, mean: Float32Array, scratch: Float32Array) -> None:
        may_skip = True
        for position, (weight, tensor) in enumerate(zip(weights, tensors, strict=True)):
            if may_skip and isinstance(tensor, EncodedTensor) and isinstance(tensor.codec, SparseCodec):
                indices, products = _sent(tensor, start, mean.size)
                np.multiply(products, weight, out=products)
                if products.all():
                    if position == 0:
                        mean.fill(0.0)
                        mean[indices] = products
                    else:
                        mean[indices] += products
                    continue
            may_skip = False  # a product may be −0, which only adding every value treats as the rule does
            values = _read(tensor, start, scratch)
            if position == 0:
                np.multiply(values, weight, out=mean)  # Δ = w₁·d₁
            else:
                np.multiply(values, weight, out=scratch)
                np.add(mean, scratch, out=mean)  # Δ = Δ + wᵢ·dᵢ

    return average


def mean_over_senders(counts: Sequence[int], factors: Sequence[float]) -> Mean:
    """Return the mean of each element over the contributions that sent it, weighted by `counts`; 0 where none did.

    Δ = (w₁·d₁ + … + wₙ·dₙ) / b: only contributions that sent the element are added, in the outcome's order; wᵢ is the
    float32 of its count, times its factor, rounded once more; b is the sum of their counts, an exact integer, rounded
    once to float32.

    Raises:
        InternalError: a contribution that is not `sparse`, or counts of 2⁶³ or more; the caller's bug.
    """
    if sum(counts) >= _MAX_TOTAL:
        raise InternalError(f"contributions of {sum(counts)} batches")
    weights = _weights(counts, 1, factors)

    def average(tensors: Sequence[Part], start: int, mean: Float32Array, scratch: Float32Array) -> None:
        mean.fill(0.0)
        sent_by = np.zeros(mean.size, np.int64)
        for count, weight, tensor in zip(counts, weights, tensors, strict=True):
            if not (isinstance(tensor, EncodedTensor) and isinstance(tensor.codec, SparseCodec)):
                raise InternalError("a mean over senders of a contribution that sends every element")
            indices, products = _sent(tensor, start, mean.size)
            np.multiply(products, weight, out=products)
            mean[indices] += products
            sent_by[indices] += count
        np.copyto(scratch, np.maximum(sent_by, 1), casting="same_kind")
        np.divide(mean, scratch, out=mean)

    return average


def _weights(counts: Sequence[int], whole: int, factors: Sequence[float]) -> list[np.float32]:
    return [
        np.float32(ratio_as_float32(count, whole) * np.float32(factor))
        for count, factor in zip(counts, factors, strict=True)
    ]


def ratio_as_float32(numerator: int, denominator: int) -> np.float32:
    """Return the float32 nearest to the exact ratio of two positive integers below 2⁶⁴, ties to even, rounded once.

    The quotient is taken to 40 bits or more with the rest folded into its last bit (round to odd), which a float64
    holds exactly; so its conversion to float32 is the only rounding. (Dividing as floats would round twice.)
    """
    if not (0 < numerator < 2**64 and 0 < denominator < 2**64):
        raise InternalError(f"a weight of {numerator}/{denominator}")
    shift = _QUOTIENT_BITS + denominator.bit_length() - numerator.bit_length()
    quotient, rest = divmod(numerator << max(shift, 0), denominator << max(-shift, 0))
    return np.float32(math.ldexp(quotient | (rest > 0), -shift))


def _sent(tensor: EncodedTensor, start: int, size: int) -> tuple[Indices, Float32Array]:
    assert isinstance(tensor.codec, SparseCodec)
    return tensor.codec.sent(tensor.block, tensor.size, start, start + size)


def _read(tensor: Part, start: int, scratch: Float32Array) -> Float32Array:
    if isinstance(tensor, EncodedTensor):
        return tensor.read(start, scratch)
    return tensor[start : start + scratch.size]
