"""Codecs whose groups are records of bytes: every full group has a record of one size, and the last one its own.

A subclass treats rows, one group each, all of the same width. Everything about parts and the shorter last group is
here, so that encoding, checking and decoding take constant memory whatever the tensor's size.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from epochal.state.codecs.codec import PART_VALUES, Block
from epochal.state.codecs.compiled import compiled
from epochal.state.errors import InternalError
from epochal.state.model.tensors import BYTES_TYPE, Float32Array, Readable, TensorLayout

Bytes = npt.NDArray[np.uint8]


class RecordCodec(ABC):
    """A codec of records; the values of one group lie in one record.

    Args:
        name: the codec's, in a result's metadata.
        group: number of values of a group.
        bits: of a code, where each value has one after a scale of four bytes (8, 4 or 2); else 0.
    """

    def __init__(self, name: str, group: int, bits: int = 0) -> None:
        self.name = name
        self.group = group
        self.bits = bits

    @abstractmethod
    def record_bytes(self, width: int) -> int:
        """Return the size of the record of a group of `width` values."""

    @abstractmethod
    def encode_rows(self, rows: Float32Array, records: Bytes) -> None:
        """Encode groups.

        Args:
            rows: (groups, width), finite.
            records: (groups, `record_bytes(width)`), written.
        """

    @abstractmethod
    def check_rows(self, records: Bytes, width: int, max_abs: float) -> str | float:
        """Return the first rule that one of the records breaks, or the sum of all values' squares."""

    @abstractmethod
    def decode_rows(self, records: Bytes, out: Float32Array) -> None:
        """Decode records into `out`, (groups, width)."""

    def steps_of(self, records: Bytes) -> Float32Array:  # noqa: ARG002 (a subclass uses it)
        """Return the distance between neighbouring values that each record can hold, (groups,). Not every codec has."""
        raise InternalError(f"codec {self.name} has no steps")

    def size_bytes(self, count: int) -> int:
        """Return the size of an encoded tensor of `count` values."""
        full, rest = divmod(count, self.group)
        return full * self.record_bytes(self.group) + (self.record_bytes(rest) if rest else 0)

    def encoded(self, layout: TensorLayout) -> TensorLayout:
        entries = tuple((name, (self.size_bytes(count),)) for name, count in layout.counts())
        return TensorLayout(entries, BYTES_TYPE)

    def encode(self, values: Float32Array) -> Block:
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        block = np.empty(self.size_bytes(flat.size), np.uint8)
        with np.errstate(all="ignore"):
            for records, part in self._parts(block, flat.size, 0, flat.size):
                self.encode_rows(flat[part].reshape(len(records), -1), records)
        return block

    def check(self, data: Readable, start: int, count: int, max_abs: float) -> str | float:
        squares = 0.0
        for place, part in self._places(count, 0, count):
            width = min(self.group, part.stop - part.start)
            records = np.frombuffer(data[start + place.start : start + place.stop], np.uint8)
            found = self.check_rows(records.reshape(-1, self.record_bytes(width)), width, max_abs)
            if isinstance(found, str):
                return found
            squares += found
        return squares

    def decode(self, block: Block, count: int, start: int, out: Float32Array) -> Float32Array:
        if not self._decoded_by_loops(block, count, start, out):
            for records, part in self._parts(block, count, start, start + out.size):
                self.decode_rows(records, out[part.start - start : part.stop - start].reshape(len(records), -1))
        return out

    def add(
        self, block: Block, count: int, start: int, sums: Float32Array, weight: np.float32, room: Float32Array
    ) -> None:
        """Add values · weight to sums, each product rounded; the other arguments are those of `decode`.

        Args:
            sums: flat, where the values are added.
            room: as large, for the products.
        """
        if not self._decoded_by_loops(block, count, start, sums, weight):
            np.multiply(self.decode(block, count, start, room), weight, out=room)
            np.add(sums, room, out=sums)

    def _decoded_by_loops(
        self, block: Block, count: int, start: int, out: Float32Array, weight: np.float32 | None = None
    ) -> bool:
        """Decode into `out`, or add to it, with compiled loops. Return False if there are none for this codec."""
        loops = compiled()
        if loops is None or not self.bits:
            return False
        factor = np.float32(1) if weight is None else weight
        for records, part in self._parts(block, count, start, start + out.size):
            rows = out[part.start - start : part.stop - start].reshape(len(records), -1)
            loops.decode(records, self.bits, rows, weight is not None, factor)
        return True

    def steps(self, block: Block, count: int, start: int, out: Float32Array) -> Float32Array:
        """Return the step of each value; the arguments are those of `decode`."""
        for records, part in self._parts(block, count, start, start + out.size):
            rows = out[part.start - start : part.stop - start].reshape(len(records), -1)
            rows[:] = self.steps_of(records)[:, None]
        return out

    def _parts(self, block: Bytes, count: int, start: int, stop: int) -> Iterator[tuple[Bytes, slice]]:
        """Yield the records of the values from `start` to `stop` in parts of one width, and each part's values."""
        for place, part in self._places(count, start, stop):
            width = min(self.group, part.stop - part.start)
            yield block[place].reshape(-1, self.record_bytes(width)), part

    def _places(self, count: int, start: int, stop: int) -> Iterator[tuple[slice, slice]]:
        """Yield, for each part of one width between `start` and `stop`, the places of its bytes and of its values."""
        if start % self.group or not (stop == count or (stop < count and stop % self.group == 0)):
            raise InternalError(f"values {start} to {stop} of {count} do not begin and end at groups of {self.group}")
        record = self.record_bytes(self.group)
        full = count // self.group
        first, last = start // self.group, min(stop // self.group, full)
        step = max(1, PART_VALUES // self.group)
        for begin in range(first, last, step):
            end = min(begin + step, last)
            yield slice(begin * record, end * record), slice(begin * self.group, end * self.group)
        if stop == count and count % self.group and start < count:
            yield slice(full * record, self.size_bytes(count)), slice(full * self.group, count)


_QUADS = np.array([sum((byte >> 2 * place & 3) << 8 * place for place in range(4)) for byte in range(256)], "<u4")
"""The four codes of each byte, as the bytes of a number."""


def packed_quads(codes: Bytes) -> Bytes:
    """Return codes of two bits as bytes, four in each, the first in the lowest bits; missing last ones are 0."""
    if codes.shape[1] % 4:
        codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 4)))
    quads = np.ascontiguousarray(codes).view("<u4")
    packed: Bytes = (quads | quads >> 6 | quads >> 12 | quads >> 18).astype(np.uint8)  # the lowest byte
    return packed


def unpacked_quads(packed: Bytes, width: int) -> Bytes:
    """Return the first `width` codes of each row of bytes, from 0 to 3."""
    return _QUADS[packed].view(np.uint8)[:, :width]
