"""The run's machine: `handle(run, stimulus) -> (run', instructions)`. No clock, no I/O, no randomness.

Theory of operation. A stimulus first changes what it is about (a member, a commitment, an attestation, a claim), or
is refused; then the run makes every move that it can (`coordinator/machine/transitions.py`), each through the phase
table. A refused stimulus raises `Refused` and changes nothing: the run is a value, and the caller keeps the old one.
When nothing changed, the very same object comes back, so that the shell need not keep or publish anything.

Time comes with the stimulus and never goes back. Random bytes come with it too; each use derives its own.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coordinator.machine import checkpoints, membership
from coordinator.machine.outcomes import begin_round, end_round
from coordinator.machine.phases import destination
from coordinator.machine.reports import attest, commit_result, fail_step, reject_result, verify_result
from coordinator.machine.run import Run, config_json, lineage_of
from coordinator.machine.stimuli import (
    AttestationReceived,
    BlobsNearedBound,
    CheckpointHeld,
    CheckpointRejected,
    CheckpointReported,
    ClientBecameReady,
    ClientEjected,
    ClientJoined,
    ClientsFellSilent,
    ClientWithdrew,
    ConfigChanged,
    CoordinatorStarted,
    Instruction,
    PauseRequested,
    PhaseChanged,
    ResultCommitted,
    ResultRejected,
    ResultVerified,
    ResumeRequested,
    RunRestored,
    SegmentEnded,
    StepFailed,
    Stimulus,
    Ticked,
)
from coordinator.machine.transitions import decide, round_over_reason
from state.errors import InternalError, Refused
from state.phases import RunState
from state.refusals import Refusal
from state.wire import Seed, document_digest

MAX_MOVES_PER_STIMULUS = 16
"""A run that moves on and on without a stimulus in between is a bug."""


def handle(run: Run, stimulus: Stimulus) -> tuple[Run, list[Instruction]]:
    """The run after the stimulus, and what the shell must do once that run is kept.

    Raises:
        Refused: the stimulus is not allowed now; `kind` says why, and nothing has changed.
    """
    instructions: list[Instruction] = []
    now = replace(run, now_s=max(run.now_s, stimulus.now_s))
    if isinstance(stimulus, CoordinatorStarted):
        now = _rebase(now, stimulus.now_s - run.now_s)
    after = _HANDLERS[type(stimulus)](now, stimulus, instructions)
    after = _advance(after, stimulus.seed, instructions)
    return (run, []) if after is now and not isinstance(stimulus, CoordinatorStarted) else (after, instructions)


def derived_seed(seed: Seed, purpose: str, number: int) -> Seed:
    """A seed of its own for each use of a stimulus's random bytes."""
    return Seed(hashlib.sha256(b"\x00".join((bytes.fromhex(seed), purpose.encode(), b"%d" % number))).hexdigest())


def _rebase(run: Run, away_s: float) -> Run:
    """Shift every running time by how long the coordinator was away, so that an outage ends nothing."""
    shift = max(0.0, away_s)
    return replace(
        run,
        phase_started_s=run.phase_started_s + shift,
        phase_ends_s=None if run.phase_ends_s is None else run.phase_ends_s + shift,
        epoch_started_s=run.epoch_started_s + shift,
        enough_since_s=None if run.enough_since_s is None else run.enough_since_s + shift,
    )


def _advance(run: Run, seed: Seed, instructions: list[Instruction]) -> Run:
    for number in range(MAX_MOVES_PER_STIMULUS):
        if run.phase is RunState.ROUND_WITNESS and run.round is not None and round_over_reason(run) is not None:
            run = end_round(run, run.round, instructions)
        move = decide(run)
        if move is None:
            return run
        before = run.phase
        run = _enter(run, destination(before, move.trigger), move.reason)
        if before is RunState.COOLDOWN:
            run = replace(run, epoch=run.epoch + 1)
            instructions.append(SegmentEnded(run.epoch))
        instructions.append(PhaseChanged(before, run.phase, run.reason))
        run = _ON_ENTRY.get(run.phase, _nothing)(run, derived_seed(seed, run.phase.value, number), instructions)
    raise InternalError(f"the run made {MAX_MOVES_PER_STIMULUS} moves on one stimulus and would go on")


def _enter(run: Run, phase: RunState, reason: str) -> Run:
    config = run.state_file.config
    bound = {
        RunState.WARMUP: config.warmup_time,
        RunState.ROUND_TRAIN: config.max_round_train_time,
        RunState.ROUND_WITNESS: config.round_witness_time,
        RunState.COOLDOWN: config.cooldown_time,
    }.get(phase)
    ends_s = None if bound is None else run.now_s + bound
    return replace(run, phase=phase, phase_started_s=run.now_s, phase_ends_s=ends_s, reason=reason)


