"""Numbers of members as the phases need them, kept while single members change instead of counted anew.

A rest ends by itself, as time passes: numbers hold until the first rest does, and are counted anew then.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from epochal.coordinator.machine.parts.member import Member


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers of members.

    Attributes:
        available: that neither rest nor leave.
        ready: available ones that hold the model and the run's data.
        ready_before: of these, those that were so in an earlier epoch.
        awaited: available ones that are not ready, and were not late in the last Warmup.
        awaited_before: of these, those that were ready in an earlier epoch.
    """

    available: int = 0
    ready: int = 0
    ready_before: int = 0
    awaited: int = 0
    awaited_before: int = 0

    def plus(self, other: "Numbers", times: int = 1) -> "Numbers":
        """Return the sum with so many times the other numbers; -1 for the difference."""
        return Numbers(
            self.available + times * other.available,
            self.ready + times * other.ready,
            self.ready_before + times * other.ready_before,
            self.awaited + times * other.awaited,
            self.awaited_before + times * other.awaited_before,
        )


NONE = Numbers()


def numbers_of(member: Member, run_data: str | None, now_s: float) -> Numbers:
    """Return a member as numbers, each 0 or 1.

    Args:
        member: the member.
        run_data: the fingerprint of the data on which the run is agreed.
        now_s: seconds on the run's clock.
    """
    if not member.is_available(now_s):
        return NONE
    found = member.readiness
    is_ready = found.step is not None and found.data_fingerprint == run_data
    is_awaited = found.step is None and not found.was_late
    return Numbers(1, is_ready, is_ready and found.was_ready, is_awaited, is_awaited and found.was_ready)


@dataclass(frozen=True, slots=True)
class Tally:
    """Numbers of some members as of a time.

    Attributes:
        members: the mapping that was counted.
        run_data: the fingerprint of the data on which the run is agreed.
        since_s, until_s: times from and before which they hold.
    """

    members: object
    run_data: str | None
    since_s: float
    until_s: float
    numbers: Numbers

    def holds(self, members: object, run_data: str | None, now_s: float) -> bool:
        """Whether these are the numbers of the members now."""
        is_same = self.members is members and self.run_data == run_data
        return is_same and self.since_s <= now_s < self.until_s

    def changed(self, members: object, before: Member | None, after: Member | None, now_s: float) -> "Tally":
        """Return the tally of the members after one of them changed; None means no member."""
        numbers = self.numbers
        if before is not None:
            numbers = numbers.plus(numbers_of(before, self.run_data, now_s), -1)
        until_s = self.until_s
        if after is not None:
            numbers = numbers.plus(numbers_of(after, self.run_data, now_s))
            until_s = min(until_s, _rests_until_s(after, now_s))
        return replace(self, members=members, numbers=numbers, until_s=until_s)


def tally_of(members: object, counted: Iterable[Member], run_data: str | None, now_s: float) -> Tally:
    """Count the members of a mapping."""
    counts: Counter[Numbers] = Counter()
    until_s = math.inf
    for member in counted:
        counts[numbers_of(member, run_data, now_s)] += 1
        until_s = min(until_s, _rests_until_s(member, now_s))
    numbers = NONE
    for each, count in counts.items():
        numbers = numbers.plus(each, count)
    return Tally(members, run_data, now_s, until_s, numbers)


def _rests_until_s(member: Member, now_s: float) -> float:
    ends_s = member.conduct.rests_until_s
    return ends_s if ends_s is not None and now_s < ends_s else math.inf
