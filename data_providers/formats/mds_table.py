"""The samples of an MDS shard that differ in length: one stream of tokens, or records of tokens.

The offset table at a shard's beginning says where each sample begins and ends, from which follow its number of tokens
and the place of the first one. The table is read again when it is needed (`RecordTables` keeps some), so that memory
grows with the shards and not with their samples.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.protocol import CorruptData, DatasetSpec
from epochal.data_providers.sources.byte_source import ByteSource, read
from epochal.state.errors import InternalError

MAX_TABLE_BYTES = 256 * 1024**2
"""Maximum size of the tables that are kept; the least recently used is dropped first."""
_SIZE_BYTES = 4
_SHAPE_WIDTHS = ((1, 0, 2**8), (2, 2**8, 2**16), (4, 2**16, 2**32))
"""Bytes of a length in an array's shape, and the lengths `[first, stop)` that are written in so many."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The place of the tokens in the samples of a shard.

    Attributes:
        name, size_bytes: of the shard.
        sample_count: from the index, 1 or more.
        before_bytes: from a sample's beginning to its tokens, without their shape.
        other_bytes: of a sample, all but its tokens and their shape.
        has_shape: whether each sample has its own shape before its tokens.
    """

    name: str
    size_bytes: int
    sample_count: int
    before_bytes: int
    other_bytes: int
    has_shape: bool

    @property
    def header_bytes(self) -> int:
        """Number of first bytes of the shard that hold the offset table."""
        return min(self.size_bytes, _SIZE_BYTES * (self.sample_count + 2))


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The samples of a shard as pieces of tokens.

    Attributes:
        starts: the byte at which each sample's tokens begin, `(n,)`.
        counts: how many tokens it has, `(n,)`.
        firsts: how many tokens the samples before it have, `(n + 1,)`.
    """

    starts: Numbers
    counts: Numbers
    firsts: Numbers

    @property
    def size_bytes(self) -> int:
        return self.starts.nbytes + self.counts.nbytes + self.firsts.nbytes

    def stretches(self, sequence: int, length: int, spec: DatasetSpec) -> list[tuple[int, int]]:
        """Return neighbouring samples of the run as (offset, length) in bytes, as `TokenFile.stretches`."""
        begin, stop = sequence * spec.sequence_length, (sequence + length) * spec.sequence_length
        first = int(np.searchsorted(self.firsts, begin, side="right")) - 1
        last = int(np.searchsorted(self.firsts, stop, side="left"))
        skipped = np.maximum(begin - self.firsts[first:last], 0)
        taken = np.minimum(self.counts[first:last], stop - self.firsts[first:last]) - skipped
        kept = taken > 0
        offsets = (self.starts[first:last] + skipped * spec.token_size_bytes)[kept]
        return list(zip(offsets.tolist(), (taken[kept] * spec.token_size_bytes).tolist(), strict=True))


def records_of(layout: RecordLayout, header: bytes, spec: DatasetSpec) -> Records:
    """Return the samples of a shard, from its first `header_bytes`.

    Raises:
        CorruptData: the offset table contradicts the index, or a sample's size is not that of its columns.
    """
    name, count = layout.name, layout.sample_count
    numbers = np.frombuffer(header[: len(header) // _SIZE_BYTES * _SIZE_BYTES], dtype="<u4").astype(np.int64)
    if len(numbers) < count + 2 or numbers[0] != count:
        raise CorruptData(f"{name} does not begin with the offsets of {count} samples", name=name)
    offsets: Numbers = numbers[1 : count + 2]
    lengths = np.diff(offsets)
    if offsets[0] < layout.header_bytes or offsets[-1] != layout.size_bytes or (lengths < 0).any():
        raise CorruptData(f"{name} has offsets that do not ascend from its table up to its end", name=name)
    columns = lengths - layout.other_bytes
    tokens, shapes = _with_shapes(columns, spec) if layout.has_shape else (columns // spec.token_size_bytes, 0)
    wrong = tokens * spec.token_size_bytes + shapes != columns
    if wrong.any() or (tokens < 0).any():
        first = int(np.flatnonzero(wrong | (tokens < 0))[0])
        size = f"{int(lengths[first])} bytes, which its columns do not explain"
        raise CorruptData(f"{name}: sample {first} has {size}", name=name)
    firsts = np.concatenate(([0], np.cumsum(tokens)))
    return Records(offsets[:-1] + layout.before_bytes + shapes, tokens, firsts)


def _with_shapes(columns: Numbers, spec: DatasetSpec) -> tuple[Numbers, Any]:
    """Return the tokens of arrays that have these sizes together with their shapes, and the sizes of the shapes."""
    tokens, shapes = np.full(len(columns), -1, np.int64), np.zeros(len(columns), np.int64)
    for width, first, stop in _SHAPE_WIDTHS:
        count, rest = np.divmod(columns - 1 - width, spec.token_size_bytes)
        fits = (rest == 0) & (count >= first) & (count < stop)
        tokens[fits], shapes[fits] = count[fits], 1 + width
    return tokens, shapes


def shape_of(tokens: int) -> bytes:
    """Return the shape header of so many tokens."""
    exponent = 0 if tokens < 2**8 else 1 if tokens < 2**16 else 2
    return bytes([1 << 2 | exponent]) + tokens.to_bytes(2**exponent, "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsFile(TokenFile):
    """A shard whose samples differ in length. Where the run's samples begin is in its offset table."""

    layout: RecordLayout

    def stretches(self, sequence: int, length: int, spec: DatasetSpec) -> list[tuple[int, int]]:
        """Raise `InternalError`: where samples lie is in the table, which `Records.stretches` reads."""
        asked = f"{length} samples of {spec.sequence_length} tokens from {sequence} on"
        raise InternalError(f"{asked}, whose places in {self.name} are in its offset table")


class RecordTables:
    """The offset tables of a source's shards, read when they are needed. At most `MAX_TABLE_BYTES` are kept."""

    def __init__(self, source: ByteSource, spec: DatasetSpec) -> None:
        self._source = source
        self._spec = spec
        self._kept: OrderedDict[str, Records] = OrderedDict()
        self._kept_bytes = 0

    async def of(self, file: RecordsFile) -> Records:
        """Return a shard's samples. Raises what `records_of` and `ByteSource.read_into` raise."""
        held = self._kept.get(file.name)
        if held is not None:
            self._kept.move_to_end(file.name)
            return held
        header = await read(self._source, file.name, 0, file.layout.header_bytes)
        found = records_of(file.layout, header, self._spec)
        if int(found.firsts[-1]) != file.token_count:
            raise CorruptData(f"{file.name} changed: it had {file.token_count} tokens", name=file.name)
        if file.name not in self._kept:  # another call may have been faster
            self._kept[file.name] = found
            self._kept_bytes += found.size_bytes
        while self._kept_bytes > MAX_TABLE_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].size_bytes
        return found
