"""The work of a round: its batches, and its clients with their shares of these.

Suspected batches (`coordinator/machine/blame.py`) go to one client each, then come carried batches, then new ones.

With `merge.delay` the work of the next round is drawn during the present one, and promised to its clients, which train
for it as soon as their own results are ready. It is drawn late, so that few members join after it, but before anybody
is expected to be ready, and in time to fetch its data. It takes no batch from the run before its round begins, and has
no suspects, so that it can be dropped without a trace: if the round before is void, if the epoch ends, or if too few of
its clients are left. Members that have left keep their part, whose batches return without a miss. Members that have
joined lately and are not ready yet get a newcomer's part; if they are not ready as their round begins, it returns too.
Those that are not proven get their part only as their round begins, unless their first result is verified by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from epochal.coordinator.machine.commands.planned_changes import mixed
from epochal.coordinator.machine.pace import elapsed_s
from epochal.coordinator.machine.parts.conduct import earned_by
from epochal.coordinator.machine.parts.held_results import HeldResults
from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.planned_ahead import Ahead, EagerStarts, PromisedRound
from epochal.coordinator.machine.parts.round import NO_ARRIVALS, MessageTimes, Round, RoundNumber
from epochal.coordinator.machine.parts.round_missing import RoundMissing
from epochal.coordinator.machine.parts.round_tasks import RoundTasks
from epochal.coordinator.machine.parts.run_work import RunWork, Suspect
from epochal.coordinator.machine.round_conduct import earned_in
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.shares import Sharing, for_exams, shared_roster
from epochal.state.documents import IsolatedWork, Roster, WorkList
from epochal.state.intervals import BatchId, subtract, take_positions, total_batches
from epochal.state.phase_names import RunState
from epochal.state.schedule import InnerSchedule, global_batch_size
from epochal.state.weights import UsualNorm
from epochal.state.wire import Blake3, ClientId, Seed, Sha256, document_digest

PROMISED_AFTER = (4, 5)
"""Part of the time until half of the work is expected to be done, after which the next round is promised."""
MANY_READY = 8
"""The next round is promised sooner if one in so many batches is done."""
STEPS_TO_GET_READY = 2
"""Number of steps after that of its join for which a member that is not ready is promised a part."""


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """The next round of a run: its clients and its work, and the carried work and the cursor that it leaves."""

    roster: Roster
    work: WorkList
    carried: tuple[BatchId, ...]
    cursor: int


def plan_work(run: Run, seed: Seed) -> PlannedWork:
    """Return the work of the run's next round, for the ready members. Arguments as `plan_work_for` takes them."""
    return plan_work_for(run, [sharing_of(run, member) for member in run.ready_members()], seed)


def sharing_of(run: Run, member: Member) -> Sharing:
    """Return a client of the run's next round, as it is now."""
    verify = run.state_file.verify
    is_judged = verify is not None and run.members.verification.has_verifier(run.progress.step, verify.within)
    return Sharing.of(member, verify, is_judged=is_judged)


def plan_work_for(run: Run, clients: Sequence[Sharing], seed: Seed) -> PlannedWork:
    """Return the work of the run's next round, for these clients.

    The work list holds up to `global_batch_size` batches and those for exams: suspects that are due, one client each;
    then carried work; then, until `last_step`, a fresh interval from the cursor.

    Args:
        run: between two rounds.
        clients: of the next one.
        seed: that orders its proven clients.
    """
    run = in_force(run)
    config = run.state_file.config
    draining = run.progress.step > run.last_step
    counted = global_batch_size(config, run.tokens_applied)
    if draining:  # exams would be carried again
        clients = [one for one in clients if not one.has_exam] or clients
    exams = for_exams(clients, counted)

    isolated = tuple(
        IsolatedWork(s.batch_id, s.tried) for s in _due(run.work, run.progress.step, len(clients), draining=draining)
    )
    shared: tuple[BatchId, ...] = ()
    carried, cursor = run.work.carried, run.work.cursor
    if len(isolated) < len(clients):
        room = max(0, counted + exams - total_batches(item.batch_id for item in isolated))
        taken = min(room, total_batches(carried))
        shared = take_positions(carried, 0, taken)
        carried = take_positions(carried, taken, total_batches(carried))
        fresh = 0 if draining else room - taken
        if fresh:
            shared += (BatchId(cursor, cursor + fresh - 1),)
            cursor += fresh
    roster = shared_roster(clients, total_batches(shared), config.ceiling, run.progress.step, seed, exams)
    return PlannedWork(roster, WorkList(isolated, shared), carried, cursor)


