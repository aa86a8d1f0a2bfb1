"""Clients' reports during a round: commitments, results, attestations, failures. Pure handlers of the machine.

Every report names its round, `(step, attempt)`. A report for a round that is over is refused; a repeated one changes
nothing. Where the next round is promised (`coordinator/machine/work.py`), a client that is bound to its result of this
one may bind itself to that of the next.
"""

from dataclasses import replace
from typing import TypeAlias

from epochal.coordinator.machine.instructions import Instruction, TimesTold
from epochal.coordinator.machine.pace import elapsed_s
from epochal.coordinator.machine.parts.persistent_map import added
from epochal.coordinator.machine.parts.phase_clock import PhaseClock
from epochal.coordinator.machine.parts.planned_ahead import EarlyCommitment
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import AttestationReceived, ResultReceived, StepFailed, TimesReported
from epochal.state.documents import branch_of, first_beside
from epochal.state.errors import Refused
from epochal.state.messages.blob_messages import NO_ROOM, CheckVerdict
from epochal.state.messages.requests import Attestation
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.refusals import Refusal
from epochal.state.shown.tries import shown_step
from epochal.state.wire import ClientId

Reported: TypeAlias = tuple[Round, tuple[Instruction, ...]]
"""The round after a report, and what the run's owner must do."""


BITS_PER_HEX_DIGIT = 4
MAX_TOLD_STEPS = 4
"""Number of rounds before the present one of which a client that leaves may report its times."""


def receive_result(current: Round | None, clock: PhaseClock, event: ResultReceived) -> Reported:
    """Bind a client to one result, and count the result if its bytes came and break no rule.

    A result that breaks a rule stays bound, so its work will be carried; one without room does not blame its client.

    Raises:
        Refused: `late-result`, `not-in-roster` or `already-committed`.
    """
    is_early = current is not None and _is_early(current, clock, event)
    after = _bound_early(current, clock, event) if current is not None and is_early else _bound(current, clock, event)
    client_id, told = event.client_id, event.report.metrics.before
    instructions = () if told is None or after is current else (TimesTold(client_id, told),)
    if event.verdict is not None:
        return _judged(after, clock, client_id, event.verdict), instructions
    if after is not current and not is_early:
        after = after.with_arrival(client_id, committed_s=elapsed_s(after, clock))
    return after, instructions


def _is_early(current: Round, clock: PhaseClock, event: ResultReceived) -> bool:
    """Whether a client may bind itself to a result of the next round, of which the bytes come later."""
    if clock.phase not in ROUND_PHASES or current.ahead is None or not current.ahead.is_promised:
        return False
    is_next = (event.report.step, event.report.attempt) == (
        current.number.step + 1,
        first_beside(current.number.attempt),
    )
    return is_next and event.verdict is None and event.client_id in current.results.commitments


def _bound_early(current: Round, clock: PhaseClock, event: ResultReceived) -> Round:
    """Return the round with a client bound to a result of the next one. Raises `Refused` (`already-committed`)."""
    before = current.early.get(event.client_id)
    if before is None:
        bound = EarlyCommitment(event.report, elapsed_s(current, clock))
        return replace(current, early=added(current.early, event.client_id, bound))
    if before.report.result_sha256 != event.report.result_sha256:
        message = f"client {event.client_id} is bound to result {before.report.result_sha256} in the next round"
        raise Refused(Refusal.ALREADY_COMMITTED, message, committed=before.report.result_sha256)
    return current


def _bound(current: Round | None, clock: PhaseClock, event: ResultReceived) -> Round:
    """Return the round with a client bound to a result. Raises as `receive_result`."""
    client_id, report = event.client_id, event.report
    current = _training_round(current, clock, report.step, report.attempt, client_id, "result")
    before = current.results.commitments.get(client_id)
    if before is not None:
        if before.result_sha256 != report.result_sha256:
            raise Refused(
                Refusal.ALREADY_COMMITTED,
                f"client {client_id} is bound to result {before.result_sha256} in this round",
                committed=before.result_sha256,
            )
        return current
    if client_id in current.missing.failures:
        raise Refused(Refusal.ALREADY_COMMITTED, f"client {client_id} reported that it failed in this round")
    if not current.missing.pending:  # a client that left and joined again may have read others' results meanwhile
        message = "all results that the round waited for have arrived, and others may read them"
        raise Refused(Refusal.LATE_RESULT, message)
    return current.with_parts(current.results.with_commitment(client_id, report))


def _judged(current: Round, clock: PhaseClock, client_id: ClientId, verdict: CheckVerdict) -> Round:
    """Return the round with the verdict on the bytes of a client's result, unless they are verified already."""
    missing = current.missing
    if client_id in current.results.verified:
        return current
    if verdict.rule == NO_ROOM:
        return current if client_id in missing.without_room else current.with_parts(missing.with_no_room(client_id))
    if verdict.replica_digest is None or verdict.norm is None:
        if client_id in missing.rejected:
            return current
        missing = missing.no_longer((client_id,), current.tasks.plan.electorate)
        return current.with_parts(missing.with_rejected(client_id, verdict.rule or ""))
    took_s = elapsed_s(current, clock)
    current = current.with_verified(client_id, verdict.replica_digest, verdict.norm, took_s)
    return current.with_arrival(client_id, delivered_s=took_s, check_ms=verdict.took_ms)


