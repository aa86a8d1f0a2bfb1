"""The clients' shares of a round's batches, by their speeds: so that all end together.

The rule kept here: a client of which a result was applied takes T(b) for b batches (`parts/speed.py`). With the
smallest T for which there is enough, each gets as many as it does in T, within its bound: its claim, twice as many as
it delivered last, and the ceiling (`state/share_ceiling.py`). What is then too much is taken from those that come last
in the round's order. Where the bounds leave no room for the round, its batches are shared out in proportion to them:
within claims and ceiling if these leave room. Shares that nearly end together stay as they are, unless a client's bound
has just grown, so that clients can fetch their data ahead.

Nobody is left without work for ever. Where there are fewer batches than clients that can do one in about that time,
these have their turn, one batch each. And each round of `ROUNDS_PER_TURN` steps is one for all: there, slower ones get
a batch too. Who has waited longest comes first.

The others, of which no result was applied, get half of an equal part each where the round's other clients are about
equally fast; less, down to a quarter, the slower the slowest tenth of these are beside the median: a newcomer may be
like them. Together they get a quarter of the round at most (`state/assignment.py`).

Where results are verified (`coordinator/machine/replays/judging.py`), those that have earned nothing are among these
others, unless nobody of the round has, as in a run's first round. Everyone else has at most the part of an equal part
that it has earned, beside the one that has earned the most. Those that have earned less than half as much as that one
get a quarter of the proven ones' batches together, so that many keys that did little weigh little. Exams, which count
for nothing, get batches beside the round's own, so that many new keys take no work from the others.
"""

from collections.abc import Sequence
from operator import attrgetter
from statistics import median_high
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.speed import Speed
from epochal.state.assignment import NEWCOMERS_PART, for_newcomers, order_of
from epochal.state.config.verify_table import VerifyConfig
from epochal.state.documents import MAX_SHARE, Roster, RosterEntry
from epochal.state.share_ceiling import apportion, apportion_below, apportion_within, largest_part
from epochal.state.wire import ClientId, Seed

NEWCOMERS_PARTS = (4, 2)
"""A client of which no result was applied gets at least so many times less than an equal part, and at most; but one
batch at least."""
SLOWEST = (9, 10)
"""Part of the proven clients that are faster than those of which it is said that a newcomer may be like them."""
ROUNDS_PER_TURN = 32
"""Each round whose step this divides has work for clients that are too slow for the others. Such a round takes at most
about twice as long, so that they cost three percent of the time."""
PART_FOR_TURNS = (1, 2)
"""Largest part of such a round's batches that goes to them."""
ABOUT = (5, 4)
"""Multiple of the smallest time in which a client must do one batch to have its turn with the others."""
TRIED_AT_ONCE = 16
"""Number of times among which the smallest one is looked for in one step."""
NEARLY = (129, 128)
"""Multiple of the smallest time within which shares that end then stay as they are: so long all may wait for one."""

_Integers: TypeAlias = npt.NDArray[np.int64]


class Sharing(NamedTuple):
    """A client of the next round, as far as its share depends on it.

    Attributes:
        claim: the most batches that it says it takes.
        earned: the most that it has earned; 0 if it has delivered nothing.
        is_proven: whether a result of it was applied.
        last_step: the last step in which it had work.
        trusted: number of results by which it has earned a larger part, up to those needed for a full one; 0 for all
            where nothing is verified.
        has_exam: whether its result is an exam, which counts for nothing, if others are proven.
        entitled: the most that it has by what it has earned of a full part.
    """

    client_id: ClientId
    claim: int
    earned: int
    is_proven: bool
    last_step: int
    speed: Speed
    trusted: int = 0
    has_exam: bool = False
    entitled: int = MAX_SHARE

    @classmethod
    def of(cls, member: Member, verify: VerifyConfig | None, *, is_judged: bool = False) -> "Sharing":
        """Return a member as it is, where results are verified so; `is_judged`: by a verifier that is heard."""
        conduct, needed = member.conduct, 0 if verify is None else verify.rounds_on_probation
        return cls(
            member.client_id,
            member.claim,
            conduct.earned,
            member.is_proven,
            conduct.last_work_step,
            member.speed,
            min(member.trust.rounds, needed),
            verify is not None and member.trust.has_exam(is_judged=is_judged),
        )


