"""The work of a round: who gets which batches, and which batches the failures of a round make suspect.

Batches on which a client failed become suspects: another client tries them alone, they are bisected when they fail
again, and a single batch that keeps failing is quarantined. Data that is only unavailable is carried.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from coordinator.machine.round import Round
from coordinator.machine.run import Run, Suspect, roster_of
from state.documents import IsolatedWork, WorkList
from state.intervals import BatchId, subtract, take_positions, total_batches
from state.messages import FailureReport
from state.schedule import global_batch_size
from state.wire import ClientId, Seed, document_digest

ATTEMPTS_BEFORE_QUARANTINE = 3
"""Number of failures, each on another client if there are as many, after which a single batch is quarantined."""
MAX_QUARANTINED_INTERVALS = 1024
"""Maximum number of quarantined intervals. Beyond it the run pauses, because the data is hardly the cause."""
MAX_SUSPECT_MESSAGE_CHARS = 200


def begin_round(run: Run, seed: Seed) -> Run:
    """Return the run with its next round: roster of the ready members, work list, seed.

    The work list holds up to `global_batch_size` batches: suspects, one client each; then carried work; then, until
    `total_steps`, a fresh interval from the cursor.
    """
    config = run.state_file.config
    draining = run.step > config.total_steps
    roster = roster_of(run.ready_members())
    target = global_batch_size(config, run.tokens_applied)

    alone_count = max(1, len(roster.clients) - 1)
    isolated = tuple(IsolatedWork(s.batch_id, s.tried) for s in run.suspects[:alone_count])
    shared: tuple[BatchId, ...] = ()
    carried, cursor = run.carried, run.cursor
    if len(isolated) < len(roster.clients):
        room = max(0, target - total_batches(s.batch_id for s in run.suspects))
        taken = min(room, total_batches(carried))
        shared = take_positions(carried, 0, taken)
        carried = take_positions(carried, taken, total_batches(carried))
        fresh = 0 if draining else room - taken
        if fresh:
            shared += (BatchId(cursor, cursor + fresh - 1),)
            cursor += fresh
    work = WorkList(isolated, shared)
    current = Round(
        step=run.step,
        attempt=run.attempt,
        height=run.height,
        seed=seed,
        cursor=cursor,
        roster=roster,
        work=work,
        roster_sha256=document_digest(roster),
        work_sha256=document_digest(work),
        witness_nodes=config.witness_nodes,
    )
    pending = frozenset(client for client, assigned in current.plan.assignments.items() if assigned)
    return replace(
        run,
        round=replace(current, pending=pending),
        carried=carried,
        cursor=cursor,
        drain_rounds=run.drain_rounds + draining,
    )


@dataclass(frozen=True, slots=True)
class Blame:
    """Consequences of the failures of a round.

    Attributes:
        suspects: every interval that is now tried alone.
        quarantined: batches that leave the run with this round.
        blamed: shared work that became suspect with this round.
        must_stop: whether the run must pause, because it may not quarantine a batch that keeps failing.
    """

    suspects: tuple[Suspect, ...]
    quarantined: tuple[Suspect, ...]
    blamed: tuple[BatchId, ...]
    must_stop: bool


def blame_after(run: Run, current: Round, included: AbstractSet[ClientId], applied: Sequence[BatchId]) -> Blame:
    """Return the consequences of the failures of a round.

    Args:
        run: the run before the end of the round.
        current: the round that is over.
        included: the clients whose results are applied.
        applied: the batches that are applied.
    """
    alone = {item.batch_id for item in current.work.isolated}
    suspects = [s for s in run.suspects if s.batch_id not in alone]
    tried_alone = {s.batch_id: s for s in run.suspects if s.batch_id in alone}
    quarantined: list[Suspect] = []
    blamed: list[BatchId] = []
    must_stop = False
    for client_id, assignment in current.plan.assignments.items():
        failure = current.failures.get(client_id)
        if failure is not None and (failure.kind == "unavailable" or client_id in included):
            failure = None
        if len(assignment) == 1 and assignment[0] in tried_alone:
            suspect = tried_alone.pop(assignment[0])
            if suspect.batch_id in applied:
                continue
            if failure is None:
                suspects.append(suspect)
                continue
            again = replace(suspect, tried=(*suspect.tried, client_id), message=_message(failure))
            if again.batch_id.count > 1:
                suspects += [Suspect(half, (), again.message) for half in _narrow(again.batch_id, failure)]
            elif not _is_hopeless(again, len(current.roster.clients)):
                suspects.append(again)
            elif _must_stop(run, len(quarantined)):
                suspects.append(replace(again, tried=()))
                must_stop = True
            else:
                quarantined.append(again)
        elif failure is not None:
            parts = _blamed_part(assignment, failure)
            blamed += parts
            suspects += [Suspect(part, (client_id,), _message(failure)) for part in parts]
    suspects += tried_alone.values()
    return Blame(tuple(suspects), tuple(quarantined), tuple(blamed), must_stop)


def _message(failure: FailureReport) -> str:
    return f"{failure.kind}: {failure.message}"[:MAX_SUSPECT_MESSAGE_CHARS]


def _narrow(interval: BatchId, failure: FailureReport) -> tuple[BatchId, ...]:
    """Return the suspected interval cut around the part that the failure blames, or else into halves."""
    blame = failure.batch_id
    if blame is not None and interval.covers(blame) and blame != interval:
        return (blame, *subtract((interval,), (blame,)))
    return interval.bisect()


def _blamed_part(assignment: Sequence[BatchId], failure: FailureReport) -> tuple[BatchId, ...]:
    if failure.batch_id is not None and any(part.covers(failure.batch_id) for part in assignment):
        return (failure.batch_id,)
    return tuple(assignment)


def _is_hopeless(suspect: Suspect, client_count: int) -> bool:
    needed = min(ATTEMPTS_BEFORE_QUARANTINE, client_count)
    return len(suspect.tried) >= ATTEMPTS_BEFORE_QUARANTINE and len(set(suspect.tried)) >= needed


def _must_stop(run: Run, new_count: int) -> bool:
    config = run.state_file.config
    return config.on_bad_data == "stop" or len(run.quarantined) + new_count >= MAX_QUARANTINED_INTERVALS
