"""The run's machine: `handle(run, stamped) -> (run', instructions)`. No clock, no I/O, no randomness.

Theory of operation. A stimulus first changes what it is about (a member, a commitment, an attestation, a claim), or
is refused; then the run makes every move that it can (`coordinator/machine/transitions.py`), each through the phase
table: `transitions` names a trigger, and only the table says where to; one that it does not allow is a bug of ours. A
refused stimulus raises `Refused` and changes nothing: the run is a value, and the caller keeps the old one. When
nothing changed, the same object is returned, so that the shell need not keep or publish anything.

A stimulus brings the time, which never goes back, and random bytes, from which each use derives its own.
"""

import hashlib
from dataclasses import replace

from epochal.coordinator.machine import access, checkpoints, datasets, membership, reports, stimuli
from epochal.coordinator.machine.blame import release
from epochal.coordinator.machine.commands import end_of_run, planned_changes, rewinding
from epochal.coordinator.machine.instructions import Instruction, OperatorActed, PhaseChanged, Recorded
from epochal.coordinator.machine.outcomes import take_update
from epochal.coordinator.machine.pace import expected_s, train_limit_s
from epochal.coordinator.machine.parts.checkpointing import Checkpointing
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.run_identity import CompactedJournal, RunIdentity
from epochal.coordinator.machine.provisional_round import looked_ahead
from epochal.coordinator.machine.replays import comparison, judging, reveals, scores
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.stimuli import (
    AccessCommand,
    AuditReported,
    FinishRequested,
    InvitationMade,
    InvitationRevoked,
    KeyAdmitted,
    KeyRemoved,
    OperatorStimulus,
    RecordedStimulus,
    Stamped,
    Stimulus,
)
from epochal.coordinator.machine.transitions import decide
from epochal.coordinator.machine.work import begin_round
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InternalError, Refused
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.transition_table import EVERY_STATE, TransitionTable
from epochal.state.wire import Seed, client_id_of

UNINITIALIZED, WAITING, WARMUP, TRAIN, WITNESS, COOLDOWN, FINISHED, PAUSED = RunState

# fmt: off
TRANSITIONS = (
    ("started",          UNINITIALIZED, WAITING,  "the coordinator serves the run"),
    ("members_gathered", WAITING,       WARMUP,   "enough members, extra time over"),
    ("members_lost",     WARMUP,        WAITING,  "fewer than min_clients, or no checkpoint in time"),
    ("warmed_up",        WARMUP,        TRAIN,    "all ready, or enough and the others had time"),
    ("results_in",       TRAIN,         WITNESS,  "a quorum attested all results, only newcomers late, or time over"),
    ("next_round",       WITNESS,       TRAIN,    "a quorum attested everything, or time over"),
    ("epoch_ended",      WITNESS,       COOLDOWN, "below min_clients, epoch time over, last step done, "
                                                  "pause pending, or blobs near their limit"),
    ("epoch_closed",     COOLDOWN,      WAITING,  "checkpoint verified, or time over"),
    ("held",             COOLDOWN,      PAUSED,   "checkpoint verified or time over, pause pending"),
    ("finished",         COOLDOWN,      FINISHED, "checkpoint verified or time over, all steps done"),
    ("held",             WAITING,       PAUSED,   "pause"),
    ("held",             WARMUP,        PAUSED,   "pause"),
    ("finished",         WAITING,       FINISHED, "all steps done"),
    ("resumed",          PAUSED,        WAITING,  "resume"),
    ("extended",         FINISHED,      WAITING,  "last step moved, or batches released"),
)
# fmt: on
"""Every transition that a run makes by itself: trigger, source, destination, and the condition in words."""
REWOUND = ("rewound", EVERY_STATE, WAITING, "an operator takes the run back to a checkpoint")
"""Going back, from any phase."""

PHASES = TransitionTable(RunState, (*TRANSITIONS, REWOUND))
"""A run waits for members, warms up until they hold the model and the data, and then alternates RoundTrain (clients
train and publish) with RoundWitness (the elected witnesses say what arrived in time) until the epoch ends; Cooldown
makes the epoch's checkpoint. Witnesses attest while a round trains, and the attestation that completes the quorum
(`results_in`) usually ends both phases at once: RoundWitness is published only if some are late."""

