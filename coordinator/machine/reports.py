"""What clients report during a round: commitments, results, attestations, failures. Pure handlers of the machine.

Every report names its round, `(step, attempt)`. One for a round that is over is refused by name; one that repeats what
is known changes nothing.
"""

from dataclasses import replace

from coordinator.machine.round import Attested, Commitment, Failure, Round, plan_of
from coordinator.machine.run import Run
from coordinator.machine.stimuli import (
    AttestationReceived,
    Instruction,
    ResultCommitted,
    ResultRejected,
    ResultVerified,
    StepFailed,
)
from state.errors import Refused
from state.phases import ROUND_PHASES, RunState
from state.refusals import Refusal
from state.wire import ClientId


def _round_of(run: Run, step: int, attempt: int, *, late_kind: Refusal) -> Round:
    current = run.round
    if run.phase not in ROUND_PHASES or current is None or (current.step, current.attempt) != (step, attempt):
        found = "no round is under way" if current is None else f"round {current.step} try {current.attempt} is"
        raise Refused(late_kind, f"round {step} try {attempt} is over or has not begun; {found}")
    return current


def _training_round(run: Run, step: int, attempt: int, client_id: ClientId, what: str) -> Round:
    current = _round_of(run, step, attempt, late_kind=Refusal.LATE_RESULT)
    if run.phase is not RunState.ROUND_TRAIN:
        raise Refused(Refusal.LATE_RESULT, f"the {what} of round {step} try {attempt} came too late")
    if not plan_of(current).assignments.get(client_id):
        raise Refused(Refusal.NOT_IN_ROSTER, f"client {client_id} has no assignment in round {step} try {attempt}")
    return current


def _with_round(run: Run, current: Round) -> Run:
    return replace(run, round=current)


def commit_result(run: Run, event: ResultCommitted, instructions: list[Instruction]) -> Run:
    """Bind a client to one result.

    Raises:
        Refused: `late-result`, `not-in-roster` or `already-committed`.
    """
    current = _training_round(run, event.step, event.attempt, event.client_id, "commitment")
    before = current.commitments.get(event.client_id)
    if before is not None:
        if before.result_sha256 != event.result_sha256:
            raise Refused(
                Refusal.ALREADY_COMMITTED,
                f"client {event.client_id} is bound to result {before.result_sha256} in this round",
                committed=before.result_sha256,
            )
        return run
    if event.client_id in current.failures:
        raise Refused(Refusal.ALREADY_COMMITTED, f"client {event.client_id} reported that it failed in this round")
    commitment = Commitment(event.result_sha256, event.size_bytes, event.metrics)
    return _with_round(run, replace(current, commitments={**current.commitments, event.client_id: commitment}))


def verify_result(run: Run, event: ResultVerified, instructions: list[Instruction]) -> Run:
    """Count a result whose bytes are held and checked.

    Raises:
        Refused: `late-result`, `not-in-roster` or `not-committed`.
    """
    current = _training_round(run, event.step, event.attempt, event.client_id, "result")
    before = current.commitments.get(event.client_id)
    if before is None or before.result_sha256 != event.result_sha256:
        raise Refused(Refusal.NOT_COMMITTED, f"client {event.client_id} did not commit to {event.result_sha256}")
    if before.replica_digest is not None:
        return run
    commitment = replace(before, replica_digest=event.replica_digest, rejected=None)
    return _with_round(
        run,
        replace(
            current,
            commitments={**current.commitments, event.client_id: commitment},
            verified=(*current.verified, event.client_id),
            pending=current.pending - {event.client_id},
        ),
    )


def reject_result(run: Run, event: ResultRejected, instructions: list[Instruction]) -> Run:
    """Remember that a committed result broke a rule. The commitment binds, so the work will be carried.

    Raises:
        Refused: `late-result`, `not-in-roster` or `not-committed`.
    """
    current = _training_round(run, event.step, event.attempt, event.client_id, "result")
    before = current.commitments.get(event.client_id)
    if before is None or before.result_sha256 != event.result_sha256:
        raise Refused(Refusal.NOT_COMMITTED, f"client {event.client_id} did not commit to {event.result_sha256}")
    if before.replica_digest is not None or before.rejected is not None:
        return run
    return _with_round(
        run,
        replace(
            current,
            commitments={**current.commitments, event.client_id: replace(before, rejected=event.rule)},
            pending=current.pending - {event.client_id},
        ),
    )


def attest(run: Run, event: AttestationReceived, instructions: list[Instruction]) -> Run:
    """Take a witness's word on what it holds. It may be sent again, and closes with the phase.

    Raises:
        Refused: `stale-round` or `not-in-roster`.
    """
    current = _round_of(run, event.step, event.attempt, late_kind=Refusal.STALE_ROUND)
    plan = plan_of(current)
    if event.client_id not in plan.witnesses:
        raise Refused(Refusal.NOT_IN_ROSTER, f"client {event.client_id} is no witness of round {event.step}")
    held = 0
    for client_id in current.verified:
        held |= 1 << plan.positions[client_id]
    closing = run.phase is RunState.ROUND_WITNESS
    attested = Attested(event.replica_digest, f"{int(event.received, 16) & held:x}", closing)
    if current.attestations.get(event.client_id) == attested:
        return run
    return _with_round(run, replace(current, attestations={**current.attestations, event.client_id: attested}))


def fail_step(run: Run, event: StepFailed, instructions: list[Instruction]) -> Run:
    """Take a client's word that it cannot deliver in this round.

    Raises:
        Refused: `late-result`, `not-in-roster`, or `already-committed` when its result is held.
    """
    current = _training_round(run, event.step, event.attempt, event.client_id, "failure report")
    if event.client_id in current.failures:
        return run
    if event.client_id in current.verified:
        raise Refused(Refusal.ALREADY_COMMITTED, f"the result of client {event.client_id} is held already")
    failure = Failure(event.kind, event.message, event.batch_id)
    return _with_round(
        run,
        replace(
            current,
            failures={**current.failures, event.client_id: failure},
            pending=current.pending - {event.client_id},
        ),
    )
