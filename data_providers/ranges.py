"""Which byte ranges to ask for, so that a request's samples come in few answers of bounded size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from data_providers.formats.token_file import TokenFile
from data_providers.order import Run
from data_providers.protocol import DatasetSpec

MAX_RANGE_BYTES = 16 * 1024**2
"""A longer stretch is cut, so that its parts come side by side."""

MAX_GAP_BYTES = 16 * 1024
"""Ranges with at most so many unwanted bytes between them are asked for as one."""


class Piece(NamedTuple):
    """Where a part of a range belongs: `length` bytes from `source` in the range to `target` in the answer."""

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


def plan_ranges(runs: Sequence[Run], files: Sequence[TokenFile], spec: DatasetSpec) -> list[ByteRange]:
    """The byte ranges that hold the runs, by file and offset; neighbours and small gaps make one range.

    Args:
        runs: the places of a request, in the order of the answer.
        files: the dataset's files, in its order.
        spec: how samples are cut.
    """
    wanted = sorted(_cut_long(runs, files, spec))
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


def _cut_long(runs: Sequence[Run], files: Sequence[TokenFile], spec: DatasetSpec) -> list[tuple[int, int, int, int]]:
    """Each run as (file, offset in the file, offset in the answer, length), none longer than `MAX_RANGE_BYTES`."""
    parts: list[tuple[int, int, int, int]] = []
    target = 0
    for run in runs:
        for offset, left in files[run.file].stretches(run.sequence, run.length, spec):
            while left:
                length = min(left, MAX_RANGE_BYTES)
                parts.append((run.file, offset, target, length))
                offset, target, left = offset + length, target + length, left - length
    return parts
