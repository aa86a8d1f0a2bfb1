"""The factors of an outcome's entries: by how much less than its batches a result counts in the merge.

Two things make a result count for less. One that is longer than `merge.norm_limit` times the usual one counts as if it
had that length: factor limit · usual ÷ length. The usual length is the median of the last applied round, as much longer
as learning rates have grown since, and for who took more steps as they are more; so it is known before a round's own
results arrive. And no result has a larger weight than the ceiling (`state/share_ceiling.py`) allows.

An entry's factor is the product, computed in float64 from journalled numbers and rounded once to float32, so that the
coordinator, its audit and every client find the same bits. Weights are not normalised again: what a factor takes
shortens the step, and lengthens no other result.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median_low

from epochal.state.config.state_file import StateFile
from epochal.state.share_ceiling import largest_part

ENOUGH = 3
"""With fewer results of proven clients a round does not define the usual length, and blames nobody."""
LEAST_FACTOR = 2.0**-126
"""The smallest normal float32: a result of any length keeps a factor above 0."""
RATE_PLACES = 3
OUTSIZED = 2.0
"""Multiple of the limit beyond which a result is no accident: it counts as a missed round of its client."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """An entry of an outcome, as far as its factor depends on it.

    Attributes:
        batches: number of the assignment's batches.
        steps: number of optimizer steps that its client took: `local_steps`, or one for each sample if they are fewer.
        norm: length of the result, √Σx².
        proven: whether a result of its client was applied before.
        isolated: whether its batches were tried alone, because clients had failed on them.
    """

    batches: int
    steps: int
    norm: float
    proven: bool
    isolated: bool = False


@dataclass(frozen=True, slots=True)
class UsualNorm:
    """The usual length of a result of so many optimizer steps, above 0; more steps may make it as much longer."""

    norm: float
    steps: int

    def grown(self, before: float, now: float) -> "UsualNorm | None":
        """Return the usual length after learning rates have grown: while they do, so do results.

        The ratio is rounded, because libraries differ in a cosine's last bits.

        Args:
            before: sum of the learning rates of that many steps, where the length was measured; with 0 nobody knows.
            now: the same in the next round.
        """
        return UsualNorm(self.norm * max(1.0, round(now / before, RATE_PLACES)), self.steps) if before else None

    def longest(self, limit: float, steps: int) -> float:
        """Return the length from which a result of so many steps counts for less."""
        return limit * self.norm * max(1.0, steps / self.steps)


def steps_of(state: StateFile, batches: int) -> int:
    """Return the number of optimizer steps that a client takes over so many batches."""
    return min(state.merge.local_steps, batches * state.config.data_indices_per_batch)


def usual_norm(entries: Sequence[Weighed], before: UsualNorm | None, limit: float) -> UsualNorm | None:
    """Return how long results usually are after a round, by which the next round's are judged; None if nobody knows.

    It is the median of the results of proven clients, none of which counts as longer than its limit, and at least half
    of what it was. So a few clients that are most of one round move it little.

    Args:
        entries: the round's results that are applied.
        before: the usual length in this round.
        limit: `merge.norm_limit`.
    """
    proven = [entry for entry in entries if entry.proven]
    if len(proven) < ENOUGH:
        return before
    found = _median(proven, before, limit)
    if before is None or not found.norm:
        return found if found.norm else before
    return UsualNorm(max(found.norm, before.norm / 2), found.steps)


def usual_in(entries: Sequence[Weighed], usual: UsualNorm | None) -> UsualNorm | None:
    """Return the usual length by which a round's results are judged: their own median if no round has shown one yet.

    Proven clients are the judges. If they are too few, one of them may be all of them: then the median of all results
    counts too, and the shorter of the two.
    """
    if usual is not None:
        return usual
    if len(entries) < ENOUGH:
        return None
    proven = [entry for entry in entries if entry.proven]
    judges = (proven,) if len(proven) >= ENOUGH else (proven, entries)
    found = [_median(judging, None, 0.0) for judging in judges if judging]
    return min((one for one in found if one.norm), key=lambda one: one.norm, default=None)


def _median(entries: Sequence[Weighed], before: UsualNorm | None, limit: float) -> UsualNorm:
    bounded = [
        min(entry.norm, before.longest(limit, entry.steps)) if before is not None and limit else entry.norm
        for entry in entries
    ]
    return UsualNorm(median_low(bounded), median_low([entry.steps for entry in entries]))


def factors_of(entries: Sequence[Weighed], ceiling: int | None, limit: float, usual: UsualNorm | None) -> list[str]:
    """Return the factor of each entry, in hex as `factor_hex` writes it.

    Args:
        entries: all of an outcome.
        ceiling: the round's, in millionths; None for the default.
        limit: `merge.norm_limit`; 0 for no limit.
        usual: the usual length in the round, as `usual_in` says; None for no limit.
    """
    most = most_batches(entries, ceiling)
    return [factor_of(entry, most, limit, usual) for entry in entries]


def most_batches(entries: Sequence[Weighed], ceiling: int | None) -> Fraction:
    """Return the largest number of batches that counts among these entries; `ceiling` is the round's."""
    sharing = [entry for entry in entries if not entry.isolated] or entries
    counts = [entry.batches for entry in sharing if entry.proven] or [entry.batches for entry in sharing]
    return largest_part(counts, sum(entry.batches for entry in entries), ceiling)


def factor_of(entry: Weighed, most: Fraction, limit: float, usual: UsualNorm | None) -> str:
    """Return the factor of one entry, of which at most `most` batches count; else as `factors_of`."""
    longest = usual.longest(limit, entry.steps) if limit and usual is not None else entry.norm
    by_norm = longest / entry.norm if entry.norm > longest else 1.0
    by_part = float(most / entry.batches) if entry.batches > most else 1.0
    return factor_hex(by_norm * by_part)


def factor_hex(factor: float) -> str:
    """Return the bits of the nearest float32, as 8 hex digits, the most significant first; at least `LEAST_FACTOR`."""
    return struct.pack(">f", max(factor, LEAST_FACTOR)).hex()


def norm_hex(norm: float) -> str:
    """Return the bits of a length as a float64, as 16 hex digits, the most significant first."""
    return struct.pack(">d", norm).hex()


def number_of(bits: str) -> float:
    """Return the number that `factor_hex` or `norm_hex` wrote."""
    (number,) = struct.unpack(">f" if len(bits) == 8 else ">d", bytes.fromhex(bits))
    return float(number)
