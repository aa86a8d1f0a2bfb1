"""One round: its work list, its outcome, and what becomes of the work that the outcome lacks.

The rule kept here (DESIGN, "Exactly once"): every batch below the cursor is applied, carried, suspected or quarantined,
and in exactly one of these. `ledger_gaps` states it; the simulation and the audit check it after every stimulus.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coordinator.machine.round import Failure, Round, RoundPlan, plan_of
from coordinator.machine.run import LOSS_HISTORY_LENGTH, Member, Quarantined, Run, Suspect
from coordinator.machine.stimuli import BatchesQuarantined, Instruction, OutcomeDecided
from state.documents import IsolatedWork, Outcome, OutcomeEntry, Roster, RosterEntry, WorkList
from state.intervals import BatchId, coalesce, first_overlap, subtract, take_positions, total_batches
from state.schedule import global_batch_size
from state.wire import ClientId, Seed, Sha256, document_digest

ATTEMPTS_BEFORE_QUARANTINE = 3
"""Failures on a single batch, by as many different clients as there are up to this, before it is quarantined."""
MAX_QUARANTINED_INTERVALS = 1024
"""More bad data than this pauses the run: something other than the data is wrong."""
MAX_SUSPECT_MESSAGE_CHARS = 200


def begin_round(run: Run, seed: Seed) -> Run:
    """The run with its next round: roster of the ready members, work list, seed.

    The work list holds up to `global_batch_size` batches: suspects one client each, then carried work, then a fresh
    interval from the cursor; after `total_steps` nothing fresh.
    """
    config = run.state_file.config
    draining = run.step > config.total_steps
    roster = Roster(tuple(RosterEntry(member.client_id, member.share) for member in run.ready_members()))
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
        pending=frozenset(),
    )
    pending = frozenset(client for client, assigned in plan_of(current).assignments.items() if assigned)
    return replace(
        run,
        round=replace(current, pending=pending),
        carried=carried,
        cursor=cursor,
        drain_rounds=run.drain_rounds + draining,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the attestations of a round come to. `outcome` is None when nothing is applied."""

    outcome: Outcome | None
    reason: str
    replicas_differ: bool


def judge_round(run_id: str, current: Round) -> Verdict:
    """The outcome of a round from its commitments and attestations (DESIGN, "Outcomes").

    A result is in when a quorum of the elected witnesses attested it, a quorum agreed on one replica digest, and the
    result was trained from that replica. The order of the entries is the round's permuted order.
    """
    plan = plan_of(current)
    if not current.verified:
        return Verdict(None, "no result was verified", False)
    digests = Counter(attested.replica_digest for attested in current.attestations.values())
    agreed = next((digest for digest, count in digests.items() if count >= plan.quorum), None)
    if agreed is None:
        attested_count = len(current.attestations)
        reason = f"{attested_count} of {len(plan.witnesses)} witnesses attested, {plan.quorum} must agree"
        return Verdict(None, reason, len(digests) > 1)
    entries = tuple(
        OutcomeEntry(client_id, assignment, current.commitments[client_id].result_sha256)
        for client_id, assignment in plan.assignments.items()
        if assignment and _is_in(current, plan, client_id, agreed)
    )
    if not entries:
        return Verdict(None, "no result was attested by a quorum", len(digests) > 1)
    outcome = Outcome(
        run_id=run_id,
        step=current.step,
        attempt=current.attempt,
        seed=current.seed,
        roster_sha256=current.roster_sha256,
        work_sha256=current.work_sha256,
        replica_digest=agreed,
        entries=entries,
    )
    return Verdict(outcome, f"{len(entries)} results", False)


def _is_in(current: Round, plan: RoundPlan, client_id: ClientId, agreed: Sha256) -> bool:
    commitment = current.commitments.get(client_id)
    if commitment is None or commitment.replica_digest != agreed:
        return False
    bit = 1 << plan.positions[client_id]
    seen = sum(bool(int(attested.received, 16) & bit) for attested in current.attestations.values())
    return seen >= plan.quorum


def end_round(run: Run, current: Round, instructions: list[Instruction]) -> Run:
    """The run after the round was judged: applied work counted, the rest carried, suspected or quarantined."""
    verdict = judge_round(run.state_file.run_id, current)
    outcome = verdict.outcome
    instructions.append(OutcomeDecided(current.step, current.attempt, outcome, verdict.reason))
    applied = tuple(b for entry in outcome.entries for b in entry.assignment) if outcome else ()
    included = frozenset(entry.client_id for entry in outcome.entries) if outcome else frozenset()
    suspects, quarantined, blamed, too_bad = _judge_failures(run, current, included, applied)
    instructions += [BatchesQuarantined(item.batch_id, item.tried, item.message) for item in quarantined]
    carried = subtract(current.work.shared, applied + blamed) + run.carried
    run = replace(
        run,
        round=None,
        height=run.height + 1,
        rebuild=verdict.replicas_differ,
        carried=carried,
        suspects=suspects,
        quarantined=run.quarantined + quarantined,
        pause_pending=run.pause_pending or too_bad,
    )
    if outcome is None:
        return replace(run, attempt=run.attempt + 1)
    return replace(
        run,
        step=run.step + 1,
        attempt=0,
        batches_applied=run.batches_applied + total_batches(applied),
        outcomes={**run.outcomes, outcome.step: outcome},
        losses=_with_loss(run, current, outcome),
        members=_with_last_losses(run, current),
    )


