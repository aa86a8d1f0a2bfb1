"""The end of a round: the outcome that a quorum of attestations agrees on, and the run with it taken in.

The rule kept here ("exactly once"): every batch below the cursor is either applied, carried, suspected or quarantined.
Tests of the machine check it after every stimulus, and the audit (`coordinator/proof/audit.py`) over the whole journal.

An outcome is not journalled: the stimuli are, and a replay judges the round again. Its update is (`UpdateMade`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from epochal.coordinator.machine.blame import blame_after
from epochal.coordinator.machine.instructions import BatchesQuarantined, EndedRound, OutcomeDecided
from epochal.coordinator.machine.pace import with_pace
from epochal.coordinator.machine.parts.persistent_map import plain
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.run_models import RunModels
from epochal.coordinator.machine.replays.lottery import after_round, exams_of
from epochal.coordinator.machine.round_conduct import with_conduct
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import UpdateMade
from epochal.coordinator.machine.work import promised_after
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome, OutcomeEntry
from epochal.state.errors import Refused
from epochal.state.intervals import BatchId, subtract, total_batches
from epochal.state.messages.requests import Attestation, ResultCommitment
from epochal.state.refusals import Refusal
from epochal.state.text.amounts import counted
from epochal.state.weights import factors_of, norm_hex, usual_in, usual_norm
from epochal.state.wire import Blake3, ClientId, Seed


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a round by its attestations. `outcome` is None when nothing is applied.

    Attributes:
        exams: clients whose results would be applied, if they were not exams (`replays/lottery.py`).
    """

    outcome: Outcome | None
    reason: str
    replicas_differ: bool
    exams: frozenset[ClientId] = frozenset()


def judge_round(state_file: StateFile, members: RunMembers, current: Round) -> Verdict:
    """Return the outcome of a run's round, from its commitments and attestations.

    A result is included if a quorum of the elected witnesses attested it and it was trained from the replica on which
    a quorum agreed, or from its client's own result of the round before (`merge.delay`). The entries are in the order
    in which the results were verified. Those of clients that were convicted meanwhile are void.
    """
    plan = current.tasks.plan
    if not current.results.verified:
        return Verdict(None, "no result was verified", False)
    digests = Counter(attested.replica_digest for attested in current.witnessed.attestations.values())
    agreed = next((digest for digest, count in digests.items() if count >= plan.quorum), None)
    if agreed is None:
        attested_count = len(current.witnessed.attestations)
        witnesses = counted(len(plan.witnesses), "witness", "witnesses")
        reason = f"{attested_count} of {witnesses} attested, {plan.quorum} must agree"
        return Verdict(None, reason, len(digests) > 1)
    commitments, verified = plain(current.results.commitments), plain(current.results.verified)
    received = attested_by(
        plan.quorum, [attested.received_bits() for attested in current.witnessed.attestations.values()]
    )
    applied = [
        client_id
        for client_id, replica in verified.items()
        if (replica == agreed or current.tasks.is_eager(client_id, replica))
        and _is_received(plan.positions[client_id], received)
        and client_id not in members.verification.convicted
    ]
    exams = exams_of(state_file, members, current, applied)
    if exams:
        applied = [client_id for client_id in applied if client_id not in exams]
    if not applied:
        return Verdict(None, "no result was attested by a quorum", len(digests) > 1)
    weighed, limit = current.weighed(state_file, applied), state_file.merge.norm_limit
    factors = factors_of(weighed, current.tasks.roster.ceiling, limit, usual_in(weighed, current.results.usual))
    entries = tuple(
        _entry(client_id, plan.assignments[client_id], commitments[client_id], one.norm, factor)
        for client_id, one, factor in zip(applied, weighed, factors, strict=True)
    )
    outcome = Outcome(
        run_id=state_file.run_id,
        step=current.number.step,
        attempt=current.number.attempt,
        seed=current.tasks.seed,
        roster_sha256=current.tasks.roster_sha256,
        work_sha256=current.tasks.work_sha256,
        replica_digest=agreed,
        entries=entries,
    )
    return Verdict(outcome, counted(len(entries), "result"), False, exams)


def expected_outcome(run: Run, current: Round, replica: Blake3) -> Outcome | None:
    """Return the outcome of a run's round if all of its witnesses attest what was verified, from this replica."""
    bits, plan = f"{current.tasks.plan.bits_of(current.results.verified):x}", current.tasks.plan
    attested = Attestation(current.number.step, current.number.attempt, replica, bits)
    witnessed = replace(current.witnessed, attestations=dict.fromkeys(plan.witnesses, attested))
    return judge_round(run.state_file, run.members, current.with_parts(witnessed)).outcome


def _entry(
    client_id: ClientId, assignment: tuple[BatchId, ...], bound: ResultCommitment, norm: float, factor: str
) -> OutcomeEntry:
    return OutcomeEntry(client_id, assignment, bound.result_sha256, bound.size_bytes, norm_hex(norm), factor)


