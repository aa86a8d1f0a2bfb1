"""The order of a mix: the source of each data index, and which of its samples; a pure function of the weights.

Weights become integer counts in a period of `PERIOD` data indices, and each source has its count in every period.
Within the period the sources take turns so that in *every* prefix of the order each source is within one sample of its
share. That is the uniprocessor case of proportionate-fair scheduling (Baruah, Cohen, Plaxton and Varvel, 1996): sample
*j* of a source with count *c* may be anywhere in `[⌊j·P/c⌋, ⌈(j+1)·P/c⌉)`, and taking the earliest end first meets
every such window. The same weights give the same order on every machine; golden vectors pin it.

Weights may change at given data indices: a schedule is a list of phases, each with the data index from which it holds.
Within a phase the sources take turns as above, counted from the phase's first data index. At a phase's beginning every
source continues with the sample that follows its last one: none is repeated and none left out. How many samples of each
source the phases before have taken is computed once, so that the place of any data index is found directly.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.protocol import OutOfRange
from epochal.state.errors import InvalidInput
from epochal.state.intervals import MAX_INDEX, DataIds

PERIOD = 65_536
MAX_SOURCES = 1024
MAX_PHASES = 128
"""Maximum number of phases of a mix."""

MAX_NAMES_SHOWN = 10
KEPT_ORDERS = 16
"""Maximum number of weights of which the order is kept in memory, about half a megabyte each."""


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


@dataclass(frozen=True, slots=True)
class MixPhase:
    """The weights of a mix from one data index on.

    Attributes:
        start: the first data index of the phase.
        weights: each source's weight, in the order of the sources; 0 for a source without samples in this phase.
    """

    start: int
    weights: tuple[float, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Each source's samples in a period of `PERIOD` data indices: as `counts_of`, and 0 for a weight of 0.

        Raises:
            InvalidInput: no weight is above 0, or one is negative or not finite; the fault of its author.
        """
        for number, weight in enumerate(self.weights):
            if not 0 <= weight < np.inf:
                raise InvalidInput(f"source {number} of the mix has weight {weight}; allowed: a finite number from 0")
        left = iter(counts_of([weight for weight in self.weights if weight > 0]))
        return tuple(next(left) if weight > 0 else 0 for weight in self.weights)


def with_later(
    phases: Sequence[MixPhase], names: Sequence[str], later: Sequence[tuple[int, Mapping[str, float]]]
) -> tuple[MixPhase, ...]:
    """Return the phases of a mix whose weights its run has changed: from the first change on, those alone hold.

    Args:
        phases: as its author wrote them.
        names: of the sources.
        later: the data index from which each change holds, ascending, with weights by the sources' names, or by their
            numbers from 0; a source that is not named has none.

    Raises:
        InvalidInput: a change names another source; its operator's fault.
    """
    numbers = {str(number): number for number in range(len(names))} | {name: at for at, name in enumerate(names)}
    found = [phase for phase in phases if not later or phase.start < later[0][0]]
    for start, weights in later:
        unknown = sorted(weights.keys() - numbers.keys())
        if unknown:
            known = ", ".join(f"{name!a}" for name in names[:MAX_NAMES_SHOWN])
            raise InvalidInput(f"the mix has no source {unknown[0]!a}; its sources are {known}")
        by_number = {numbers[name]: weight for name, weight in weights.items()}
        found.append(MixPhase(start, tuple(by_number.get(number, 0.0) for number in range(len(names)))))
    return tuple(found)