def attest(current: Round | None, clock: PhaseClock, event: AttestationReceived) -> Round:
    """Record which verified results a witness read of. Until the phase ends it may attest more, from the same replica.

    Raises:
        Refused: `stale-round`, `not-in-roster`, `invalid-body` or `already-committed`.
    """
    client_id, report = event.client_id, event.report
    current = _round_of(current, clock, report.step, report.attempt, late_kind=Refusal.STALE_ROUND)
    if client_id not in current.tasks.plan.witnesses:
        raise Refused(Refusal.NOT_IN_ROSTER, f"client {client_id} is not a witness of round {report.step}")
    _check_length(report, len(current.tasks.roster.clients))
    held, before = current.results.verified_bits, current.witnessed.attestations.get(client_id)
    assert held is not None
    bits = report.received_bits() & held
    if before is not None:
        if before.replica_digest != report.replica_digest:
            raise Refused(
                Refusal.ALREADY_COMMITTED,
                f"client {client_id} attested replica {before.replica_digest} in this round",
                committed=before.replica_digest,
            )
        bits |= before.received_bits()
    is_closing = clock.phase is RunState.ROUND_WITNESS
    witnessed = current.witnessed.attested(client_id, replace(report, received=f"{bits:x}"), is_closing=is_closing)
    if witnessed is current.witnessed:
        return current
    return current.with_parts(witnessed).with_arrival(client_id, attested_s=elapsed_s(current, clock))


def _check_length(report: Attestation, client_count: int) -> None:
    digits = max(1, -(-client_count // BITS_PER_HEX_DIGIT))
    if len(report.received) > digits or report.received_bits() >> client_count:
        raise Refused(
            Refusal.INVALID_BODY,
            f"`received` has {len(report.received)} hex digits; a roster of {client_count} clients needs at most "
            f"{digits}, with no bit beyond its last position",
        )


def fail_step(current: Round | None, clock: PhaseClock, event: StepFailed) -> Round:
    """Record that a client cannot deliver in this round.

    Raises:
        Refused: `late-result`, `not-in-roster`, or `already-committed` when its result is held.
    """
    client_id, report = event.client_id, event.report
    current = _training_round(current, clock, report.step, report.attempt, client_id, "failure report")
    if client_id in current.missing.failures:
        return current
    if client_id in current.results.verified:
        raise Refused(Refusal.ALREADY_COMMITTED, f"the result of client {client_id} is held already")
    missing = current.missing.no_longer((client_id,), current.tasks.plan.electorate)
    return current.with_parts(missing.with_failure(client_id, report))


def note_times(run: Run, event: TimesReported) -> Handled:
    """Take what a client says of the round under way, or of one shortly before it, for its figures.

    Raises:
        Refused: `stale-round`, or `unauthorized` from one that is no member.
    """
    client_id, times, current = event.client_id, event.report.times, run.round
    if client_id not in run.members:
        raise Refused(Refusal.UNAUTHORIZED, f"client {client_id} is not a member; join again")
    if run.clock.phase in ROUND_PHASES and current is not None and current.number.is_attempt(*times[:2]):
        known = current.arrivals.get(client_id)
        if client_id not in current.tasks.plan.positions or (known is not None and known.told == times):
            return run, ()
        return run.with_parts(current.with_arrival(client_id, told=times)), ()
    first, last = run.progress.step - MAX_TOLD_STEPS, run.progress.step
    if not first <= times.step <= last:
        message = f"the times of round {times.step}; allowed: rounds {first} to {last}"
        raise Refused(Refusal.STALE_ROUND, message)
    return replace(run), (TimesTold(client_id, times),)  # another value, so that the message is kept


def _round_of(current: Round | None, clock: PhaseClock, step: int, attempt: int, *, late_kind: Refusal) -> Round:
    if clock.phase not in ROUND_PHASES or current is None or not current.number.is_attempt(step, attempt):
        found = "no round" if current is None else shown_step(current.number.step, current.number.attempt)
        is_earlier = current is not None and branch_of(attempt) < branch_of(current.number.attempt)
        went_back = ", since the run went back" if is_earlier else ""
        message = f"{shown_step(step, attempt)} is over or has not begun; {found} is under way{went_back}"
        raise Refused(late_kind, message)
    return current


def _training_round(
    current: Round | None, clock: PhaseClock, step: int, attempt: int, client_id: ClientId, what: str
) -> Round:
    current = _round_of(current, clock, step, attempt, late_kind=Refusal.LATE_RESULT)
    if clock.phase is not RunState.ROUND_TRAIN:
        raise Refused(Refusal.LATE_RESULT, f"the {what} of {shown_step(step, attempt)} came too late")
    if not current.tasks.plan.assignments.get(client_id):
        raise Refused(Refusal.NOT_IN_ROSTER, f"client {client_id} has no assignment in {shown_step(step, attempt)}")
    return current