def begin_round(run: Run, seed: Seed) -> Run:
    """Return the run with its next round: roster of the ready members, work list, seed; or the promised one."""
    promised, step = run.work.promised, run.progress.step
    run = in_force(run.with_parts(replace(run.work, promised=None)))
    begun = None if promised is None else _kept_promise(run, promised, seed)
    if begun is None:
        planned = plan_work(run, run.work.next_assignment_seed or seed)
        tasks = _tasks(run, planned, seed)
        missing = RoundMissing().waiting_for(tasks.with_work(), tasks.plan.electorate)
        begun = Round(_number(run), tasks, HeldResults(_usual(run.models.usual, run.rates, step)), missing), planned
    current, planned = begun
    run = run.with_parts(
        current,
        replace(run.progress, drain_rounds=run.progress.drain_rounds + (step > run.last_step)),
        replace(run.work, next_assignment_seed=seed, carried=planned.carried, cursor=planned.cursor),
    )
    run = mixed(run)
    if not run.state_file.merge.delay:
        return run
    return replace(run, round=replace(current, promise_from_s=_promise_from_s(run, current)))


def in_force(run: Run) -> Run:
    """Return the run with the changes in force that its step has."""
    return run.with_parts(run.identity.at(run.progress.step))


def _number(run: Run) -> RoundNumber:
    return RoundNumber(run.progress.step, run.progress.attempt, run.progress.height)


def _tasks(run: Run, planned: PlannedWork, seed: Seed, starts: EagerStarts | None = None) -> RoundTasks:
    return RoundTasks(
        roster=planned.roster,
        work=planned.work,
        roster_sha256=document_digest(planned.roster),
        work_sha256=document_digest(planned.work),
        seed=seed,
        assignment_seed=run.work.next_assignment_seed or seed,
        cursor=planned.cursor,
        witness_nodes=run.state_file.config.witness_nodes,
        starts=starts,
    )


def promised_in_time(run: Run) -> Run:
    """Return a run with `merge.delay` with its next round promised, if it is time for it and one will follow."""
    current = run.round
    if current is None or current.ahead is not None or run.clock.phase is not RunState.ROUND_TRAIN:
        return run
    if elapsed_s(current, run.clock) < current.promise_from_s:
        plan, bound = current.tasks.plan, current.results.commitments
        done = sum(total_batches(plan.assignments[one]) for one in bound if one in plan.electorate)
        if MANY_READY * done < plan.decisive_count:
            return run
    ahead = _promise(run, current)
    return run if ahead is None else replace(run, round=replace(current, ahead=ahead))


def _promise_from_s(run: Run, current: Round) -> float:
    """Return when the round after one that begins now is to be promised, in seconds after its start."""
    ends: list[tuple[float, int]] = []
    for client_id, given in current.tasks.plan.assignments.items():
        member, batches = run.members.by_id.get(client_id), total_batches(given)
        if batches and member is not None and member.speed.is_known:
            began_s = current.arrivals.get(client_id, NO_ARRIVALS).began_s
            took_s = member.speed.time_us(batches) / 1e6 - member.speed.deliveries[-1].upload_ms / 1e3
            ends.append((began_s + took_s, batches))
    before, whole, half_s = 0, sum(batches for _, batches in ends), 0.0
    for end_s, batches in sorted(ends):
        if 2 * before >= whole:
            break
        before, half_s = before + batches, end_s
    part, per = PROMISED_AFTER
    return round(max(0.0, part * half_s / per), 3)


def _promise(run: Run, current: Round) -> Ahead | None:
    """Return the next round, if one will follow that can be drawn now, for clients that are or may be ready then."""
    after = run.with_parts(replace(run.progress, step=run.progress.step + 1))
    ready = [_as_expected(run, current, member) for member in run.ready_members()]
    if (
        after.progress.step > run.last_step
        or run.progress.pause_pending
        or _due(after.work, after.progress.step, len(ready), draining=False)
    ):
        return None
    planned = plan_work_for(after, [*ready, *_getting_ready(run, ready)], current.tasks.seed)
    return named_ahead(current, planned, is_promised=True) if planned.work.intervals() else None


def _as_expected(run: Run, current: Round, member: Member) -> Sharing:
    """Return a client as it is once its part of the round that has just begun is applied, unless it has missed others.

    Otherwise its bound would be that of two rounds before the promised one, and grow every second round.
    """
    verify, awaiting = run.state_file.verify, run.members.verification.awaiting()
    one, given = sharing_of(run, member), current.tasks.plan.assignments.get(member.client_id)
    is_proven = one.is_proven or (verify is None and member.client_id in current.results.verified)
    if not given or not is_proven or member.conduct.missed:
        return one
    earned = earned_by(total_batches(given))
    if verify is not None:
        earned = earned_in(run.members, one.client_id, earned, verify, awaiting)
    return one._replace(earned=earned, is_proven=True)