class ScheduledOrder:
    """The order of a mix with a schedule. Memory grows with phases × sources; a request costs a search of the phases.

    Args:
        phases: in the order of their data indices, the first from 0.

    Attributes:
        starts: the first data index of each phase that changes the order; others are left out.
        counts: each of those phases' counts in a period, by source.

    Raises:
        InvalidInput: there are no phases or too many, they do not begin at 0 or do not ascend, or weights are wrong;
            the fault of the schedule's author.
    """

    def __init__(self, phases: Sequence[MixPhase]) -> None:
        check_starts([phase.start for phase in phases])
        kept = [(phases[0].start, phases[0].counts)]
        for phase in phases[1:]:
            before, counts = kept[-1]
            # The same weights continue as before, if the new phase's first period begins where one would anyway.
            if phase.counts != counts or (phase.start - before) % PERIOD:
                kept.append((phase.start, phase.counts))
        self.starts: tuple[int, ...] = tuple(start for start, _ in kept)
        self.counts: tuple[tuple[int, ...], ...] = tuple(counts for _, counts in kept)
        bases = [np.zeros(len(self.counts[0]), dtype=np.int64)]
        for counts, start, end in zip(self.counts, self.starts, self.starts[1:], strict=False):
            bases.append(bases[-1] + _taken(counts, end - start))
        self._bases = np.stack(bases)
        self._starts = np.array(self.starts, dtype=np.int64)

    def locate(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the source of each data index, and the source's own data index; both int64, shaped like `indices`."""
        phases = np.searchsorted(self._starts, indices, side="right") - 1
        sources, locals_ = np.empty_like(indices), np.empty_like(indices)
        for phase in np.unique(phases).tolist():
            of_phase = phases == phase
            within = indices[of_phase] - self._starts[phase]
            found, ranks = _order_of(self.counts[phase]).locate(within)
            sources[of_phase], locals_[of_phase] = found, self._bases[phase][found] + ranks
        return sources, locals_

    def shares(self, data_ids: DataIds) -> list[Share]:
        """Return each source's part in the data indices, as one interval.

        Raises:
            OutOfRange: beyond the last data index; the caller's fault.
        """
        if data_ids.end >= MAX_INDEX:
            raise OutOfRange(f"data index {data_ids.end} is not below {MAX_INDEX}")
        sources, locals_ = self.locate(np.arange(data_ids.start, data_ids.end + 1, dtype=np.int64))
        order = np.argsort(sources, kind="stable")
        found: list[Share] = []
        for rows in np.split(order, np.flatnonzero(np.diff(sources[order])) + 1):
            local = DataIds(int(locals_[rows[0]]), int(locals_[rows[-1]]))
            found.append(Share(int(sources[rows[0]]), local, rows))
        return found


def check_starts(starts: Sequence[int]) -> None:
    """Raise `InvalidInput` unless these can be the first data indices of a schedule's phases."""
    if not 1 <= len(starts) <= MAX_PHASES:
        raise InvalidInput(f"a schedule of {len(starts)} phases; allowed: 1 to {MAX_PHASES}")
    if starts[0] != 0:
        raise InvalidInput(f"phase 0 is from data index {starts[0]}; allowed: 0, where every mix begins")
    for number, (before, start) in enumerate(pairwise(starts), 1):
        if not before < start < MAX_INDEX:
            allowed = f"above {before}, where the phase before it begins, and below {MAX_INDEX}"
            raise InvalidInput(f"phase {number} is from data index {start}; allowed: {allowed}")


def _taken(counts: tuple[int, ...], length: int) -> NDArray[np.int64]:
    """Return how many samples of each source the first `length` data indices of a phase take."""
    periods, rest = divmod(length, PERIOD)
    taken = periods * np.array(counts, dtype=np.int64)
    if rest:
        sources, _ = _order_of(counts).locate(np.arange(rest, dtype=np.int64))
        taken += np.bincount(sources, minlength=len(counts))
    return taken


@lru_cache(maxsize=KEPT_ORDERS)
def _order_of(counts: tuple[int, ...]) -> "_PeriodOrder":
    return _PeriodOrder(counts)


class _PeriodOrder:
    """The order of a mix with the counts of `counts_of`. A count may be 0. Memory: `PERIOD` small integers."""

    def __init__(self, counts: tuple[int, ...]) -> None:
        self.counts = np.array(counts, dtype=np.int64)
        self._sources = _period(counts)
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
