"""How long a round may take: the time limit of RoundTrain follows the rounds that were applied lately.

Theory of operation. The time of a round is the time until half of its batches were delivered, plus the time from the
last result until a quorum had attested it. So less than half of the work cannot make the run slower than that multiple
of what the others need, whoever holds it back. When the limit itself was too short, because the work or the clients
have changed, more than half of the batches are missing: then it doubles until results arrive. Only the batches of
clients that delivered before count here (the electorate): keys cost nothing, and any number of silent newcomers must
not look like a limit that is too short. A client that began before the round (`merge.delay`) counts with the time that
its work took it, as its speed does. Clients that are slower than most of the work are waited for, too, as long as their
speeds say that they come: they have no more work than what the others could not do sooner
(`coordinator/machine/shares.py`). Newcomers themselves have as long again as the others took; but where a round has
waited for them in vain, the next ones do not wait for them, for so long that this costs three percent of the time, and
less each time that it is in vain again; until a newcomer delivers.
"""

from statistics import median

from epochal.coordinator.machine.parts.phase_clock import PhaseClock
from epochal.coordinator.machine.parts.round import MessageTimes, Round
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.run_pace import RunPace
from epochal.coordinator.machine.parts.train_times import MOSTLY, TrainTimes
from epochal.state.intervals import total_batches

TRAIN_TIMES_KEPT = 16
TRAIN_TIMES_NEEDED = 5
"""With fewer applied rounds than this, `max_round_train_time` is the limit."""
LIMIT_PER_MEDIAN = 2.0
"""Multiple of the median time of the last rounds after which a round is closed: members that deliver at the last
moment, or not at all, make a run take at most about twice its time."""
LIMIT_PER_LAST = 2.0
"""Multiple of the last round's time for which a round stays open: the limit follows at once when rounds get longer."""
LIMIT_PER_EXPECTED = 1.5
"""Multiple of the time within which the slowest client is expected, by its speed, for which a round stays open."""
SHORTEST_LIMIT_S = 3.0
"""Limit for rounds however short: a lost packet, a pause of a process or a busy machine costs this long."""
TIME_FOR_NEWCOMERS_S = 1.0
"""Shortest time from the start of a round for which its newcomers are waited for."""
ROUNDS_PER_WAIT = 30.0
"""Multiple of the time for which a round has waited for newcomers in vain, in which no other round waits for them."""
MAX_WAIT_DOUBLINGS = 4
"""The multiple doubles with each further wait in vain, this often at most."""
MAX_DOUBLINGS = 16
"""Maximum number of times that a time limit doubles which was too short."""


def train_limit_s(pace: RunPace, most_s: float, expected_s: float = 0.0) -> float:
    """Return the time limit of the RoundTrain that begins now, at most `most_s`."""
    times = pace.train_times
    if len(times) < TRAIN_TIMES_NEEDED:
        return most_s
    usual = max(LIMIT_PER_MEDIAN * median(times), LIMIT_PER_LAST * times[-1], LIMIT_PER_EXPECTED * expected_s)
    return min(most_s, max(SHORTEST_LIMIT_S, usual) * 2.0 ** min(pace.slow_rounds, MAX_DOUBLINGS))


def expected_s(current: Round, members: RunMembers) -> float:
    """Return the seconds within which all clients are expected that had work in the round before, by their speeds.

    Who had none, because others do it sooner, is not waited for longer than usual in its turn.
    """
    found = 0
    for client_id, given in current.tasks.plan.assignments.items():
        member = members.by_id.get(client_id) if given else None
        if member is not None and member.speed.is_known and member.conduct.last_work_step >= current.number.step - 1:
            found = max(found, member.speed.time_us(total_batches(given)))
    return found / 1e6


def elapsed_s(current: Round, clock: PhaseClock) -> float:
    """Return the seconds since the round under way began, without outages of the coordinator."""
    return (current.times.trained_s or 0.0) + clock.in_phase_s


def only_newcomers_are_late(pace: RunPace, clock: PhaseClock, times: TrainTimes) -> bool:
    """Whether RoundTrain waits only for clients that never delivered, and they have had their time."""
    if times.settled_in_s is None:
        return False
    if pace.newcomers_from_s is not None and clock.phase_started_s < pace.newcomers_from_s:
        return True
    return clock.in_phase_s >= max(TIME_FOR_NEWCOMERS_S, 2 * times.settled_in_s)


def is_slow(current: Round) -> bool:
    """Whether time closed the round without over half of the electorate's batches: its limit was too short."""
    return current.times.timed_out and 2 * current.times.delivered_batches < current.tasks.plan.decisive_count


def with_pace(pace: RunPace, clock: PhaseClock, current: Round, *, is_applied: bool) -> RunPace:
    """Return the pace with the time of a round that ends now, in RoundWitness."""
    times = current.times
    slow_rounds = min(pace.slow_rounds + 1, MAX_DOUBLINGS) if is_slow(current) else 0
    waits_in_vain, newcomers_from_s = pace.waits_in_vain, pace.newcomers_from_s
    if is_applied and not current.tasks.plan.electorate.issuperset(current.results.verified):
        waits_in_vain = 0
    if times.waited_s:
        newcomers_from_s = clock.now_s + ROUNDS_PER_WAIT * 2.0**waits_in_vain * times.waited_s
        waits_in_vain = min(waits_in_vain + 1, MAX_WAIT_DOUBLINGS)
    train_times = pace.train_times
    if is_applied and times.train_s is not None:
        train_s = times.train_s + clock.in_phase_s
        if current.tasks.starts is not None and times.mostly_in_s is not None:
            train_s += _mostly_took_s(current) - times.mostly_in_s
        train_times = (*train_times, train_s)[-TRAIN_TIMES_KEPT:]
    return RunPace(train_times, slow_rounds, newcomers_from_s, waits_in_vain)


def _mostly_took_s(current: Round) -> float:
    """Return the time within which most of the electorate's batches were done and delivered, each by its client."""
    plan, count, took_s = current.tasks.plan, 0, 0.0
    known = ((one, current.arrivals[one]) for one in current.results.verified if one in plan.electorate)
    found = sorted((_took_s(times), total_batches(plan.assignments[one])) for one, times in known)
    part, whole = MOSTLY
    for found_s, batches in found:
        count, took_s = count + batches, found_s
        if whole * count >= part * plan.decisive_count:
            break
    return took_s


def _took_s(times: MessageTimes) -> float:
    """Return how long a client took from when it could begin until its result was held, without its wait between."""
    assert times.delivered_s is not None, "a verified result was delivered"
    waited_s = 0.0 if times.committed_s is None else max(0.0, -times.committed_s)
    return times.delivered_s - times.began_s - waited_s
