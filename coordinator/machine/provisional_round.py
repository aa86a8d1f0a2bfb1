"""The round that follows if nothing more is lost: clients may fetch its data while the present round ends.

The rule kept here: the next round never comes from it. It is computed as a round begins, when all of its work is still
expected, and again once nothing more is expected, when it is known what was lost. The next round is made anew from the
run as it is then (`coordinator/machine/work.py`); whatever changes meanwhile makes the provisional one wrong, and
nothing else.

As a round begins, before anything is known of it, its end is plain: all of its work is applied, and each client was as
fast as before. Only what the next round depends on is computed then; `complete_look` computes everything, and a test
compares the two.
"""

from dataclasses import replace

from epochal.coordinator.machine.outcomes import settle_work
from epochal.coordinator.machine.parts.conduct import earned_by
from epochal.coordinator.machine.parts.planned_ahead import Ahead
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.speed import DEPARTED
from epochal.coordinator.machine.replays.lottery import exams_of
from epochal.coordinator.machine.round_conduct import earned_in, trusted_after
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.shares import Sharing
from epochal.coordinator.machine.transitions import steps_done
from epochal.coordinator.machine.work import named_ahead, plan_work, plan_work_for, promised_in_time, sharing_of
from epochal.state.intervals import total_batches
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.wire import ClientId

FEW = 8
"""The same next round stays named if at most one in so many clients took another time than was expected."""
SOON_US = 1_000_000
"""Microseconds that are added to a time with which another one is compared, so that very short ones are about alike."""
_ANY_REPLICA = ""
"""In the place of a digest that is not known yet, and that everybody is expected to agree on."""


def looked_ahead(before: Run, after: Run) -> Run:
    """Return the run after a stimulus, with a new provisional next round if a round has begun or all of it is in.

    With `merge.delay` the next round is promised once, and stays what it is.
    """
    if after.state_file.merge.delay:
        return promised_in_time(after)
    current = after.round
    if current is None or after.clock.phase not in ROUND_PHASES or _stage(after) == _stage(before):
        return after
    if current.ahead is not None and _is_as_expected(after, current):
        return after
    is_new = before.round is None or before.round.tasks.plan is not current.tasks.plan
    has_exams = after.state_file.verify is not None and bool(
        exams_of(after.state_file, after.members, current, current.tasks.with_work())
    )
    is_unusual = has_exams or bool(after.work.suspects or current.tasks.work.isolated)
    is_plain = after.clock.phase is RunState.ROUND_TRAIN and not is_unusual
    look = _first_look if is_new and is_plain else complete_look
    return replace(after, round=replace(current, ahead=look(after, current)))


def _is_as_expected(run: Run, current: Round) -> bool:
    """Whether a round for which a next one is named went as was expected, so that the same one would be named."""
    assigned = sum(1 for parts in current.tasks.plan.assignments.values() if parts)
    if len(current.results.verified) < assigned or len(run.ready_members()) != len(current.tasks.roster.clients):
        return False
    unusual = sum(not _is_usual(run.members, current, client_id) for client_id in current.results.verified)
    return unusual * FEW <= len(current.results.verified)


def _is_usual(members: RunMembers, current: Round, client_id: ClientId) -> bool:
    """Whether a client's result came about when its speed says."""
    member, times = members.by_id.get(client_id), current.arrivals.get(client_id)
    if member is None or times is None or times.delivered_s is None or not member.speed.is_known:
        return False
    part, whole = DEPARTED
    expected_us = member.speed.time_us(total_batches(current.tasks.plan.assignments[client_id]))
    return whole * abs(round(1e6 * times.delivered_s) - expected_us) <= part * (expected_us + SOON_US)


def _stage(run: Run) -> tuple[int, int, int, RunState, bool] | None:
    current = run.round
    if current is None:
        return None
    return (
        run.progress.epoch,
        current.number.step,
        current.number.attempt,
        run.clock.phase,
        current.times.complete_in_s is None,
    )


def _first_look(run: Run, current: Round) -> Ahead | None:
    """Return the next round if all of the work of this one, of which nothing has been heard yet, is applied."""
    clients = _as_expected(run, current)
    batches, work = current.tasks.work.batch_count(), run.work
    after = replace(
        run,
        round=None,
        progress=run.progress.after_round(is_applied=True, must_pause=False),
        work=replace(
            work,
            batches_applied=work.batches_applied + batches,
            tokens_applied=work.tokens_applied + run.likely_tokens(batches),
        ),
    )
    if not current.missing.pending or steps_done(after) or len(clients) < run.state_file.config.min_clients:
        return None
    planned = plan_work_for(after, clients, current.tasks.seed)
    return named_ahead(current, planned) if planned.work.intervals() else None


def _as_expected(run: Run, current: Round) -> list[Sharing]:
    """Return the clients of the round as they are once all of its work is applied."""
    step, found, verify = current.number.step, list[Sharing](), run.state_file.verify
    awaiting = run.members.verification.awaiting()
    for client_id, given in current.tasks.plan.assignments.items():
        member = run.members.by_id[client_id]
        one = sharing_of(run, trusted_after(member, awaiting) if given and verify is not None else member)
        if given:
            earned = earned_by(total_batches(given))
            if verify is not None:
                earned = earned_in(run.members, client_id, earned, verify, awaiting)
            one = one._replace(earned=earned, is_proven=True, last_step=step)
        found.append(one)
    return found


def complete_look(run: Run, current: Round) -> Ahead | None:
    """Return the next round if nothing more is lost of this one, by all the rules of a round's end."""
    expected = _expected(run, current)
    exams = exams_of(run.state_file, run.members, current, expected)
    expected -= exams
    if not expected:
        return None
    verified = {client_id: current.results.verified.get(client_id, _ANY_REPLICA) for client_id in expected | exams}
    delivered = current.with_parts(replace(current.results, verified=verified, verified_bits=None))
    after, _ = settle_work(run, delivered, expected, None, exams)
    if steps_done(after) or len(after.ready_members()) < run.state_file.config.min_clients:
        return None
    planned = plan_work(after, current.tasks.seed)
    return named_ahead(current, planned) if planned.work.intervals() else None


def _expected(run: Run, current: Round) -> frozenset[ClientId]:
    """Return the clients whose results are expected to be applied: all that are held, and those still to come."""
    held = frozenset(current.results.verified) - run.members.verification.convicted.keys()
    return held | current.missing.pending if run.clock.phase is RunState.ROUND_TRAIN else held
