"""The `int2` codec: blocks of 256 values, each with one float32 scale and one of four levels for each value.

A record is the scale's four bytes, little-endian, and then the codes q, from −2 to 1 in two's complement, four in a
byte, the first in the lowest bits. Value = float32(2q + 1) · scale, rounded once: −3, −1, 1 or 3 scales. No value is 0,
so error feedback goes with it, which takes back in the next round what one was too much.

**One content has one record.** Each block has a code of −1 or 0 (rule `code_use`). So its smallest magnitude is the
scale, and the values say the codes: 3 times a normal number rounds to another one.
"""

import numpy as np
import numpy.typing as npt

from epochal.state.codecs.codec import LEAST_SCALE
from epochal.state.codecs.compiled import compiled
from epochal.state.codecs.integers import BLOCK_VALUES, SCALE_BYTES, are_scales, put_scales, scales_of
from epochal.state.codecs.record_codec import Bytes, RecordCodec, packed_quads, unpacked_quads
from epochal.state.model.tensors import Float32Array
from epochal.state.model.value_checks import sum_of_squares

_OUTER = np.float32(3)
_FIRST_SCALE = np.float32(0.624)
"""The best scale of normally distributed values, as a multiple of their mean magnitude."""
_FITS = 2
"""Times that a scale is fitted: with more, the error of differences of a real run falls by less than half a percent."""

Factors = npt.NDArray[np.int8]


class TwoBitCodec(RecordCodec):
    """Four levels, −3, −1, 1 and 3 times a block's scale."""

    def __init__(self) -> None:
        super().__init__("int2", BLOCK_VALUES, bits=2)

    def record_bytes(self, width: int) -> int:
        return SCALE_BYTES + (width + 3) // 4

    def encode_rows(self, rows: Float32Array, records: Bytes) -> None:
        """Fit each block's scale by least squares; no decoded magnitude is above the block's largest."""
        loops = compiled()
        if loops is not None:
            loops.encode_two_bits(rows, records, LEAST_SCALE)
            return
        width, magnitudes = rows.shape[1], np.abs(rows)
        largest, total = magnitudes.max(axis=1), _row_sums(magnitudes)
        mean = total / np.float32(width)
        scales = _FIRST_SCALE * mean
        for _ in range(_FITS):  # Σ f·|x| ÷ Σ f², with f = 3 for the outer ones and 1 for the others
            is_outer = magnitudes > (2 * scales)[:, None]
            squares = (width + 8 * np.count_nonzero(is_outer, axis=1)).astype(np.float32)
            scales = (total + 2 * _row_sums(magnitudes * is_outer)) / squares
        scales = np.where(largest > 2 * scales, np.fmin(scales, largest / _OUTER), scales)
        scales = np.where(magnitudes.min(axis=1) > 2 * scales, mean, scales)  # else no code would be an inner one
        scales = np.maximum(np.fmin(scales, largest), LEAST_SCALE)
        limits = np.where(_OUTER * scales <= largest, 2 * scales, np.float32(np.inf))
        is_outer = magnitudes > limits[:, None]
        codes: Bytes = np.bitwise_xor((rows < 0) * np.uint8(3), is_outer, dtype=np.uint8)
        put_scales(records, scales)
        records[:, SCALE_BYTES:] = packed_quads(codes)

    def check_rows(self, records: Bytes, width: int, max_abs: float) -> str | float:
        """Return `scale`, `padding`, `max_abs` or `code_use`, or the sum of the values' squares."""
        scales = scales_of(records)
        if not are_scales(scales):
            return "scale"
        if width % 4 and (records[:, -1] >> (2 * (width % 4))).any():
            return "padding"
        factors = _factors(records, width)
        magnitudes = np.abs(factors)
        with np.errstate(over="ignore"):
            largest = magnitudes.max(axis=1).astype(np.float32) * scales
        if not float(largest.max()) <= min(max_abs, float(np.finfo(np.float32).max)):
            return "max_abs"
        if (magnitudes.min(axis=1) != 1).any():
            return "code_use"
        return sum_of_squares(factors.astype(np.float32) * scales[:, None])

    def decode_rows(self, records: Bytes, out: Float32Array) -> None:
        factors = _factors(records, out.shape[1])
        with np.errstate(all="ignore"):
            np.multiply(factors.astype(np.float32), scales_of(records)[:, None], out=out)

    def steps_of(self, records: Bytes) -> Float32Array:
        with np.errstate(over="ignore"):
            return 2 * scales_of(records)


def _row_sums(values: Float32Array) -> Float32Array:
    """Return the sum of each row, added in an order that is the same everywhere: each half to the other."""
    while (width := values.shape[1]) > 1:
        half = width // 2
        added = values[:, :half] + values[:, half : 2 * half]
        values = np.concatenate((added, values[:, -1:]), axis=1) if width % 2 else added
    return values[:, 0]


_FACTORS = np.array([1, 3, -3, -1], np.int8)
"""2q + 1 by the bits of q."""
_QUADS = _FACTORS[unpacked_quads(np.arange(256, dtype=np.uint8)[:, None], 4)].view(np.uint32).reshape(-1)
"""The four factors of each byte, as the bytes of a number."""


def _factors(records: Bytes, width: int) -> Factors:
    return _QUADS[records[:, SCALE_BYTES:]].view(np.int8)[:, :width]