MAX_MOVES_PER_STIMULUS = 16
"""Maximum number of phase changes on one stimulus; more are a bug."""


def destination(phase: RunState, trigger: str) -> RunState:
    """Return the phase that `trigger` leads to from `phase`. Raise `InternalError` if the table has no such row."""
    found = PHASES.fire(phase, trigger)
    if found is None:
        raise InternalError(f"the phase table has no transition {trigger!r} from {phase.value}")
    return found


def handle(run: Run, stamped: Stamped) -> Handled:
    """Return the run after the stimulus, and what the shell must do after it has kept that run.

    Raises:
        Refused: the stimulus is not allowed now; `kind` says why, and nothing has changed.
    """
    now = run.with_parts(run.clock.at(stamped.now_s))
    if isinstance(stamped.stimulus, stimuli.CoordinatorStarted):
        now = _rebase(now, now.clock.now_s - run.clock.now_s)
    after, instructions = _take(now, stamped.stimulus)
    if after is not now and isinstance(stamped.stimulus, OperatorStimulus):
        instructions = (*instructions, OperatorActed(stamped.stimulus, run.identity.state_file, now.clock.now_s))
    after, told = _advance(_expecting(after), stamped.seed)
    after = looked_ahead(now, after)
    if after is now and not isinstance(stamped.stimulus, stimuli.CoordinatorStarted):
        return run, ()
    return after, (*instructions, *told)


def _derived_seed(seed: Seed, purpose: str, number: int) -> Seed:
    """Return the random bytes for one use of a stimulus's seed."""
    return Seed(hashlib.sha256(b"\x00".join((bytes.fromhex(seed), purpose.encode(), b"%d" % number))).hexdigest())


def _rebase(run: Run, outage_s: float) -> Run:
    """Return the run with every running time moved by the length of an outage, so that the outage ends nothing."""
    making = run.models.checkpointing
    models = run.models.making(None if making is None else _moved(making, outage_s))
    return run.with_parts(run.clock.after_outage(outage_s), run.pace.after_outage(outage_s), models)


def _moved(making: Checkpointing, outage_s: float) -> Checkpointing:
    ends_s = None if making.ends_s is None else making.ends_s + outage_s
    return replace(making, turns=replace(making.turns, asked_s=making.turns.asked_s + outage_s), ends_s=ends_s)


def _take(run: Run, stimulus: Stimulus) -> Handled:
    match stimulus:
        case stimuli.Ticked() | stimuli.CoordinatorStarted():
            return checkpoints.ask_next(membership.gathered(run))  # a rest may be over, or a turn
        case stimuli.RunRestored() | stimuli.CoordinatorKeyReplaced():
            return run.with_parts(_of_new_lineage(run.identity, stimulus)), ()
        case stimuli.RunRewound():
            return _rewound(run, stimulus)
        case stimuli.ClientJoined():
            return membership.join(run, stimulus)
        case stimuli.ClientWithdrew():
            return membership.withdraw(run, stimulus.client_id)
        case stimuli.LeaveAnnounced():
            return membership.announce_leave(run, stimulus.client_id)
        case stimuli.ClientsFellSilent():
            has_ended = run.clock.phase is RunState.FINISHED  # clients end then, without a word
            return membership.leave(run, stimulus.client_ids, "left the finished run" if has_ended else "fell silent")
        case stimuli.ClientEjected():
            return membership.eject(run, stimulus.client_id)
        case stimuli.ClientBecameReady():
            return membership.become_ready(run, stimulus)
        case stimuli.ResultReceived() | stimuli.StateRevealed():
            return _take_delivery(run, stimulus)
        case stimuli.AttestationReceived():
            return run.with_parts(reports.attest(run.round, run.clock, stimulus)), ()
        case stimuli.StepFailed():
            return run.with_parts(reports.fail_step(run.round, run.clock, stimulus)), ()
        case stimuli.TimesReported():
            return reports.note_times(run, stimulus)
        case stimuli.CheckpointReported():
            return checkpoints.report(run, stimulus)
        case stimuli.CheckpointHeld():
            return checkpoints.hold(run, stimulus)
        case stimuli.CheckpointRejected():
            return checkpoints.reject(run, stimulus)
        case stimuli.GenesisProvided():
            return checkpoints.provide_genesis(run, stimulus)
        case stimuli.UpdateMade():
            return _take_update(run, stimulus), ()
        case stimuli.DataFingerprintSet():
            return membership.gathered(datasets.set_fingerprint(run, stimulus)), ()
        case stimuli.PauseRequested() | stimuli.ResumeRequested():
            return _pause(run, pause=isinstance(stimulus, stimuli.PauseRequested)), ()
        case stimuli.BatchesReleased():
            work, ended = release(run.work, stimulus)
            return run.with_parts(work, run.progress.draining_anew()), (ended,)
        case stimuli.BlobsNearedBound():
            return run.with_parts(checkpoints.near_bound(run.models, stimulus)), ()
        case stimuli.ScoreReported():
            return scores.take(run, stimulus)
        case stimuli.ReplayReported() | stimuli.ReplayFailed() | stimuli.CalibrationReported():
            return judging.take(run, stimulus)
        case stimuli.ResultsCompared():
            return comparison.take(run, stimulus)
        case stimuli.ClientAbsolved():
            return judging.absolve(run, stimulus), ()
        case FinishRequested() | InvitationMade() | InvitationRevoked() | KeyAdmitted() | KeyRemoved():
            return _take_command(run, stimulus)
        case AuditReported() | stimuli.NoticeRaised() | stimuli.NoticeSettled() | stimuli.EvaluationReported():
            return _record(run, stimulus)
        case stimuli.JournalCompacted():
            found = CompactedJournal(stimulus.segment_count, stimulus.proof_sha256)
            return run.with_parts(run.identity.with_compacted(found)), ()
        case stimuli.ConfigChanged():
            return _change_config(run, stimulus.state_file), ()
        case stimuli.ChangeAnnounced() | stimuli.ChangeWithdrawn():
            return planned_changes.take(run, stimulus), ()