def for_exams(clients: Sequence[Sharing], total: int) -> int:
    """Return how many batches a round has for exams, beside `total` that are to count."""
    if not any(one.has_exam for one in clients):
        return 0
    ordered = _as_trusted(clients)
    proven = [one for one in ordered if one.is_proven]
    examined = [one for one in ordered if one.has_exam and not one.is_proven]
    if not proven:
        return 0
    part, whole = NEWCOMERS_PART
    return min(sum(_parts_of(examined, proven, total // len(ordered))), max(1, total * part // (whole - part)))


def shared_roster(
    clients: Sequence[Sharing], total: int, ceiling: int | None, step: int, seed: Seed, exams: int = 0
) -> Roster:
    """Return the roster of a round: these clients with their shares.

    Args:
        clients: of the round, in any order.
        total: number of the batches that are shared out.
        ceiling: the largest part of one client, in millionths; None for the default.
        step: of the round.
        seed: that orders its proven clients.
        exams: how many of these batches the round has for exams (`for_exams`).
    """
    ordered = _as_trusted(clients)
    proven, equal = [one for one in ordered if one.is_proven], max(0, total - exams) // len(ordered)
    others = _parts_of([one for one in ordered if not one.is_proven], proven, equal)
    if not proven:
        shares = iter(_in_proportion(others, ordered, total, total, ceiling))
        return Roster(tuple(RosterEntry(one.client_id, next(shares), proven=False) for one in ordered), ceiling)
    for_proven = total - for_newcomers(sum(others), total)
    counts = _by_trust(trusted(proven, equal), for_proven, total, ceiling, step, seed)
    if others:
        of_proven, of_others = iter(counts), iter(others)
        counts = [next(of_proven if one.is_proven else of_others) for one in ordered]
    ids, are_proven = map(attrgetter("client_id"), ordered), map(attrgetter("is_proven"), ordered)
    return Roster(tuple(map(RosterEntry, ids, counts, are_proven)), ceiling)


def _in_proportion(
    bounds: Sequence[int], clients: Sequence[Sharing], total: int, whole: int, ceiling: int | None
) -> list[int]:
    """Return shares of clients whose bounds leave no room, in proportion to these: within their claims, if those do.

    `total`, `whole` and `ceiling` are as `apportion_below` takes them.
    """
    most = int(largest_part(apportion(bounds, total), whole, ceiling)) if total else 0
    limits = [min(one.claim, most) for one in clients]
    if sum(limits) < total:
        return apportion_below(bounds, total, whole, ceiling)
    return apportion_within(bounds, total, limits)


def _as_trusted(clients: Sequence[Sharing]) -> Sequence[Sharing]:
    """Return clients by their ids, those of them proven that have earned something, unless nobody has."""
    ordered = sorted(clients, key=attrgetter("client_id"))
    if not any(one.trusted for one in ordered):
        return ordered
    return [one._replace(is_proven=one.is_proven and one.trusted > 0) for one in ordered]


def _parts_of(others: Sequence[Sharing], proven: Sequence[Sharing], equal: int) -> list[int]:
    """Return how many batches each of the others would get, if there were enough of them."""
    part = _newcomers_part([one.speed for one in proven], equal) if others else 0
    return [min(part, one.claim, one.earned or part) for one in others]


def _newcomers_part(proven: Sequence[Speed], equal: int) -> int:
    """Return how many batches each newcomer gets beside clients of these speeds, of which an equal part is `equal`."""
    times = sorted(one.time_us(equal) for one in proven if one.is_known)
    part, per = SLOWEST
    usual, slow = (times[len(times) // 2], times[len(times) * part // per]) if times else (0, 1)
    least, most = NEWCOMERS_PARTS
    return max(1, equal // least, equal * usual // (most * max(1, slow)))


def trusted(proven: Sequence[Sharing], equal: int) -> Sequence[Sharing]:
    """Return proven clients that are entitled to no more than what they have earned of an equal part."""
    most = max(one.trusted for one in proven)
    if min(one.trusted for one in proven) == most:
        return proven
    return [one._replace(entitled=max(1, equal * one.trusted // most)) if one.trusted < most else one for one in proven]


def _by_trust(
    proven: Sequence[Sharing], total: int, whole: int, ceiling: int | None, step: int, seed: Seed
) -> list[int]:
    """Return the shares of proven clients, of which those on probation have a part together. Arguments: `_by_speed`."""
    most = max(one.trusted for one in proven)
    tested = [one for one in proven if 2 * one.trusted < most]
    if not tested:
        return _by_speed(proven, total, whole, ceiling, step, seed)
    for_tested = for_newcomers(sum(min(one.claim, one.earned) for one in tested), total)
    others = [one for one in proven if 2 * one.trusted >= most]
    of_others = iter(_by_speed(others, total - for_tested, whole, ceiling, step, seed))
    of_tested = iter(_by_speed(tested, for_tested, whole, ceiling, step, seed))
    return [next(of_tested if 2 * one.trusted < most else of_others) for one in proven]


def _by_speed(
    proven: Sequence[Sharing], total: int, whole: int, ceiling: int | None, step: int, seed: Seed
) -> list[int]:
    """Return the shares of proven clients, which add up to `total`; `whole` counts the batches of others too."""
    equal = [total // len(proven) + (place < total % len(proven)) for place in range(len(proven))]
    most = int(largest_part(equal, whole, ceiling))
    columns = [
        (one.claim, one.entitled, one.earned, one.last_step, one.speed.fixed_us, one.speed.batch_us) for one in proven
    ]
    claim, entitled, earned, last_step, fixed_us, batch_us = np.array(columns, np.int64).T
    bounds = np.minimum(np.minimum(claim, entitled), np.minimum(earned, min(most, MAX_SHARE)))
    if bounds.sum() <= total:
        return _in_proportion(bounds.tolist(), proven, total, whole, ceiling)
    order = np.array(order_of(seed, len(proven)), np.int64)
    timed = Timed(*(each[order] for each in (*_times(fixed_us, batch_us), bounds, step - last_step)))
    shares = np.zeros(len(proven), np.int64)
    last = earned[order] // 2
    shares[order] = ending_together(timed, total, last, is_for_all=step % ROUNDS_PER_TURN == 0)
    counts: list[int] = shares.tolist()
    return counts


def _times(fixed_us: _Integers, batch_us: _Integers) -> tuple[_Integers, _Integers]:
    """Return start and time per batch of each client; of one that is not known, the median of those that are."""
    known = batch_us > 0
    if known.all():
        return fixed_us, batch_us
    usual = [median_high(times[known].tolist() or [least]) for times, least in ((fixed_us, 0), (batch_us, 1))]
    return np.where(known, fixed_us, usual[0]), np.where(known, batch_us, usual[1])


class Timed(NamedTuple):
    """Clients' times in microseconds, bounds, and for how many steps each waits for work, in the round's order."""

    fixed_us: _Integers
    batch_us: _Integers
    most: _Integers
    waits: _Integers

    def within(self, time_us: int | _Integers) -> _Integers:
        """Return how many batches each does in a time, within its bound; in each of several, (times, 1)."""
        counts: _Integers = np.minimum(np.maximum((time_us - self.fixed_us) // self.batch_us, 0), self.most)
        return counts

    def ends_us(self, counts: _Integers) -> int:
        """Return when the last of those is done that have any of so many batches."""
        return int(np.max(np.where(counts > 0, self.fixed_us + counts * self.batch_us, 0)))


def ending_together(clients: Timed, total: int, last: _Integers, *, is_for_all: bool = False) -> _Integers:
    """Return how many batches each client gets.

    Args:
        clients: whose bounds leave room for more than `total`.
        total: number of batches, at least 0.
        last: the shares that stay if they nearly end together.
        is_for_all: whether slower clients have their turn.
    """
    if not total:
        return np.zeros_like(clients.most)
    counts = _soonest(clients, total)
    part, per = ABOUT
    soon_us = part * clients.ends_us(counts) // per
    is_able = clients.fixed_us + clients.batch_us <= soon_us
    slow = np.flatnonzero(~is_able & (counts == 0))
    if is_for_all and len(slow):
        part, per = PART_FOR_TURNS
        turns = _longest_waiting(clients, slow, total * part // per)
        most = clients.most.copy()
        most[turns] = 0
        counts = ending_together(clients._replace(most=most), total - len(turns), last)
        counts[turns] = 1
        return counts
    if np.count_nonzero(is_able) > total:
        counts = np.zeros_like(counts)
        counts[_longest_waiting(clients, np.flatnonzero(is_able & (clients.most > 0)), total)] = 1
        return counts
    part, per = NEARLY
    grows = np.any((counts > last) & ((counts == clients.most) | (last == 0)))
    stays = not grows and int(last.sum()) == total and bool(np.all(last <= clients.most))
    return last if stays and per * clients.ends_us(last) <= part * clients.ends_us(counts) else counts


def _longest_waiting(clients: Timed, places: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
    """Return so many of these clients at most: those that have waited longest, in the round's order."""
    found: npt.NDArray[np.intp] = places[np.argsort(-clients.waits[places], kind="stable")][:count]
    return found


def _soonest(clients: Timed, total: int) -> _Integers:
    """Return the batches with which the last client ends soonest; of several ways, that of the clients' order."""
    too_few_us, enough_us = 0, int(np.max(clients.fixed_us + clients.batch_us))
    while int(clients.within(enough_us).sum()) < total:
        too_few_us, enough_us = enough_us, 2 * enough_us
    while too_few_us + 1 < enough_us:
        step_us = (enough_us - too_few_us) // TRIED_AT_ONCE + 1
        tried_us = np.arange(too_few_us + step_us, enough_us, step_us)
        place = int(np.searchsorted(clients.within(tried_us[:, None]).sum(axis=1), total))
        if place < len(tried_us):
            enough_us = int(tried_us[place])
        too_few_us += place * step_us
    counts, before = clients.within(enough_us), clients.within(too_few_us)
    spare = total - int(before.sum())  # the first clients of the order take what all could do in the last microsecond
    gained = np.cumsum(counts - before)
    taken: _Integers = np.minimum(gained, spare)
    return before + np.diff(taken, prepend=0)
