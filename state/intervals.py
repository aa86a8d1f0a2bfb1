"""Closed intervals of batch numbers (`BatchId`) and of data indices (`DataIds`), and arithmetic on lists of them.

Batch *b* covers the data indices `[b·k, (b+1)·k)`, where *k* is the run's `data_indices_per_batch`. The two kinds of
interval are two types; the factor between them is applied in this module alone.
The rule kept here: an interval is never empty, so "no batches" is always an empty tuple.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import Field

from epochal.state.errors import InvalidInput
from epochal.state.wire_document import WireDocument

MAX_INDEX = 2**63 - 1
"""The largest batch number, and the largest data index: both fit a signed 64-bit integer."""


@dataclass(frozen=True, slots=True, order=True)
class Interval(WireDocument):
    """A closed interval `[start, end]` of numbers from 0. Use one of the two kinds below.

    Raises:
        InvalidInput: if not `0 ≤ start ≤ end ≤ MAX_INDEX`; the caller's fault.
    """

    noun: ClassVar[str] = "interval"

    start: Annotated[int, Field(ge=0, le=MAX_INDEX)]
    end: Annotated[int, Field(ge=0, le=MAX_INDEX)]

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= MAX_INDEX:
            raise InvalidInput(
                f"{self.noun} [{self.start}, {self.end}] is not allowed: 0 ≤ start ≤ end ≤ {MAX_INDEX}",
                start=self.start,
                end=self.end,
            )

    def __str__(self) -> str:
        return f"[{self.start}, {self.end}]"

    @property
    def count(self) -> int:
        """Number of items."""
        return self.end - self.start + 1

    def covers(self, other: Self) -> bool:
        """Return whether it holds all of the other's numbers."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True, slots=True, order=True)
class BatchId(Interval):
    """A closed interval of batch numbers, from `start` to `end`; `BatchId(7, 7)` is one batch."""

    noun: ClassVar[str] = "batch interval"

    def to_data_ids(self, data_indices_per_batch: int) -> "DataIds":
        """Return the data indices that the batches cover: `[start · k, (end + 1) · k − 1]` for `k` in a batch."""
        return DataIds(self.start * data_indices_per_batch, (self.end + 1) * data_indices_per_batch - 1)

    def bisect(self) -> tuple["BatchId", "BatchId"]:
        """Return the two halves, the first the larger if the count is odd. Raise `InvalidInput` for a single batch."""
        if self.start == self.end:
            raise InvalidInput(f"batch interval {self} is a single batch and cannot be bisected")
        middle = (self.start + self.end) // 2
        return BatchId(self.start, middle), BatchId(middle + 1, self.end)


@dataclass(frozen=True, slots=True, order=True)
class DataIds(Interval):
    """A closed interval of data indices, from `start` to `end`, each the number of one sample. Iterates over them."""

    noun: ClassVar[str] = "data indices"

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end + 1))

    def pieces(self, size: int) -> Iterator["DataIds"]:
        """Yield consecutive pieces of `size` data indices; the last one may be smaller."""
        for start in range(self.start, self.end + 1, size):
            yield DataIds(start, min(start + size - 1, self.end))

    def to_batches(self, data_indices_per_batch: int) -> BatchId:
        """Return the batches that hold the data indices; the first and the last may hold others too."""
        return BatchId(self.start // data_indices_per_batch, self.end // data_indices_per_batch)


Kind = TypeVar("Kind", BatchId, DataIds)


def total_batches(intervals: Iterable[BatchId]) -> int:
    """Return the number of batches in the list, counted with repetition."""
    return sum(interval.count for interval in intervals)


def total_count(intervals: Iterable[Interval]) -> int:
    """Return how many numbers the list holds, counted with repetition."""
    return sum(interval.count for interval in intervals)


def take_positions(work: Sequence[BatchId], start: int, stop: int) -> tuple[BatchId, ...]:
    """Return the batches at positions `[start, stop)` of the concatenated list, as intervals in the same order.

    Positions number the batches of `work` one after the other: position 0 is the first batch of the first interval.

    Raises:
        InvalidInput: if not `0 ≤ start ≤ stop ≤ total_batches(work)`.
    """
    if not 0 <= start <= stop:
        raise InvalidInput(f"positions [{start}, {stop}) are not a range")
    taken: list[BatchId] = []
    offset = 0
    for interval in work:
        length = interval.count
        low, high = max(start - offset, 0), min(stop - offset, length)
        if low < high:
            taken.append(BatchId(interval.start + low, interval.start + high - 1))
        offset += length
        if offset >= stop:
            break
    if offset < stop:
        raise InvalidInput(f"positions [{start}, {stop}) reach beyond the {offset} batches of the list")
    return tuple(taken)


def coalesce(intervals: Iterable[Kind]) -> tuple[Kind, ...]:
    """Return the same set of numbers as sorted, disjoint, non-adjacent intervals. Overlaps are merged."""
    merged: list[Kind] = []
    for interval in sorted(intervals):
        if merged and interval.start <= merged[-1].end + 1:
            if interval.end > merged[-1].end:
                merged[-1] = type(interval)(merged[-1].start, interval.end)
        else:
            merged.append(interval)
    return tuple(merged)


def subtract(intervals: Iterable[Kind], removed: Iterable[Kind]) -> tuple[Kind, ...]:
    """Return the numbers of `intervals` that are not in `removed`; the order of `intervals` is kept."""
    holes = coalesce(removed)
    return tuple(piece for interval in intervals for piece in _without(interval, holes))


def _without(interval: Kind, holes: Sequence[Kind]) -> Iterator[Kind]:
    start = interval.start
    for hole in holes:
        if hole.end < start:
            continue
        if hole.start > interval.end:
            break
        if start < hole.start:
            yield type(interval)(start, hole.start - 1)
        start = hole.end + 1
    if start <= interval.end:
        yield type(interval)(start, interval.end)


def data_index_count(batch_count: int, data_indices_per_batch: int) -> int:
    """Return how many data indices this many batches cover."""
    return batch_count * data_indices_per_batch


def whole_batches(index_count: int, data_indices_per_batch: int) -> int:
    """Return how many data indices the whole batches among so many cover; one batch at least."""
    return max(index_count // data_indices_per_batch, 1) * data_indices_per_batch