def _with_loss(run: Run, current: Round, outcome: Outcome) -> tuple[tuple[int, float], ...]:
    weighted = [
        (metrics.loss, metrics.tokens)
        for entry in outcome.entries
        if (metrics := current.commitments[entry.client_id].metrics).loss is not None and metrics.tokens
    ]
    tokens = sum(count for _, count in weighted)
    if not tokens:
        return run.losses
    mean = sum(loss * count for loss, count in weighted) / tokens
    if not math.isfinite(mean):  # of claims that are absurd; a snapshot could not hold it
        return run.losses
    return (*run.losses, (outcome.step, mean))[-LOSS_HISTORY_LENGTH:]


def _with_last_losses(run: Run, current: Round) -> dict[ClientId, Member]:
    members = dict(run.members)
    for client_id in current.verified:
        loss = current.commitments[client_id].metrics.loss
        if client_id in members and loss is not None:
            members[client_id] = replace(members[client_id], last_loss=loss)
    return members


_Failures = tuple[tuple[Suspect, ...], tuple[Quarantined, ...], tuple[BatchId, ...], bool]


def _judge_failures(run: Run, current: Round, included: frozenset[ClientId], applied: Sequence[BatchId]) -> _Failures:
    """What the failed steps make suspect: (suspects, newly quarantined, blamed shared work, whether to stop).

    First blame makes the blamed part of an assignment a suspect, to be tried alone by somebody else; a suspect that
    fails again is bisected, and a single batch that fails `ATTEMPTS_BEFORE_QUARANTINE` times is quarantined. Data that
    is merely unavailable is nobody's fault: it is carried.
    """
    plan = plan_of(current)
    alone = {item.batch_id for item in current.work.isolated}
    suspects = [s for s in run.suspects if s.batch_id not in alone]
    tried_alone = {s.batch_id: s for s in run.suspects if s.batch_id in alone}
    quarantined: list[Quarantined] = []
    blamed: list[BatchId] = []
    stop = False
    for client_id, assignment in plan.assignments.items():
        failure = current.failures.get(client_id)
        counts = failure is not None and failure.kind != "unavailable" and client_id not in included
        if len(assignment) == 1 and assignment[0] in tried_alone:
            suspect = tried_alone.pop(assignment[0])
            if suspect.batch_id in applied:
                continue
            if not counts or failure is None:
                suspects.append(suspect)
                continue
            again = replace(suspect, tried=(*suspect.tried, client_id), message=_message(failure))
            if again.batch_id.count > 1:
                suspects += [Suspect(half, (), again.message) for half in _narrow(again.batch_id, failure)]
            elif not _is_hopeless(again, len(current.roster.clients)):
                suspects.append(again)
            elif _must_stop(run, len(quarantined)):
                suspects.append(replace(again, tried=()))
                stop = True
            else:
                quarantined.append(Quarantined(again.batch_id, again.tried, again.message))
        elif counts and failure is not None:
            parts = _blamed_part(assignment, failure)
            blamed += parts
            suspects += [Suspect(part, (client_id,), _message(failure)) for part in parts]
    suspects += tried_alone.values()
    return tuple(suspects), tuple(quarantined), tuple(blamed), stop


def _message(failure: Failure) -> str:
    return f"{failure.kind}: {failure.message}"[:MAX_SUSPECT_MESSAGE_CHARS]


def _narrow(interval: BatchId, failure: Failure) -> tuple[BatchId, ...]:
    """The suspected interval in two or three parts, along the reported blame where there is one inside it."""
    blame = failure.batch_id
    if blame is not None and interval.covers(blame) and blame != interval:
        return (blame, *subtract((interval,), (blame,)))
    return interval.bisect()


def _blamed_part(assignment: Sequence[BatchId], failure: Failure) -> tuple[BatchId, ...]:
    if failure.batch_id is not None:
        inside = tuple(part for part in assignment if part.covers(failure.batch_id))
        if inside:
            return (failure.batch_id,)
    return tuple(assignment)


def _is_hopeless(suspect: Suspect, client_count: int) -> bool:
    needed = min(ATTEMPTS_BEFORE_QUARANTINE, client_count)
    return len(suspect.tried) >= ATTEMPTS_BEFORE_QUARANTINE and len(set(suspect.tried)) >= needed


def _must_stop(run: Run, new_count: int) -> bool:
    config = run.state_file.config
    return config.on_bad_data == "stop" or len(run.quarantined) + new_count >= MAX_QUARANTINED_INTERVALS


def ledger_gaps(run: Run, applied: Sequence[BatchId]) -> str | None:
    """What contradicts "exactly once" in the run, given every batch that its outcomes applied; None when nothing does.

    Args:
        run: the run, in any phase.
        applied: all batches of all outcomes since the run's first batch, in any order, coalesced or not.
    """
    in_round = () if run.round is None else run.round.work.shared
    parts = (
        *applied,
        *run.carried,
        *(item.batch_id for item in run.suspects),
        *(item.batch_id for item in run.quarantined),
        *in_round,
    )
    doubled = first_overlap(parts)
    if doubled is not None:
        return f"batches {doubled} are counted twice"
    first = run.state_file.first_batch
    whole = (BatchId(first, run.cursor - 1),) if run.cursor > first else ()
    missing = subtract(whole, parts)
    if missing:
        return f"batches {missing[0]} below the cursor are neither applied nor carried nor quarantined"
    extra = subtract(coalesce(parts), whole)
    return f"batches {extra[0]} lie outside [{first}, {run.cursor})" if extra else None