def _take_delivery(run: Run, event: stimuli.ResultReceived | stimuli.StateRevealed) -> Handled:
    if isinstance(event, stimuli.StateRevealed):
        return reveals.take(run, event)
    reveals.check_states(run, event.client_id, event.report)
    current, told = reports.receive_result(run.round, run.clock, event)
    return run.with_parts(current), told


def _of_new_lineage(identity: RunIdentity, event: stimuli.RunRestored | stimuli.CoordinatorKeyReplaced) -> RunIdentity:
    key = event.coordinator_key if isinstance(event, stimuli.CoordinatorKeyReplaced) else identity.coordinator_key
    return replace(identity, coordinator_key=key, lineage=event.lineage)


def _rewound(run: Run, event: stimuli.RunRewound) -> Handled:
    """Return the run that waits for its members in the branch that begins. Raises as `rewinding.rewind`."""
    before, (after, told) = run.clock.phase, rewinding.rewind(run, event)
    if after is run:
        return run, ()
    phase, reason = destination(before, "rewound"), f"an operator took the run back to step {event.to_step}"
    after = _at_rest(after.with_parts(after.clock.entered(phase, None, reason)))
    return membership.gathered(datasets.agreed(after)), (*told, PhaseChanged(before, phase, reason))


def _take_update(run: Run, event: stimuli.UpdateMade) -> Run:
    """Return the run with the update of a step. The round that trains from its replica has all of its time from now."""
    models, current = take_update(run.models, event), run.round
    is_awaited = current is not None and current.number.step == event.update.step + 1
    if models is run.models or not is_awaited or run.clock.phase is not RunState.ROUND_TRAIN:
        return run.with_parts(models)
    return _with_round_limit(run.with_parts(models), current)


def _with_round_limit(run: Run, current: Round | None) -> Run:
    """Return the run in RoundTrain, whose round has all of its time from now on."""
    expected = 0.0 if current is None else expected_s(current, run.members)
    limit_s = train_limit_s(run.pace, run.state_file.config.max_round_train_time, expected)
    return run.with_parts(run.clock.with_limit(limit_s))


def _take_command(run: Run, stimulus: AccessCommand) -> Handled:
    members, allowed = run.members, run.state_file.access
    match stimulus:
        case FinishRequested():
            return run.with_parts(end_of_run.finish(run.progress, run.clock, run.state_file.config, stimulus)), ()
        case InvitationMade():
            admissions = access.invite(members.admissions, allowed, stimulus, run.clock.now_s)
        case InvitationRevoked():
            admissions = access.revoke(members.admissions, stimulus)
        case KeyAdmitted():
            admissions = access.admit_key(members, allowed, stimulus)
        case KeyRemoved():
            kept = members.admitting(access.remove_key(members.admissions, allowed, stimulus))
            owner = client_id_of(bytes.fromhex(stimulus.public_key))
            return membership.leave(run.with_parts(kept), (owner,), access.LOST_ACCESS)
    return run.with_parts(members.admitting(admissions)), ()


