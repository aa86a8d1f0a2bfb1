"""Clients' reports during a round: commitments, results, attestations, failures. Pure handlers of the machine.

Every report names its round, `(step, attempt)`. A report for a round that is over is refused; a repeated one changes
nothing.
"""

from typing import Any

from epochal.coordinator.machine.instructions import TimesTold
from epochal.coordinator.machine.pace import elapsed_s, is_late, with_delivery
from epochal.coordinator.machine.parts.fast_replace import replace
from epochal.coordinator.machine.parts.persistent_map import added, joined, removed
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import (
    AttestationReceived,
    ResultCommitted,
    ResultDelivered,
    ResultFoundNoRoom,
    ResultRejected,
    ResultVerified,
    StepFailed,
    TimesReported,
)
from epochal.state.errors import Refused
from epochal.state.messages.requests import Attestation
from epochal.state.phase_names import ROUND_PHASES, RunState
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId

BITS_PER_HEX_DIGIT = 4
MAX_TOLD_STEPS = 4
"""Number of rounds before the present one of which a client that leaves may report its times."""


def commit_result(run: Run, event: ResultCommitted) -> Handled:
    """Bind a client to one result.

    Raises:
        Refused: `late-result`, `not-in-roster` or `already-committed`.
    """
    after = _committed(run, event)
    if after is run or after.round is None:
        return after, ()
    arrived = after.round.with_arrival(event.client_id, committed_s=elapsed_s(run, after.round))
    return replace(after, round=arrived), _told(event)


def _told(event: ResultCommitted | ResultDelivered) -> tuple[TimesTold, ...]:
    """Return what a commitment says of an earlier round."""
    before = event.report.metrics.before
    return () if before is None else (TimesTold(event.client_id, before),)


def _committed(run: Run, event: ResultCommitted | ResultDelivered) -> Run:
    """Return the run with a client bound to a result. Raises as `commit_result`."""
    client_id, report = event.client_id, event.report
    current = _training_round(run, report.step, report.attempt, client_id, "commitment")
    before = current.commitments.get(client_id)
    if before is not None:
        if before.result_sha256 != report.result_sha256:
            raise Refused(
                Refusal.ALREADY_COMMITTED,
                f"client {client_id} is bound to result {before.result_sha256} in this round",
                committed=before.result_sha256,
            )
        return run
    if client_id in current.failures:
        raise Refused(Refusal.ALREADY_COMMITTED, f"client {client_id} reported that it failed in this round")
    return replace(run, round=current.with_commitment(client_id, report))


def verify_result(run: Run, event: ResultVerified) -> Handled:
    """Record that the bytes of a result are held and checked.

    Raises:
        Refused: `late-result`, `not-in-roster` or `not-committed`.
    """
    current = _round_of_commitment(run, event)
    if event.client_id in current.verified:
        return run, ()
    return replace(run, round=_verified(run, current, event)), ()


def _verified(run: Run, current: Round, event: ResultVerified | ResultDelivered) -> Round:
    """Return the round with a verified result."""
    client_id, took_s = event.client_id, elapsed_s(run, current)
    current = with_delivery(current, client_id, took_s)
    current = current.with_arrival(client_id, delivered_s=took_s, check_ms=event.check_ms)
    current = current.with_verified(client_id, event.replica_digest, event.norm).no_longer_waiting_for((client_id,))
    if client_id in current.rejected:
        current = replace(current, rejected=removed(current.rejected, client_id))
    return replace(current, late=joined(current.late, client_id)) if is_late(run) else current


def deliver_result(run: Run, event: ResultDelivered) -> Handled:
    """Bind a client to a result whose bytes came along, and are held and checked: commitment and verification in one.

    Raises:
        Refused: as `commit_result`.
    """
    before, run = run, _committed(run, event)
    told, current = () if run is before else _told(event), run.round
    assert current is not None, "it was committed to"
    if event.client_id in current.verified:
        return run, ()
    return replace(run, round=_verified(run, current, event)), told


def reject_result(run: Run, event: ResultRejected) -> Handled:
    """Record that a committed result broke a rule. The commitment binds, so the work will be carried.

    Raises:
        Refused: `late-result`, `not-in-roster` or `not-committed`.
    """
    current = _round_of_commitment(run, event)
    if event.client_id in current.verified or event.client_id in current.rejected:
        return run, ()
    return _with(
        run,
        current.no_longer_waiting_for((event.client_id,)),
        rejected=added(current.rejected, event.client_id, event.rule),
    )


def note_no_room(run: Run, event: ResultFoundNoRoom) -> Handled:
    """Record that the coordinator has no room for a committed result: its client is not to blame if it is missing.

    Raises:
        Refused: `late-result`, `not-in-roster` or `not-committed`.
    """
    current = _round_of_commitment(run, event)
    if event.client_id in current.verified or event.client_id in current.without_room:
        return run, ()
    return _with(run, current, without_room=joined(current.without_room, event.client_id))


