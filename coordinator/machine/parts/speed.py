"""The speed of a member, from its last deliveries as the coordinator timed them.

The rule kept here: a delivery of b batches takes start + b · time per batch + upload. The coordinator knows when the
round began, when the commitment came and when the bytes were there; what a client says of itself counts for nothing.
A client that may train before its round begins (`merge.delay`) is bound to its result as soon as it has one, so that
its time runs from one commitment to the next, without its wait for the round.
Everything is an integer, so that a journal replays to the same numbers.

The time per batch is the median of what consecutive deliveries of different sizes show, and the start the median of
what is left; with too few of them all the time is the batches'. The level is that of the last deliveries: the median
of all; if the last four depart from it, theirs; and if the very last one was much slower, that one. So who slows down
gets less in the next round, one slow round is soon forgotten, and a speed that jumps counts as the lower one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_high
from typing import NamedTuple

KEPT = 16
"""Number of a member's last deliveries from which its speed follows."""
LATELY = 4
DEPARTED = (1, 8)
"""Part of the usual time by which the last four deliveries must differ from it to count alone."""
SUDDENLY = (3, 2)
"""Multiple of the usual time from which the last delivery alone counts."""
UNLIKE = (1, 8)
"""Part of the batches by which two deliveries must differ to show the time of a batch."""
FEWEST_SLOPES = 3
"""Number of such pairs that are needed: one alone may be a change of speed."""
LEAST_SLOPE = (1, 4)
"""Least part of the time that is the batches': the rest may be the start."""
MAX_MS = 10**9
US_PER_MS = 1000
_UNIT = 1024


class TimedDelivery(NamedTuple):
    """A delivery as the coordinator timed it, without the time of its own check.

    Attributes:
        batches: number of batches of the assignment, at least 1.
        work_ms: from the start of the round, or from when the client could begin before it, until the client was bound
            to its result.
        upload_ms: from then on, or from the start of the round, until the bytes were there; 0 if they came along.
    """

    batches: int
    work_ms: int
    upload_ms: int


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a member: a round with b batches takes it `fixed_us + b * batch_us`.

    Attributes:
        deliveries: the last ones, the latest last.
        fixed_us: microseconds of the start and of the upload.
        batch_us: microseconds of a batch; 0 if nothing is known.
    """

    deliveries: tuple[TimedDelivery, ...] = ()
    fixed_us: int = 0
    batch_us: int = 0

    @property
    def is_known(self) -> bool:
        """Whether a delivery has shown it."""
        return bool(self.deliveries)

    def time_us(self, batches: int) -> int:
        """Return the microseconds that a round with so many batches takes."""
        return self.fixed_us + batches * self.batch_us

    def after(self, delivery: TimedDelivery) -> "Speed":
        """Return the speed after another delivery."""
        deliveries = (*self.deliveries, delivery)[-KEPT:]
        start_us, batch_us = _line([(one.batches, US_PER_MS * one.work_ms) for one in deliveries])
        expected = [max(1, start_us + batch_us * one.batches) for one in deliveries]
        ratios = [_UNIT * US_PER_MS * one.work_ms // time for one, time in zip(deliveries, expected, strict=True)]
        level = _level(ratios)
        upload_us = US_PER_MS * _level([one.upload_ms for one in deliveries])
        return Speed(deliveries, start_us * level // _UNIT + upload_us, max(1, batch_us * level // _UNIT))


UNKNOWN = Speed()


def delivered(
    batches: int, held_s: float, committed_s: float | None, check_ms: int | None, began_s: float = 0.0
) -> TimedDelivery:
    """Return the delivery of a result.

    Args:
        batches: of its assignment.
        held_s: seconds from the start of the round until the result was held and checked.
        committed_s: until its commitment came, if it came before; negative if that was before the round.
        check_ms: of these, the coordinator's own check.
        began_s: until the client could begin to train: 0, or negative.
    """
    held_ms = max(0, _ms(held_s) - (check_ms or 0))
    committed_ms = held_ms if committed_s is None else min(held_ms, _ms(committed_s))
    return TimedDelivery(batches, max(0, committed_ms - _ms(began_s)), held_ms - max(0, committed_ms))


def _ms(seconds: float) -> int:
    return max(-MAX_MS, min(round(1000 * seconds), MAX_MS))


def _line(points: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return start and time per batch, in microseconds, that deliveries of so many batches in so long show."""
    each = median_high([time // batches for batches, time in points])
    part, whole = UNLIKE
    found = [
        (time - before_us) // (batches - before)
        for (before, before_us), (batches, time) in pairwise(points)
        if batches != before and whole * abs(batches - before) >= part * max(batches, before)
    ]
    slopes = [slope for slope in found if slope > 0]  # more work in less time is another speed
    if len(slopes) < FEWEST_SLOPES:
        return 0, each
    part, whole = LEAST_SLOPE
    batch_us = min(max(median_high(slopes), each * part // whole), each)
    return max(0, median_high([time - batch_us * batches for batches, time in points])), batch_us


def _level(values: Sequence[int]) -> int:
    """Return the level of values, the latest last."""
    usual, lately, last = median_high(values), median_high(values[-LATELY:]), values[-1]
    part, whole = DEPARTED
    level = lately if whole * abs(lately - usual) > part * usual else usual
    part, whole = SUDDENLY
    return last if whole * last > part * level else level
