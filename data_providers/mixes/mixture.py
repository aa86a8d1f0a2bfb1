"""The order of a mix: the source of each data index, and which of its samples; a pure function of the weights.

Weights become integer counts in a period of `PERIOD` data indices, and each source has its count in every period.
Within the period the sources take turns so that in *every* prefix of the order each source is within one sample of its
share. That is the uniprocessor case of proportionate-fair scheduling (Baruah, Cohen, Plaxton and Varvel, 1996): sample
*j* of a source with count *c* may be anywhere in `[⌊j·P/c⌋, ⌈(j+1)·P/c⌉)`, and taking the earliest end first meets
every such window. The same weights give the same order on every machine; golden vectors pin it.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.protocol import OutOfRange
from epochal.state.errors import InvalidInput
from epochal.state.intervals import MAX_INDEX, DataIds

PERIOD = 65_536
MAX_SOURCES = 1024

Numbers: TypeAlias = NDArray[np.int64]
Locate: TypeAlias = Callable[[Numbers], tuple[Numbers, Numbers]]
"""Returns the source of each data index, and the source's own data index."""


@dataclass(frozen=True, slots=True)
class Share:
    """A contiguous part of one source's own data indices, and their rows in the answer.

    Attributes:
        source: the source's position in the mix.
        local: the source's data indices.
        rows: int64, `(count,)`: the row in the answer of each of them, ascending.
    """

    source: int
    local: DataIds
    rows: NDArray[np.int64]


def counts_of(weights: Sequence[float]) -> tuple[int, ...]:
    """Return each source's count in a period: the weights' shares of `PERIOD`, rounded by largest remainder.

    A count is at least 1, however small its weight; the earlier of two equal remainders is rounded up.

    Raises:
        InvalidInput: no source, too many, or a weight that is not a finite number above 0; the fault of its author.
    """
    if not 1 <= len(weights) <= MAX_SOURCES:
        raise InvalidInput(f"a mix of {len(weights)} sources; allowed: 1 to {MAX_SOURCES}")
    for number, weight in enumerate(weights):
        if not np.isfinite(weight) or weight <= 0:
            raise InvalidInput(f"source {number} of the mix has weight {weight}; allowed: a finite number above 0")
    exact = [Fraction(weight) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    parts = [weight.numerator * (scale // weight.denominator) for weight in exact]  # whole numbers, same proportions
    total = sum(parts)
    counts = [max(1, part * PERIOD // total) for part in parts]
    left = PERIOD - sum(counts)
    step = 1 if left > 0 else -1
    # The source furthest below (or above) its share takes (or gives) one; every source keeps at least one.
    furthest_first = [
        (step * (count * total - part * PERIOD), number)
        for number, (part, count) in enumerate(zip(parts, counts, strict=True))
        if step > 0 or count > 1
    ]
    heapq.heapify(furthest_first)
    for _ in range(abs(left)):
        distance, number = heapq.heappop(furthest_first)
        counts[number] += step
        if step > 0 or counts[number] > 1:
            heapq.heappush(furthest_first, (distance + total, number))
    return tuple(counts)


def quantisation_error(weights: Sequence[float]) -> float:
    """Return the largest difference between a source's weight and its share of the period, as a share of the whole."""
    total = sum(Fraction(weight) for weight in weights)
    pairs = zip(weights, counts_of(weights), strict=True)
    return float(max(abs(Fraction(weight) / total - Fraction(count, PERIOD)) for weight, count in pairs))


class MixtureOrder:
    """The order of a mix with the counts of `counts_of`. A count may be 0. Memory: `PERIOD` small integers."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = np.array(counts, dtype=np.int64)
        self._sources = _period(tuple(counts))
        # The rank of each place among those of its source: a stable sort by source keeps their order.
        by_source = np.argsort(self._sources, kind="stable")
        starts = np.concatenate(([0], np.cumsum(self.counts)[:-1]))
        self._ranks = np.empty(PERIOD, dtype=np.int32)
        self._ranks[by_source] = np.arange(PERIOD) - np.repeat(starts, self.counts)

    def locate(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each data index, and the source's own data index; both int64, shaped like `indices`."""
        periods, places = np.divmod(indices, PERIOD)
        sources = self._sources[places].astype(np.int64)
        return sources, periods * self.counts[sources] + self._ranks[places]

    def shares(self, data_ids: DataIds) -> list[Share]:
        """Return each source's part in the data indices, as one interval; `OutOfRange` beyond the last data index."""
        return shares_of(self.locate, data_ids)


def shares_of(locate: Locate, data_ids: DataIds) -> list[Share]:
    """Return each source's part in the data indices by an order in which every source is read in its own.

    Raises:
        OutOfRange: beyond the last data index; the caller's fault.
    """
    if data_ids.end >= MAX_INDEX:
        raise OutOfRange(f"data index {data_ids.end} is not below {MAX_INDEX}")
    sources, locals_ = locate(np.arange(data_ids.start, data_ids.end + 1, dtype=np.int64))
    order = np.argsort(sources, kind="stable")
    found: list[Share] = []
    for rows in np.split(order, np.flatnonzero(np.diff(sources[order])) + 1):
        local = DataIds(int(locals_[rows[0]]), int(locals_[rows[-1]]))
        found.append(Share(int(sources[rows[0]]), local, rows))
    return found


@lru_cache(maxsize=16)
def _period(counts: tuple[int, ...]) -> NDArray[np.uint16]:
    """Return the source at each place of the period: the one whose next sample's window ends first."""
    places = np.empty(PERIOD, dtype=np.uint16)
    waiting = [
        (0, number) for number, count in enumerate(counts) if count
    ]  # by the beginning of the next sample's window
    ready: list[tuple[int, int]] = []  # by its end
    taken = [0] * len(counts)
    heapq.heapify(waiting)
    for place in range(PERIOD):
        while waiting and waiting[0][0] <= place:
            _, number = heapq.heappop(waiting)
            heapq.heappush(ready, (-(-(taken[number] + 1) * PERIOD // counts[number]), number))
        _, number = heapq.heappop(ready)
        places[place] = number
        taken[number] += 1
        if taken[number] < counts[number]:
            heapq.heappush(waiting, (taken[number] * PERIOD // counts[number], number))
    places.setflags(write=False)
    return places