def attest(run: Run, event: AttestationReceived) -> Handled:
    """Record which results a witness holds. Until the phase ends it may attest more of them, from the same replica.

    Raises:
        Refused: `stale-round`, `not-in-roster`, `invalid-body` or `already-committed`.
    """
    client_id, report = event.client_id, event.report
    current = _round_of(run, report.step, report.attempt, late_kind=Refusal.STALE_ROUND)
    if client_id not in current.plan.witnesses:
        raise Refused(Refusal.NOT_IN_ROSTER, f"client {client_id} is not a witness of round {report.step}")
    _check_length(report, len(current.roster.clients))
    assert current.verified_bits is not None
    bits, before = report.received_bits() & current.verified_bits, current.attestations.get(client_id)
    if before is not None:
        if before.replica_digest != report.replica_digest:
            raise Refused(
                Refusal.ALREADY_COMMITTED,
                f"client {client_id} attested replica {before.replica_digest} in this round",
                committed=before.replica_digest,
            )
        bits |= before.received_bits()
    attested = replace(report, received=f"{bits:x}")
    closing = current.closing | {client_id} if run.clock.phase is RunState.ROUND_WITNESS else current.closing
    if before == attested and closing == current.closing:
        return run, ()
    current = current.with_arrival(client_id, attested_s=elapsed_s(run, current))
    return _with(run, current, attestations={**current.attestations, client_id: attested}, closing=closing)


def _check_length(report: Attestation, client_count: int) -> None:
    digits = max(1, -(-client_count // BITS_PER_HEX_DIGIT))
    if len(report.received) > digits or report.received_bits() >> client_count:
        raise Refused(
            Refusal.INVALID_BODY,
            f"`received` has {len(report.received)} hex digits; a roster of {client_count} clients needs at most "
            f"{digits}, with no bit beyond its last position",
        )


def fail_step(run: Run, event: StepFailed) -> Handled:
    """Record that a client cannot deliver in this round.

    Raises:
        Refused: `late-result`, `not-in-roster`, or `already-committed` when its result is held.
    """
    client_id, report = event.client_id, event.report
    current = _training_round(run, report.step, report.attempt, client_id, "failure report")
    if client_id in current.failures:
        return run, ()
    if client_id in current.verified:
        raise Refused(Refusal.ALREADY_COMMITTED, f"the result of client {client_id} is held already")
    current = current.no_longer_waiting_for((client_id,))
    return _with(run, current, failures=added(current.failures, client_id, report))


def note_times(run: Run, event: TimesReported) -> Handled:
    """Take what a client says of the round under way, or of one shortly before it. Nothing is decided by it.

    Raises:
        Refused: `stale-round`, or `unauthorized` from one that is no member.
    """
    client_id, times, current = event.client_id, event.report.times, run.round
    if client_id not in run.members:
        raise Refused(Refusal.UNAUTHORIZED, f"client {client_id} is not a member; join again")
    if run.clock.phase in ROUND_PHASES and current is not None and (current.step, current.attempt) == times[:2]:
        known = current.arrivals.get(client_id)
        if client_id not in current.plan.positions or (known is not None and known.told == times):
            return run, ()
        return replace(run, round=current.with_arrival(client_id, told=times)), ()
    first, last = run.progress.step - MAX_TOLD_STEPS, run.progress.step
    if not first <= times.step <= last:
        message = f"the times of round {times.step}; allowed: rounds {first} to {last}"
        raise Refused(Refusal.STALE_ROUND, message)
    return replace(run), (TimesTold(client_id, times),)  # another value, so that the message is kept


def _round_of(run: Run, step: int, attempt: int, *, late_kind: Refusal) -> Round:
    current = run.round
    if run.clock.phase not in ROUND_PHASES or current is None or (current.step, current.attempt) != (step, attempt):
        found = "no round" if current is None else f"round {current.step} attempt {current.attempt}"
        raise Refused(late_kind, f"round {step} attempt {attempt} is over or has not begun; {found} is under way")
    return current


def _training_round(run: Run, step: int, attempt: int, client_id: ClientId, what: str) -> Round:
    current = _round_of(run, step, attempt, late_kind=Refusal.LATE_RESULT)
    if run.clock.phase is not RunState.ROUND_TRAIN:
        raise Refused(Refusal.LATE_RESULT, f"the {what} of round {step} attempt {attempt} came too late")
    if not current.plan.assignments.get(client_id):
        raise Refused(Refusal.NOT_IN_ROSTER, f"client {client_id} has no assignment in round {step} attempt {attempt}")
    return current


def _round_of_commitment(run: Run, event: ResultVerified | ResultRejected | ResultFoundNoRoom) -> Round:
    current = _training_round(run, event.step, event.attempt, event.client_id, "result")
    before = current.commitments.get(event.client_id)
    if before is None or before.result_sha256 != event.result_sha256:
        raise Refused(Refusal.NOT_COMMITTED, f"client {event.client_id} did not commit to {event.result_sha256}")
    return current


def _with(run: Run, current: Round, **arrived: Any) -> Handled:
    return replace(run, round=replace(current, **arrived)), ()