def _getting_ready(run: Run, ready: Sequence[Sharing]) -> list[Sharing]:
    """Return, as newcomers, the members that have joined lately and not yet reported to be ready.

    There are none where nobody is proven: newcomers have equal parts there, and are witnesses.
    """
    if not any(one.is_proven for one in ready):
        return []
    from_step = run.progress.step - STEPS_TO_GET_READY
    return [
        sharing_of(run, member)._replace(is_proven=False)
        for member in run.available_members()
        if member.readiness.step is None and member.joining.step >= from_step
    ]


def named_ahead(current: Round, planned: PlannedWork, *, is_promised: bool = False) -> Ahead:
    """Return what the run document names of a planned round, which follows the present one."""
    work_sha256 = document_digest(planned.work)
    if planned.roster is current.tasks.roster or planned.roster == current.tasks.roster:
        return Ahead(current.tasks.roster_sha256, work_sha256, planned.work, is_promised=is_promised)
    return Ahead(document_digest(planned.roster), work_sha256, planned.work, planned.roster, is_promised)


def promised_after(
    run: Run, current: Round, included: frozenset[ClientId], agreed: Blake3 | None
) -> PromisedRound | None:
    """Return the next round, if it was promised as this one began, with what its clients have done for it.

    Args:
        run: as the round ends.
        current: the round.
        included: the clients whose results are applied.
        agreed: the replica on which a quorum of witnesses agreed; the round is void without one.
    """
    ahead = current.ahead
    if agreed is None or not included or ahead is None or not ahead.is_promised:
        return None
    ended_s = elapsed_s(current, run.clock)
    results = {one: Sha256(current.results.commitments[one].result_sha256) for one in included}
    return PromisedRound(
        roster=ahead.roster or current.tasks.roster,
        work=ahead.work,
        starts=EagerStarts(agreed, results),
        commitments={
            one: early._replace(at_s=early.at_s - ended_s) for one, early in current.early.items() if one in included
        },
        began_s={one: _own_end_s(current.arrivals.get(one, NO_ARRIVALS)) - ended_s for one in included},
    )


def _own_end_s(times: MessageTimes) -> float:
    """Return when a client's result was ready, in seconds after the start of its round, 0 if it was so before."""
    found = times.delivered_s if times.committed_s is None else times.committed_s
    return max(0.0, found or 0.0)


def _kept_promise(run: Run, promised: PromisedRound, seed: Seed) -> tuple[Round, PlannedWork] | None:
    """Return the promised round and its work, or None if it cannot be: another one has to be drawn then."""
    if run.progress.height == 0 or run.progress.step > run.last_step:
        return None
    shared, cursor = promised.work.shared, run.work.cursor
    carried = subtract(run.work.carried, shared)
    planned = PlannedWork(promised.roster, promised.work, carried, max(cursor, *(one.end + 1 for one in shared)))
    tasks = _tasks(run, planned, seed, promised.starts)
    present = frozenset(one.client_id for one in run.ready_members() if one.client_id in tasks.plan.positions)
    if len(present) < run.state_file.config.min_clients or not present & tasks.with_work():
        return None
    if len(present.intersection(tasks.plan.witnesses)) < tasks.plan.quorum:
        return None
    proven = tasks.plan.electorate & present & tasks.with_work()
    bound = {one: early for one, early in promised.commitments.items() if one in proven}
    commitments = {one: early.report for one, early in bound.items()}
    arrivals = {
        one: MessageTimes(began_s, bound[one].at_s if one in bound else None)
        for one, began_s in promised.began_s.items()
        if one in proven
    }
    missing = RoundMissing().waiting_for(present & tasks.with_work(), tasks.plan.electorate)
    missing = missing.excusing(sorted(one for one in tasks.with_work() if not _has_reported(run, one)))
    results = HeldResults(_usual(run.models.usual, run.rates, run.progress.step), commitments)
    return Round(_number(run), tasks, results, missing, arrivals=arrivals), planned


def _has_reported(run: Run, client_id: ClientId) -> bool:
    """Return whether it is a member that has reported to be ready."""
    member = run.members.by_id.get(client_id)
    return member is not None and member.readiness.step is not None


def _usual(usual: UsualNorm | None, rates: InnerSchedule, step: int) -> UsualNorm | None:
    """Return the usual length of results in the round of a step, by that of those before."""
    if usual is None:
        return None
    return usual.grown(rates.total(step - 1, usual.steps), rates.total(step, usual.steps))


def _due(work: RunWork, step: int, client_count: int, *, draining: bool) -> tuple[Suspect, ...]:
    """Return the suspects of a step's round, for at most half of the clients, so that other work goes on beside them.

    A pause between two attempts ends when other work is done, so the last rounds of a run do not wait for it. There all
    clients take suspects once no other work is left.
    """
    if draining and not work.carried:
        return work.suspects[:client_count]
    due = (suspect for suspect in work.suspects if draining or suspect.retry_step <= step)
    return tuple(due)[: max(1, client_count // 2)]