def _record(run: Run, stimulus: RecordedStimulus) -> Handled:
    """Return the same run as another value, so that the stimulus is kept."""
    return replace(run), (Recorded(stimulus, run.progress.replica_step, run.clock.now_s),)


def _pause(run: Run, *, pause: bool) -> Run:
    if run.clock.phase is RunState.FINISHED:
        raise Refused(Refusal.NOT_NOW, "the run is finished and cannot be paused or resumed")
    return run.with_parts(run.progress.pausing(pause=pause))


def _change_config(run: Run, state_file: StateFile) -> Run:
    """Return the run with the edited fields; its phase and progress stay."""
    known = run.identity.state_file
    kept = {"progress": known.progress, "changes": known.changes}
    before, state_file = known.access, state_file.model_copy(update=kept)
    if state_file == known:
        return run
    making = run.models.checkpointing
    if making is not None and making.genesis and state_file.access.genesis == "operator":
        making = None
    members = run.members.admitting(run.members.admissions.after_edit(before, state_file.access))
    run = run.with_parts(run.identity.with_state_file(state_file), run.models.making(making), members)
    return membership.gathered(datasets.agreed(run))


def _expecting(run: Run) -> Run:
    """Return the run with the times since when RoundTrain expects nothing more of the electorate, and of anybody."""
    if run.round is None or run.clock.phase is not RunState.ROUND_TRAIN:
        return run
    return run.with_parts(run.round.expecting(run.clock.in_phase_s))


def _advance(run: Run, seed: Seed) -> Handled:
    instructions: tuple[Instruction, ...] = ()
    for number in range(MAX_MOVES_PER_STIMULUS):
        move = decide(run, seed)
        if move is None:
            return run, instructions
        before, phase = run.clock.phase, destination(run.clock.phase, move.trigger)
        run, told = _enter(move.run, phase, move.reason, _derived_seed(seed, phase.value, number))
        instructions = (*instructions, *move.instructions, PhaseChanged(before, phase, move.reason), *told)
    raise InternalError(f"the run made {MAX_MOVES_PER_STIMULUS} moves on one stimulus")


def _enter(run: Run, phase: RunState, reason: str, seed: Seed) -> Handled:
    config = run.state_file.config
    limit_s = {
        RunState.WARMUP: config.warmup_time,
        RunState.ROUND_WITNESS: config.round_witness_time,
        RunState.COOLDOWN: config.cooldown_time,
    }.get(phase)
    run = run.with_parts(run.clock.entered(phase, limit_s, reason))
    match phase:
        case RunState.WAITING_FOR_MEMBERS:
            return membership.gathered(datasets.agreed(_at_rest(run))), ()
        case RunState.WARMUP:
            progress = run.progress.before_epoch(run.work.cursor)
            return checkpoints.begin_genesis(run.with_parts(run.members.before_warmup(), progress), seed), ()
        case RunState.ROUND_TRAIN:
            run, told = checkpoints.go_on_in_epoch(run, _derived_seed(seed, "checkpoint", 0))
            run = begin_round(_begin_epoch(run) if run.progress.height == 0 else run, seed)
            return _with_round_limit(run, run.round), told
        case RunState.COOLDOWN:
            return checkpoints.begin_cooldown(run, seed)
        case RunState.PAUSED | RunState.FINISHED:
            return _at_rest(run), ()
        case _:
            return run, ()


def _at_rest(run: Run) -> Run:
    """Return the run without a round, or a checkpoint that is being made."""
    return replace(run, models=run.models.making(None), round=None)


def _begin_epoch(run: Run) -> Run:
    """Return the run as an epoch's first round begins: a cold start, unless a client is warm that takes part."""
    clock = replace(run.clock, epoch_started_s=run.clock.now_s)
    if any(member.is_warm for member in run.ready_members()):
        return run.with_parts(clock)
    return run.with_parts(clock, replace(run.models, cold_start_step=run.progress.step))
