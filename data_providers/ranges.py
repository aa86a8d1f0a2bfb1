"""Plan the byte ranges of a request for `ranged.py`, so that its samples come in few answers of bounded size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from data_providers.formats.token_file import TokenFile
from data_providers.order import Extent
from data_providers.protocol import DatasetSpec

MAX_RANGE_BYTES = 16 * 1024**2
"""A longer stretch is cut, so that its parts come side by side."""

MAX_GAP_BYTES = 16 * 1024
"""Maximum number of unwanted bytes between two ranges that are asked for as one."""


class Piece(NamedTuple):
    """The destination of a part of a range: `length` bytes from `source` in the range to `target` in the answer."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `[start, stop)` of a file, and what of them is wanted where.

    Attributes:
        file: the file's position in the dataset's order.
        start, stop: half-open, in bytes of the file.
        pieces: what is wanted; never empty.
    """

    file: int
    start: int
    stop: int
    pieces: tuple[Piece, ...]


def plan_ranges(extents: Sequence[Extent], files: Sequence[TokenFile], spec: DatasetSpec) -> list[ByteRange]:
    """The byte ranges that hold the extents, by file and offset; neighbours and small gaps make one range.

    Args:
        extents: the places of a request, in the order of the answer.
        files: the dataset's files, in its order.
        spec: how samples are cut.
    """
    wanted = sorted(_cut_long(extents, files, spec))
    ranges: list[ByteRange] = []
    pieces: list[Piece] = []
    file, start, stop = -1, 0, 0
    for next_file, offset, target, length in wanted:
        joins = next_file == file and offset <= stop + MAX_GAP_BYTES and offset + length - start <= MAX_RANGE_BYTES
        if not joins:
            if pieces:
                ranges.append(ByteRange(file, start, stop, tuple(pieces)))
            file, start, stop, pieces = next_file, offset, offset, []
        pieces.append(Piece(offset - start, target, length))
        stop = max(stop, offset + length)
    if pieces:
        ranges.append(ByteRange(file, start, stop, tuple(pieces)))
    return ranges


def _cut_long(
    extents: Sequence[Extent], files: Sequence[TokenFile], spec: DatasetSpec
) -> Iterator[tuple[int, int, int, int]]:
    """Each extent as (file, offset in the file, offset in the answer, length), none longer than `MAX_RANGE_BYTES`."""
    target = 0
    for extent in extents:
        for offset, left in files[extent.file].stretches(extent.sequence, extent.length, spec):
            while left:
                length = min(left, MAX_RANGE_BYTES)
                yield extent.file, offset, target, length
                offset, target, left = offset + length, target + length, left - length