def _nothing(run: Run, seed: Seed, instructions: list[Instruction]) -> Run:
    return run


def _enter_waiting(run: Run, seed: Seed, instructions: list[Instruction]) -> Run:
    return membership.gathered(replace(run, checkpointing=None, round=None))


def _enter_warmup(run: Run, seed: Seed, instructions: list[Instruction]) -> Run:
    members = {client_id: replace(member, ready_step=None) for client_id, member in run.members.items()}
    run = replace(run, members=members, enough_since_s=None, height=0, epoch_start_batch=run.cursor)
    return checkpoints.begin_genesis(run, seed)


def _enter_round(run: Run, seed: Seed, instructions: list[Instruction]) -> Run:
    if run.height == 0:
        run = replace(run, epoch_started_s=run.now_s)
    return begin_round(replace(run, checkpointing=None), seed)


def _enter_cooldown(run: Run, seed: Seed, instructions: list[Instruction]) -> Run:
    return checkpoints.begin_cooldown(run, seed, instructions)


def _leave_epoch(run: Run, seed: Seed, instructions: list[Instruction]) -> Run:
    return replace(run, checkpointing=None, round=None)


_ON_ENTRY: dict[RunState, Callable[[Run, Seed, list[Instruction]], Run]] = {
    RunState.WAITING_FOR_MEMBERS: _enter_waiting,
    RunState.WARMUP: _enter_warmup,
    RunState.ROUND_TRAIN: _enter_round,
    RunState.COOLDOWN: _enter_cooldown,
    RunState.PAUSED: _leave_epoch,
    RunState.FINISHED: _leave_epoch,
}


def _unchanged(run: Run, event: Ticked | CoordinatorStarted, instructions: list[Instruction]) -> Run:
    return run


def _restore(run: Run, event: RunRestored, instructions: list[Instruction]) -> Run:
    return replace(run, lineage=lineage_of(event.seed))


def _silence(run: Run, event: ClientsFellSilent, instructions: list[Instruction]) -> Run:
    return membership.leave(run, event.client_ids, "fell silent", instructions)


def _withdraw(run: Run, event: ClientWithdrew, instructions: list[Instruction]) -> Run:
    return membership.leave(run, (event.client_id,), "withdrew", instructions)


def _eject(run: Run, event: ClientEjected, instructions: list[Instruction]) -> Run:
    return membership.eject(run, event.client_id, instructions)


def _pause(run: Run, event: PauseRequested, instructions: list[Instruction]) -> Run:
    if run.phase is RunState.FINISHED:
        raise Refused(Refusal.NOT_NOW, "the run is finished")
    return run if run.pause_pending else replace(run, pause_pending=True)


def _resume(run: Run, event: ResumeRequested, instructions: list[Instruction]) -> Run:
    if run.phase is RunState.FINISHED:
        raise Refused(Refusal.NOT_NOW, "the run is finished")
    return replace(run, pause_pending=False) if run.pause_pending else run


def _near_bound(run: Run, event: BlobsNearedBound, instructions: list[Instruction]) -> Run:
    return run if run.blobs_near_bound else replace(run, blobs_near_bound=True)


def _change_config(run: Run, event: ConfigChanged, instructions: list[Instruction]) -> Run:
    """Take the edited fields; phase and progress stay the run's own."""
    state_file = event.state_file.model_copy(update={"progress": run.state_file.progress})
    digest = document_digest(config_json(state_file))
    if state_file == run.state_file:
        return run
    return membership.gathered(replace(run, state_file=state_file, config_sha256=digest))


_HANDLERS: dict[type[Stimulus], Callable[[Run, Any, list[Instruction]], Run]] = {
    Ticked: _unchanged,
    CoordinatorStarted: _unchanged,
    RunRestored: _restore,
    ClientJoined: membership.join,
    ClientWithdrew: _withdraw,
    ClientsFellSilent: _silence,
    ClientEjected: _eject,
    ClientBecameReady: membership.become_ready,
    ResultCommitted: commit_result,
    ResultVerified: verify_result,
    ResultRejected: reject_result,
    AttestationReceived: attest,
    StepFailed: fail_step,
    CheckpointReported: checkpoints.report,
    CheckpointHeld: checkpoints.hold,
    CheckpointRejected: checkpoints.reject,
    PauseRequested: _pause,
    ResumeRequested: _resume,
    BlobsNearedBound: _near_bound,
    ConfigChanged: _change_config,
}
