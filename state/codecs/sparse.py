"""The `sparse` codec: of every chunk of 4,096 values the largest few, each as one of two levels and a sign.

A record is the two levels l₀ ≤ l₁ (float32, little-endian), the indices (12 bits each, two in three bytes) and the
codes (2 bits each, four in a byte). A value that was sent is ±l, without arithmetic; one that was not sent is +0.
"""

import numpy as np
import numpy.typing as npt

from epochal.state.codecs.codec import LEAST_SCALE
from epochal.state.codecs.record_codec import Bytes, RecordCodec, packed_quads, unpacked_quads
from epochal.state.errors import InternalError, InvalidResult
from epochal.state.model.tensors import Float32Array
from epochal.state.model.value_checks import sum_of_squares

CHUNK_VALUES = 4096
MAX_KEEP = CHUNK_VALUES
LEVELS_BYTES = 8

Indices = npt.NDArray[np.int64]


class SparseCodec(RecordCodec):
    """Keeps `keep` of 4,096 values, 1 to 4,096; of a last chunk of length L it keeps ⌈keep · L / 4096⌉."""

    def __init__(self, keep: int) -> None:
        if not 1 <= keep <= MAX_KEEP:
            raise InternalError(f"a sparse codec that keeps {keep} of {CHUNK_VALUES}")
        super().__init__(f"sparse-{keep}", CHUNK_VALUES)
        self._keep = keep

    def record_bytes(self, width: int) -> int:
        kept = self._kept(width)
        return LEVELS_BYTES + _index_bytes(kept) + _code_bytes(kept)

    def encode_rows(self, rows: Float32Array, records: Bytes) -> None:
        kept = self._kept(rows.shape[1])
        magnitudes = np.abs(rows)
        indices = _largest(magnitudes, kept)
        sent = np.take_along_axis(magnitudes, indices, axis=1)
        levels = _levels(sent)
        distances = (np.abs(sent - levels[:, :1]), np.abs(sent - levels[:, 1:]))
        is_larger = (distances[1] < distances[0]) & (levels[:, :1] < levels[:, 1:])
        is_negative = np.take_along_axis(rows, indices, axis=1) < 0
        codes: Bytes = np.bitwise_or(is_larger, is_negative * np.uint8(2), dtype=np.uint8)
        end = LEVELS_BYTES + _index_bytes(kept)
        records[:, :LEVELS_BYTES] = levels.astype("<f4").view(np.uint8)
        records[:, LEVELS_BYTES:end] = _packed_indices(indices)
        records[:, end:] = packed_quads(codes)

    def check_rows(self, records: Bytes, width: int, max_abs: float) -> str | float:
        """Return `level`, `max_abs`, `padding`, `index` or `level_use`, or the sum of the values' squares."""
        kept = self._kept(width)
        levels = _levels_of(records)
        if not (np.isfinite(levels) & (levels >= LEAST_SCALE)).all() or (levels[:, 0] > levels[:, 1]).any():
            return "level"
        if float(levels[:, 1].max()) > max_abs:
            return "max_abs"
        end = LEVELS_BYTES + _index_bytes(kept)
        if kept % 2 and (records[:, end - 1] >> 4).any():
            return "padding"
        if kept % 4 and (records[:, -1] >> (2 * (kept % 4))).any():
            return "padding"
        indices = _indices_of(records, kept)
        if (indices[:, -1] >= width).any() or (np.diff(indices, axis=1) <= 0).any():
            return "index"
        is_larger = (_codes_of(records, kept) & 1).astype(np.bool_)
        only_one = levels[:, 0] == levels[:, 1]
        uses_both = is_larger.any(axis=1) & ~is_larger.all(axis=1)
        if not np.where(only_one, ~is_larger.any(axis=1), uses_both).all():
            return "level_use"
        return sum_of_squares(np.where(is_larger, levels[:, 1:], levels[:, :1]))

    def decode_rows(self, records: Bytes, out: Float32Array) -> None:
        indices, values = self._sent(records, out.shape[1])
        out[...] = 0.0
        np.put_along_axis(out, indices, values, axis=1)

    def sent(self, block: Bytes, count: int, start: int, stop: int) -> tuple[Indices, Float32Array]:
        """Return the values that were sent between `start` and `stop`, and their flat indices counted from `start`.

        Both limits are as in `decode`. The indices are strictly ascending.

        Raises:
            InvalidResult: an index beyond the tensor; its `check` was not made.
        """
        indices, values = [], []
        for records, part in self._parts(block, count, start, stop):
            width = (part.stop - part.start) // len(records)
            found, sent = self._sent(records, width)
            first = part.start - start + np.arange(len(records), dtype=np.int64) * width
            indices.append((found + first[:, None]).reshape(-1))
            values.append(sent.reshape(-1))
        return np.concatenate(indices), np.concatenate(values)

    def _sent(self, records: Bytes, width: int) -> tuple[Indices, Float32Array]:
        """Return indices within each chunk, and values, both (chunks, kept)."""
        kept = self._kept(width)
        indices = _indices_of(records, kept)
        if width < CHUNK_VALUES and (indices >= width).any():
            raise InvalidResult("index", f"a sparse chunk of {width} values with an index beyond them")
        codes, levels = _codes_of(records, kept), _levels_of(records)
        values = np.where((codes & 1).astype(np.bool_), levels[:, 1:], levels[:, :1])
        np.negative(values, out=values, where=(codes & 2).astype(np.bool_))
        return indices, values

    def _kept(self, width: int) -> int:
        return -(-self._keep * width // CHUNK_VALUES)


def _index_bytes(kept: int) -> int:
    return (3 * kept + 1) // 2


def _code_bytes(kept: int) -> int:
    return (kept + 3) // 4


def _largest(magnitudes: Float32Array, kept: int) -> Indices:
    """Return the ascending indices of each row's `kept` largest values; of equal ones those with the lower index."""
    width = magnitudes.shape[1]
    limit = np.partition(magnitudes, width - kept, axis=1)[:, width - kept : width - kept + 1]
    is_sent = magnitudes > limit
    is_equal = magnitudes == limit
    missing = kept - is_sent.sum(axis=1, keepdims=True)
    is_sent |= is_equal & (np.cumsum(is_equal, axis=1, dtype=np.int32) <= missing)
    return np.nonzero(is_sent)[1].astype(np.int64).reshape(-1, kept)


def _levels(sent: Float32Array) -> Float32Array:
    """Return (chunks, 2): the means of the smaller and the larger half, the larger one with the odd value."""
    ordered = np.sort(sent, axis=1).astype(np.float64)
    smaller = sent.shape[1] // 2
    high = ordered[:, smaller:].mean(axis=1)
    low = ordered[:, :smaller].mean(axis=1) if smaller else high
    return np.maximum(np.stack([low, high], axis=1).astype(np.float32), LEAST_SCALE)


def _levels_of(records: Bytes) -> Float32Array:
    return np.ascontiguousarray(records[:, :LEVELS_BYTES]).view("<f4").astype(np.float32, copy=False)


def _packed_indices(indices: Indices) -> Bytes:
    kept = indices.shape[1]
    pairs = np.pad(indices, ((0, 0), (0, kept % 2)))
    first, second = pairs[:, 0::2], pairs[:, 1::2]
    triples = np.stack([first & 0xFF, (first >> 8) | ((second & 0x0F) << 4), second >> 4], axis=2)
    return triples.astype(np.uint8).reshape(len(indices), -1)[:, : _index_bytes(kept)]


def _indices_of(records: Bytes, kept: int) -> Indices:
    packed = records[:, LEVELS_BYTES : LEVELS_BYTES + _index_bytes(kept)].astype(np.int64)
    triples = np.pad(packed, ((0, 0), (0, kept % 2))).reshape(len(records), -1, 3)
    pairs = [triples[:, :, 0] | ((triples[:, :, 1] & 0x0F) << 8), (triples[:, :, 1] >> 4) | (triples[:, :, 2] << 4)]
    return np.stack(pairs, axis=2).reshape(len(records), -1)[:, :kept]


def _codes_of(records: Bytes, kept: int) -> Bytes:
    return unpacked_quads(records[:, LEVELS_BYTES + _index_bytes(kept) :], kept)
