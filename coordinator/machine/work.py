"""The work of a round: its batches, and its clients with their shares of these.

Suspected batches (`coordinator/machine/blame.py`) go to one client each, then come carried batches, then new ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from epochal.coordinator.machine.parts.held_results import HeldResults
from epochal.coordinator.machine.parts.round import Round, RoundNumber
from epochal.coordinator.machine.parts.round_missing import RoundMissing
from epochal.coordinator.machine.parts.round_tasks import RoundTasks
from epochal.coordinator.machine.parts.run_work import RunWork, Suspect
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.shares import Sharing, shared_roster
from epochal.state.documents import IsolatedWork, Roster, WorkList
from epochal.state.intervals import BatchId, take_positions, total_batches
from epochal.state.schedule import InnerSchedule, global_batch_size
from epochal.state.weights import UsualNorm
from epochal.state.wire import Seed, document_digest


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """The next round of a run: its clients and its work, and the carried work and the cursor that it leaves."""

    roster: Roster
    work: WorkList
    carried: tuple[BatchId, ...]
    cursor: int


def plan_work(run: Run, seed: Seed) -> PlannedWork:
    """Return the work of the run's next round, for the ready members. Arguments as `plan_work_for` takes them."""
    return plan_work_for(run, [Sharing.of(member) for member in run.ready_members()], seed)


def plan_work_for(run: Run, clients: Sequence[Sharing], seed: Seed) -> PlannedWork:
    """Return the work of the run's next round, for these clients.

    The work list holds up to `global_batch_size` batches: suspects that are due, one client each; then carried work;
    then, until `last_step`, a fresh interval from the cursor.

    Args:
        run: between two rounds.
        clients: of the next one.
        seed: that orders its proven clients.
    """
    config = run.state_file.config
    draining = run.progress.step > run.last_step
    target = global_batch_size(config, run.tokens_applied)

    isolated = tuple(
        IsolatedWork(s.batch_id, s.tried) for s in _due(run.work, run.progress.step, len(clients), draining=draining)
    )
    shared: tuple[BatchId, ...] = ()
    carried, cursor = run.work.carried, run.work.cursor
    if len(isolated) < len(clients):
        room = max(0, target - total_batches(item.batch_id for item in isolated))
        taken = min(room, total_batches(carried))
        shared = take_positions(carried, 0, taken)
        carried = take_positions(carried, taken, total_batches(carried))
        fresh = 0 if draining else room - taken
        if fresh:
            shared += (BatchId(cursor, cursor + fresh - 1),)
            cursor += fresh
    roster = shared_roster(clients, total_batches(shared), config.ceiling, run.progress.step, seed)
    return PlannedWork(roster, WorkList(isolated, shared), carried, cursor)


def begin_round(run: Run, seed: Seed) -> Run:
    """Return the run with its next round: roster of the ready members, work list, seed."""
    assignment_seed, step = run.work.next_assignment_seed or seed, run.progress.step
    planned = plan_work(run, assignment_seed)
    tasks = RoundTasks(
        roster=planned.roster,
        work=planned.work,
        roster_sha256=document_digest(planned.roster),
        work_sha256=document_digest(planned.work),
        seed=seed,
        assignment_seed=assignment_seed,
        cursor=planned.cursor,
        witness_nodes=run.state_file.config.witness_nodes,
    )
    number = RoundNumber(step, run.progress.attempt, run.progress.height)
    missing = RoundMissing().waiting_for(tasks.with_work(), tasks.plan.electorate)
    return run.with_parts(
        Round(number, tasks, HeldResults(_usual(run.models.usual, run.rates, step)), missing),
        replace(run.progress, drain_rounds=run.progress.drain_rounds + (step > run.last_step)),
        replace(run.work, next_assignment_seed=seed, carried=planned.carried, cursor=planned.cursor),
    )


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
