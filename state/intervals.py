"""Batch IDs: closed intervals of batch numbers, and the arithmetic on ordered lists of them.

Batch *b* covers the data indices `[b·k, (b+1)·k)`, where *k* is `data_indices_per_batch` (DESIGN, "Words").
The rule kept here: an interval is never empty, so "no batches" is an empty tuple and nothing else.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from state.errors import InvalidInput

MAX_BATCH_NUMBER = 2**63 - 1
"""The largest batch number; data indices stay inside a signed 64-bit integer on every platform."""


@dataclass(frozen=True, slots=True, order=True)
class BatchId:
    """A closed interval `[start, end]` of batch numbers; `BatchId(7, 7)` is one batch.

    Raises:
        InvalidInput: if not `0 ≤ start ≤ end ≤ MAX_BATCH_NUMBER`; the caller's fault.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= MAX_BATCH_NUMBER:
            raise InvalidInput(
                f"batch interval [{self.start}, {self.end}] is not allowed: 0 ≤ start ≤ end ≤ {MAX_BATCH_NUMBER}",
                start=self.start,
                end=self.end,
            )

    def __len__(self) -> int:
        return self.end - self.start + 1

    def __str__(self) -> str:
        return f"[{self.start}, {self.end}]"

    def __contains__(self, batch: int) -> bool:
        return self.start <= batch <= self.end

    def data_indices(self, data_indices_per_batch: int) -> range:
        """The data indices that the interval covers, as a half-open range of `len(self) · k` integers."""
        return range(self.start * data_indices_per_batch, (self.end + 1) * data_indices_per_batch)

    def overlaps(self, other: "BatchId") -> bool:
        return self.start <= other.end and other.start <= self.end

    def covers(self, other: "BatchId") -> bool:
        return self.start <= other.start and other.end <= self.end

    def bisect(self) -> tuple["BatchId", "BatchId"]:
        """The two halves; the first is the larger when the length is odd. Needs at least two batches."""
        if self.start == self.end:
            raise InvalidInput(f"batch interval {self} is a single batch and cannot be bisected")
        middle = (self.start + self.end) // 2
        return BatchId(self.start, middle), BatchId(middle + 1, self.end)


def total_batches(intervals: Iterable[BatchId]) -> int:
    """The number of batches in the list, counted with repetition."""
    return sum(interval.end - interval.start + 1 for interval in intervals)


def take_positions(work: Sequence[BatchId], start: int, stop: int) -> tuple[BatchId, ...]:
    """The batches at positions `[start, stop)` of the concatenated list, as intervals in the same order.

    Positions number the batches of `work` one after the other: position 0 is the first batch of the first interval.

    Raises:
        InvalidInput: if not `0 ≤ start ≤ stop ≤ total_batches(work)`.
    """
    if not 0 <= start <= stop:
        raise InvalidInput(f"positions [{start}, {stop}) are not a range")
    taken: list[BatchId] = []
    offset = 0
    for interval in work:
        length = len(interval)
        low, high = max(start - offset, 0), min(stop - offset, length)
        if low < high:
            taken.append(BatchId(interval.start + low, interval.start + high - 1))
        offset += length
        if offset >= stop:
            break
    if offset < stop:
        raise InvalidInput(f"positions [{start}, {stop}) reach beyond the {offset} batches of the list")
    return tuple(taken)


def coalesce(intervals: Iterable[BatchId]) -> tuple[BatchId, ...]:
    """The same set of batches as sorted, disjoint, non-adjacent intervals. Overlaps are merged, not reported."""
    merged: list[BatchId] = []
    for interval in sorted(intervals):
        if merged and interval.start <= merged[-1].end + 1:
            if interval.end > merged[-1].end:
                merged[-1] = BatchId(merged[-1].start, interval.end)
        else:
            merged.append(interval)
    return tuple(merged)


def first_overlap(intervals: Iterable[BatchId]) -> BatchId | None:
    """The first batches that stand in the list twice, or None when the intervals are pairwise disjoint."""
    previous: BatchId | None = None
    for interval in sorted(intervals):
        if previous is not None and interval.start <= previous.end:
            return BatchId(interval.start, min(interval.end, previous.end))
        previous = interval
    return None


def subtract(intervals: Iterable[BatchId], removed: Iterable[BatchId]) -> tuple[BatchId, ...]:
    """The batches of `intervals` that are not in `removed`; the order of `intervals` is kept."""
    holes = coalesce(removed)
    return tuple(piece for interval in intervals for piece in _without(interval, holes))


def _without(interval: BatchId, holes: Sequence[BatchId]) -> Iterator[BatchId]:
    start = interval.start
    for hole in holes:
        if hole.end < start:
            continue
        if hole.start > interval.end:
            break
        if start < hole.start:
            yield BatchId(start, hole.start - 1)
        start = hole.end + 1
    if start <= interval.end:
        yield BatchId(start, interval.end)
