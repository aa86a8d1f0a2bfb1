"""How long a round may take: the time limit of RoundTrain follows the rounds that were applied lately.

Theory of operation. The time of a round is the time until half of its batches were delivered, plus the time from the
last result until a quorum had attested it. So less than half of the work cannot make the run slower than that multiple
of what the others need, whoever holds it back. When the limit itself was too short, because the work or the clients
have changed, more than half of the batches are missing: then it doubles until results arrive. Only the batches of
clients that delivered before count here (the electorate): keys cost nothing, and any number of silent newcomers must
not look like a limit that is too short. Newcomers themselves have as long again as the others took; but where a round
has waited for them in vain, the next ones do not wait for them, for so long that this costs three percent of the time,
and less each time that it is in vain again; until a newcomer delivers.

A member that is slower than the others keeps its place with less work: whose result arrives in the second half of the
limit gets no larger share for it, because twice the work could take twice the time, and come too late.
"""

from statistics import median

from epochal.coordinator.machine.parts.fast_replace import replace
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.run_pace import RunPace
from epochal.coordinator.machine.run import Run
from epochal.state.intervals import total_batches
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId

TRAIN_TIMES_KEPT = 16
TRAIN_TIMES_NEEDED = 5
"""With fewer applied rounds than this, `max_round_train_time` is the limit."""
LIMIT_PER_MEDIAN = 2.0
"""Multiple of the median time of the last rounds after which a round is closed: members that deliver at the last
moment, or not at all, make a run take at most about twice its time."""
LIMIT_PER_LAST = 2.0
"""Multiple of the last round's time for which a round stays open: the limit follows at once when rounds get longer."""
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
MOSTLY = (1, 2)
"""Part of the electorate's batches after whose delivery slower clients no longer count in the round's time. Fewer
clients than that, such as a third that is as late as it can, must not lengthen the limit that they use up."""
IN_TIME_PART = 0.5
"""Part of the time limit after which a result is late: its client's share does not grow."""


def train_limit_s(pace: RunPace, most_s: float) -> float:
    """Return the time limit of the RoundTrain that begins now, at most `most_s`."""
    times = pace.train_times
    if len(times) < TRAIN_TIMES_NEEDED:
        return most_s
    usual = max(SHORTEST_LIMIT_S, LIMIT_PER_MEDIAN * median(times), LIMIT_PER_LAST * times[-1])
    return min(most_s, usual * 2.0 ** min(pace.slow_rounds, MAX_DOUBLINGS))


def elapsed_s(run: Run, current: Round) -> float:
    """Return the seconds since the round under way began, without outages of the coordinator."""
    return (current.trained_s or 0.0) + run.clock.now_s - run.clock.phase_started_s


def is_late(run: Run) -> bool:
    """Whether a result that arrives now, in RoundTrain, is late: twice the work might not have arrived in time."""
    if run.clock.phase_ends_s is None:
        return False
    return run.clock.now_s - run.clock.phase_started_s > IN_TIME_PART * (
        run.clock.phase_ends_s - run.clock.phase_started_s
    )


def with_delivery(current: Round, client_id: ClientId, elapsed_s: float) -> Round:
    """Return the round after a client's result was verified, `elapsed_s` after its start."""
    current = replace(current, last_in_s=elapsed_s)
    if client_id not in current.plan.electorate:
        return current
    delivered = current.delivered_batches + total_batches(current.plan.assignments[client_id])
    part, whole = MOSTLY
    mostly_in_s = current.mostly_in_s
    if mostly_in_s is None and whole * delivered >= part * current.plan.decisive_count:
        mostly_in_s = elapsed_s
    return replace(current, delivered_batches=delivered, mostly_in_s=mostly_in_s)


def settled(run: Run) -> Run:
    """Return the run with the times since when RoundTrain expects nothing more of the electorate, and of anybody."""
    current = run.round
    if current is None or run.clock.phase is not RunState.ROUND_TRAIN:
        return run
    elapsed_s = run.clock.now_s - run.clock.phase_started_s
    if current.settled_in_s is None and not current.decisive_pending:
        current = replace(current, settled_in_s=elapsed_s)
    if current.complete_in_s is None and not current.pending:
        current = replace(current, complete_in_s=elapsed_s)
    return run if current is run.round else replace(run, round=current)


def only_newcomers_are_late(run: Run, current: Round) -> bool:
    """Whether RoundTrain waits only for clients that never delivered, and they have had their time."""
    if current.settled_in_s is None:
        return False
    if run.pace.newcomers_from_s is not None and run.clock.phase_started_s < run.pace.newcomers_from_s:
        return True
    return run.clock.now_s - run.clock.phase_started_s >= max(TIME_FOR_NEWCOMERS_S, 2 * current.settled_in_s)


def closed(current: Round, elapsed_s: float) -> Round:
    """Return the round as RoundTrain ends, `elapsed_s` after its start."""
    complete_in_s = elapsed_s if current.complete_in_s is None else current.complete_in_s
    waited_s = 0.0
    if current.settled_in_s is not None:  # a client whose result was rejected may have delivered another one since
        waited_s = max(0.0, complete_in_s - max(current.settled_in_s, current.last_in_s or 0.0))
    current = replace(current, waited_s=waited_s, trained_s=elapsed_s)
    if current.pending:
        return replace(current, timed_out=True, train_s=current.mostly_in_s)
    if current.mostly_in_s is None:
        return current
    return replace(current, train_s=current.mostly_in_s + elapsed_s - complete_in_s)


def is_slow(current: Round) -> bool:
    """Whether time closed the round without over half of the electorate's batches: its limit was too short."""
    return current.timed_out and 2 * current.delivered_batches < current.plan.decisive_count


def with_pace(run: Run, current: Round, *, is_applied: bool) -> Run:
    """Return the run with the time of a round that ends now, in RoundWitness."""
    run = run.with_parts(
        replace(run.pace, slow_rounds=min(run.pace.slow_rounds + 1, MAX_DOUBLINGS) if is_slow(current) else 0)
    )
    if is_applied and not current.plan.electorate.issuperset(current.verified):
        run = run.with_parts(replace(run.pace, waits_in_vain=0))
    if current.waited_s:
        pause_s = ROUNDS_PER_WAIT * 2.0**run.pace.waits_in_vain * current.waited_s
        waits_in_vain = min(run.pace.waits_in_vain + 1, MAX_WAIT_DOUBLINGS)
        run = run.with_parts(replace(run.pace, newcomers_from_s=run.clock.now_s + pause_s, waits_in_vain=waits_in_vain))
    if not is_applied or current.train_s is None:
        return run
    took_s = current.train_s + run.clock.now_s - run.clock.phase_started_s
    return run.with_parts(replace(run.pace, train_times=(*run.pace.train_times, took_s)[-TRAIN_TIMES_KEPT:]))
