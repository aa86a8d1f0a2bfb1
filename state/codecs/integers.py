"""The `int8`, `int4` and `int2` codecs: blocks of 256 values, each with a float32 scale and an integer for each value.

A record is the scale's four bytes, little-endian, and then the codes. Value = float32(code) · scale, rounded once; of
`int2` see `TwoBitCodec`.

**One content has one record.** The scale is a function of the values: largest magnitude ÷ largest code, rounded once,
and at least 2⁻¹²⁶ (rule `scale_use`). So no two accepted records decode to the same values: these say the scale, and a
normal scale has another product with every code, so that the scale and the values say the codes.

A block has at least one code ±127 (±7), unless its scale is 2⁻¹²⁶. Any encoder can keep the rule: it takes *some*
number for the largest magnitude and divides. Let x be a float32, s = x ÷ 127 rounded and normal, and m = 127 · s
rounded and finite. Then m ÷ 127 rounds to s again, though m may differ from x by one unit in the last place; so it is
with 7.
"""

import numpy as np
import numpy.typing as npt

from epochal.state.codecs.codec import LEAST_SCALE
from epochal.state.codecs.compiled import compiled
from epochal.state.codecs.record_codec import Bytes, RecordCodec, packed_quads, unpacked_quads
from epochal.state.model.tensors import Float32Array
from epochal.state.model.value_checks import sum_of_squares

BLOCK_VALUES = 256
SCALE_BYTES = 4

Codes = npt.NDArray[np.int8]
_OUTER = np.float32(3)
_FIRST_SCALE = np.float32(0.624)
"""The best scale of normally distributed values, as a multiple of their mean magnitude."""
_FITS = 2
"""Times that a scale is fitted: with more, the error of differences of a real run falls by less than half a percent."""

Factors = npt.NDArray[np.int8]


class IntegerCodec(RecordCodec):
    """Codes of `bits` bits (8 or 4) from −`largest` to `largest`; two of four bits in a byte, the low nibble first."""

    def __init__(self, name: str, bits: int) -> None:
        super().__init__(name, BLOCK_VALUES, bits)
        self._largest = 2 ** (bits - 1) - 1

    def record_bytes(self, width: int) -> int:
        return SCALE_BYTES + (width * self.bits + 7) // 8

    def encode_rows(self, rows: Float32Array, records: Bytes) -> None:
        loops = compiled()
        if loops is not None:
            loops.encode(rows, records, self.bits, LEAST_SCALE)
            return
        scales = self._scales_for(np.abs(rows).max(axis=1))
        codes = np.rint(rows / scales[:, None])  # half to even
        codes = np.clip(codes, -self._largest, self._largest).astype(np.int8)
        put_scales(records, scales)
        records[:, SCALE_BYTES:] = codes.view(np.uint8) if self.bits == 8 else _packed(codes)

    def check_rows(self, records: Bytes, width: int, max_abs: float) -> str | float:
        """Return `scale`, `padding`, `code`, `max_abs` or `scale_use`, or the sum of the values' squares."""
        scales = scales_of(records)
        if not are_scales(scales):
            return "scale"
        if self.bits == 4 and width % 2 and (records[:, -1] >> 4).any():
            return "padding"
        codes = self._codes(records, width)
        lowest = codes.min(axis=1)
        if lowest.min() < -self._largest:
            return "code"
        magnitudes = np.maximum(codes.max(axis=1), -lowest)  # at most 127
        with np.errstate(over="ignore"):
            largest = magnitudes.astype(np.float32) * scales
        if float(largest.max()) > max_abs:
            return "max_abs"
        if not np.array_equal(scales, self._scales_for(largest)):
            return "scale_use"
        return sum_of_squares(codes.astype(np.float32) * scales[:, None])

    def decode_rows(self, records: Bytes, out: Float32Array) -> None:
        codes = self._codes(records, out.shape[1])
        with np.errstate(all="ignore"):
            np.multiply(codes.astype(np.float32), scales_of(records)[:, None], out=out)

    def steps_of(self, records: Bytes) -> Float32Array:
        return scales_of(records)

    def _scales_for(self, largest: Float32Array) -> Float32Array:
        """Return the scale of each block by the largest magnitude of its values, `(blocks,)`."""
        scales: Float32Array = np.maximum(largest / np.float32(self._largest), LEAST_SCALE)
        return scales

    def _codes(self, records: Bytes, width: int) -> Codes:
        codes = records[:, SCALE_BYTES:]
        return codes.view(np.int8) if self.bits == 8 else _unpacked(codes, width)


def put_scales(records: Bytes, scales: Float32Array) -> None:
    """Write each record's scale, `(records,)`."""
    records[:, :SCALE_BYTES] = scales.astype("<f4").view(np.uint8).reshape(-1, SCALE_BYTES)


def are_scales(scales: Float32Array) -> bool:
    """Return whether all are finite, and at least 2⁻¹²⁶."""
    return bool(scales.min() >= LEAST_SCALE and scales.max() < np.inf)


def scales_of(records: Bytes) -> Float32Array:
    """Return each record's scale, `(records,)`."""
    return np.ascontiguousarray(records[:, :SCALE_BYTES]).view("<f4").reshape(-1).astype(np.float32, copy=False)


def _packed(codes: Codes) -> Bytes:
    """Return codes of four bits as bytes, the low nibble first; a missing last one is 0."""
    nibbles: Bytes = codes.view(np.uint8) & np.uint8(0x0F)
    if nibbles.shape[1] % 2:
        nibbles = np.pad(nibbles, ((0, 0), (0, 1)))
    packed: Bytes = np.bitwise_or(nibbles[:, 0::2], np.left_shift(nibbles[:, 1::2], np.uint8(4)))
    return packed


_PAIRS = np.array(
    [(low - 16 * (low > 7)) % 256 | (high - 16 * (high > 7)) % 256 << 8 for high in range(16) for low in range(16)],
    "<u2",
)
"""The two codes of each byte, as the bytes of a number."""


def _unpacked(packed: Bytes, width: int) -> Codes:
    """Return the codes of bytes, from −8 to 7."""
    return _PAIRS.take(packed).view(np.int8)[:, :width]


class TwoBitCodec(RecordCodec):
    """The `int2` codec: four levels, −3, −1, 1 and 3 times a block's scale.

    The codes q, from −2 to 1 in two's complement, are four in a byte, the first in the lowest bits. Value =
    float32(2q + 1) · scale, rounded once. No value is 0, so error feedback goes with it, which takes back in the next
    round what one was too much.

    Each block has a code of −1 or 0 (rule `code_use`). So its smallest magnitude is the scale, and the values say the
    codes: 3 times a normal number rounds to another one.
    """

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