def _is_received(position: int, received: bytes) -> bool:
    return position < 8 * len(received) and bool(received[position // 8] >> position % 8 & 1)


def attested_by(count: int, received: Sequence[int]) -> bytes:
    """Return the bits that at least `count` of these bit sets have, as bytes, the lowest first.

    The sets are added as columns of binary numbers, one digit of all columns at a time: their number of bits hardly
    matters.
    """
    digits: list[int] = []
    for carry in received:
        for place, digit in enumerate(digits):
            digits[place], carry = digit ^ carry, digit & carry
        if carry:
            digits.append(carry)
    every = 0
    for bits in received:
        every |= bits
    reached, equal = 0, every  # of the columns compared so far: greater than `count`, and equal to it
    for place in reversed(range(max(len(digits), count.bit_length()))):
        digit = digits[place] if place < len(digits) else 0
        if count >> place & 1:
            equal &= digit
        else:
            reached |= equal & digit
            equal &= ~digit
    found = reached | equal
    return found.to_bytes(found.bit_length() // 8 + 1, "little")


def end_round(run: Run, current: Round, seed: Seed) -> Handled:
    """Return the run after the round was judged: applied work counted, the rest carried, suspected or quarantined.

    Args:
        run: the run in its round.
        current: the round.
        seed: random bytes, unknown before, that draw which results are computed again.
    """
    verdict = judge_round(run.state_file, run.members, current)
    outcome = verdict.outcome
    included = frozenset(entry.client_id for entry in outcome.entries) if outcome else frozenset()
    before = run
    agreed = None if outcome is None else outcome.replica_digest
    run, instructions = settle_work(run, current, included, agreed, verdict.exams)
    ended = _ended_round(before, run, current, verdict.exams)
    instructions = (
        OutcomeDecided(current.number.step, current.number.attempt, outcome, verdict.reason, ended),
        *instructions,
    )
    progress = replace(run.progress, height=run.progress.height + 1)
    pace = with_pace(run.pace, run.clock, current, is_applied=outcome is not None)
    members = run.members.with_all(run.members.by_id)
    clock = replace(run.clock, away_s=0.0) if run.clock.away_s else run.clock
    run = run.with_parts(progress, pace, members, clock, replace(run.models, rebuild=verdict.replicas_differ))
    if outcome is not None:
        usual = usual_norm(
            current.weighed(run.state_file, included), current.results.usual, run.state_file.merge.norm_limit
        )
        run = run.with_parts(run.models.with_outcome(outcome, usual))
    run, told = after_round(run, current, outcome, verdict.exams, seed)
    return run, (*instructions, *told)


def take_update(models: RunModels, event: UpdateMade) -> RunModels:
    """Return the run's models with the update of one of its outcomes; the first one that is made counts.

    Raises:
        Refused: `stale-round` if no outcome of its step is kept, `already-committed` if another update of it is.
    """
    step, known = event.update.step, models.updates.get(event.update.step)
    if step not in models.outcomes:
        raise Refused(Refusal.STALE_ROUND, f"an update of step {step}, of which no outcome is kept")
    if known is None:
        return models.with_update(event.update, event.parts)
    if known != event.update:
        message = f"an update of step {step}, {event.update.blob_sha256}: the run has {known.blob_sha256}"
        raise Refused(Refusal.ALREADY_COMMITTED, message, committed=known.blob_sha256)
    return models


def settle_work(
    run: Run,
    current: Round,
    included: frozenset[ClientId],
    agreed: Blake3 | None,
    exams: frozenset[ClientId] = frozenset(),
) -> Handled:
    """Return the run after the round, with its work settled: applied, carried, suspected or quarantined.

    Members have earned their shares, and the step has advanced if anything was applied. The rest of the round's end is
    left to `end_round`.

    Args:
        run: the run in its round.
        current: the round.
        included: the clients whose results are applied, or are expected to be; empty if nothing is.
        agreed: the replica on which a quorum of witnesses agreed.
        exams: the clients whose results count for nothing.
    """
    assignments = current.tasks.plan.assignments
    applied = tuple(batch for client_id, given in assignments.items() if client_id in included for batch in given)
    counted_tokens = current.tokens(run.state_file)
    tokens = (
        counted_tokens[one] if one in counted_tokens else run.likely_tokens(total_batches(assignments[one]))
        for one in included
    )
    blame = blame_after(run, current, included, applied)
    quarantined = (BatchesQuarantined(item.batch_id, item.against, item.message) for item in blame.quarantined)
    members, rests = with_conduct(run, current, included, agreed, exams)
    for client_id in exams:
        members = members.with_trust(client_id, replace(members.trust_of(client_id), examined=True))
    progress = run.progress.after_round(is_applied=bool(included), must_pause=blame.must_stop)
    work = replace(
        run.work,
        batches_applied=run.work.batches_applied + total_batches(applied),
        tokens_applied=run.work.tokens_applied + sum(tokens),
        carried=subtract(current.tasks.work.shared, applied + blame.blamed) + blame.cleared + run.work.carried,
        suspects=blame.suspects,
        quarantined=run.work.quarantined + blame.quarantined,
        promised=promised_after(run, current, included, agreed),
    )
    return replace(run, round=None, members=members, progress=progress, work=work), (*quarantined, *rests)


def _ended_round(before: Run, after: Run, current: Round, exams: frozenset[ClientId]) -> EndedRound:
    """Return a round at its end: `before` is the run in its last moment, `after` with its work settled."""
    return EndedRound(
        round=current,
        epoch=before.progress.epoch,
        ended_s=before.clock.now_s,
        witness_s=before.clock.now_s - before.clock.phase_started_s,
        away_s=before.clock.away_s,
        members=len(before.members),
        ready=before.numbers().ready,
        carried_batches=total_batches(after.work.carried)
        + total_batches(item.batch_id for item in after.work.suspects),
        quarantined_batches=total_batches(item.batch_id for item in after.work.quarantined),
        learning_rate=before.rates.rate(current.number.step, 0),
        tokens=current.tokens(before.state_file),
        tokens_total=after.tokens_applied,
        exams=exams,
    )
