"""The order of a mix whose weights change at given data indices; a pure function of the schedule.

A schedule is a list of phases, each with the data index from which it holds and the weights that hold from there.
Within a phase the sources take turns as in `data_providers/mixes/mixture.py`, counted from the phase's first data
index, so that each of them is within one sample of its share in every prefix *of the phase*. At a phase's beginning
every source continues with the sample that follows its last one: none is repeated and none left out. How many samples
of each source the phases before have taken is computed once, so that the place of any data index is found directly.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.mixes.mixture import PERIOD, MixtureOrder, Share, counts_of, quantisation_error, shares_of
from epochal.state.errors import InvalidInput
from epochal.state.intervals import MAX_INDEX, DataIds

MAX_PHASES = 128
"""Maximum number of phases of a mix."""

KEPT_ORDERS = 16
"""Maximum number of weights of which the order is kept in memory, about half a megabyte each."""


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

    @property
    def quantisation_error(self) -> float:
        """The largest difference between a source's weight and its share of the period, as a share of the whole."""
        return quantisation_error([weight for weight in self.weights if weight > 0])


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
        """Return each source's part in the data indices, as one interval; `OutOfRange` beyond the last data index."""
        return shares_of(self.locate, data_ids)


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
def _order_of(counts: tuple[int, ...]) -> MixtureOrder:
    return MixtureOrder(counts)
