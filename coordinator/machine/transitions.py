"""Decides whether a run leaves its phase now, and why: one function for each phase, read from top to bottom.

Timers are upper bounds only: each phase first checks whether everything that it waits for has arrived.
"""

from collections import Counter
from dataclasses import dataclass, replace

from epochal.coordinator.machine.datasets import agreed, next_turn
from epochal.coordinator.machine.instructions import Instruction, RunHeld, SegmentEnded
from epochal.coordinator.machine.outcomes import end_round
from epochal.coordinator.machine.pace import only_newcomers_are_late
from epochal.coordinator.machine.parts.checkpointers import agreed_checkpoint_digest, current_checkpointer
from epochal.coordinator.machine.parts.member_counts import Numbers
from epochal.coordinator.machine.parts.phase_clock import PhaseClock
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.run_members import RunMembers
from epochal.coordinator.machine.parts.run_models import RunModels
from epochal.coordinator.machine.parts.run_pace import RunPace
from epochal.coordinator.machine.resting_reason import hold_reason
from epochal.coordinator.machine.run import Run
from epochal.state.config.state_file import Access
from epochal.state.intervals import total_batches
from epochal.state.phase_names import RunState
from epochal.state.shown.tries import shown_step
from epochal.state.text.amounts import all_of, counted
from epochal.state.wire import ClientId, Seed

DRAIN_ROUNDS = 3
"""Maximum number of rounds after the last step, which attempt only the carried work."""
FAIR_WARMUP_PART = 0.5
"""Part of `warmup_time` that the others have to get ready once `min_clients` are."""


@dataclass(frozen=True, slots=True)
class Move:
    """A trigger of the phase table, the reason in words, and the run and instructions as the phase is left."""

    trigger: str
    reason: str
    run: Run
    instructions: tuple[Instruction, ...] = ()


def decide(run: Run, seed: Seed) -> Move | None:
    """Return the move that the run makes at `run.clock.now_s`, or None when it stays.

    Args:
        run: the run.
        seed: fresh random bytes, which draw the replays of a round that ends.
    """
    match run.clock.phase:
        case RunState.UNINITIALIZED:
            waits = (
                "; it waits for its first checkpoint, from `epochal genesis`"
                if _awaits_genesis(run.models, run.state_file.access)
                else ""
            )
            return Move("started", f"the coordinator serves the run{waits}", run)
        case RunState.WAITING_FOR_MEMBERS:
            return _leave_waiting(run)
        case RunState.WARMUP:
            return _leave_warmup(run)
        case RunState.ROUND_TRAIN:
            return _leave_train(run)
        case RunState.ROUND_WITNESS:
            return _leave_witness(run, seed)
        case RunState.COOLDOWN:
            return _leave_cooldown(run)
        case RunState.PAUSED:
            return None if run.progress.pause_pending else Move("resumed", "an operator resumed the run", run)
        case RunState.FINISHED:
            return None if steps_done(run) else _extend(run)


def steps_done(run: Run) -> bool:
    """Whether every step is done, and the carried work too or its drain rounds are used up."""
    if run.progress.step <= run.last_step:
        return False
    return not run.work.is_left() or run.progress.drain_rounds >= DRAIN_ROUNDS


def _done_reason(run: Run) -> str:
    is_early = run.progress.finish_after is not None and run.last_step < run.state_file.config.total_steps
    ended = f"an operator ended the run after step {run.last_step}"
    reason = ended if is_early else f"{all_of(run.state_file.config.total_steps, 'step')} done"
    left = total_batches(run.work.left())
    return f"{reason}, and {counted(left, 'batch', 'batches')} could not be applied" if left else reason


def _awaits_genesis(models: RunModels, access: Access) -> bool:
    """Whether the operator has yet to provide the first checkpoint."""
    return models.checkpoint is None and access.genesis == "operator"


def _extend(run: Run) -> Move:
    if run.progress.step <= run.last_step:
        return Move("extended", f"the last step is {run.last_step} now", run)
    return Move("extended", "an operator released quarantined batches", run)


def _leave_waiting(run: Run) -> Move | None:
    config = run.state_file.config
    if run.progress.pause_pending:
        return Move("held", "an operator paused the run", run)
    if steps_done(run):
        return Move("finished", _done_reason(run), run)
    if _awaits_genesis(run.models, run.state_file.access) or run.clock.enough_since_s is None:
        return None
    if run.clock.now_s < run.clock.enough_since_s + config.waiting_for_members_extra_time:
        return None
    return Move("members_gathered", f"{counted(len(run.members), 'member')}, {config.init_min_clients} needed", run)


def _leave_warmup(run: Run) -> Move | None:
    config = run.state_file.config
    if run.progress.pause_pending:
        return Move("held", "an operator paused the run", run)
    numbers = run.numbers()
    if numbers.available < config.min_clients:
        lacks = f"{counted(numbers.available, 'member')}, {config.min_clients} needed"
        return Move("members_lost", hold_reason(run.clock, run.members, run.state_file.config) or lacks, run)
    ready_count = numbers.ready
    if run.clock.enough_since_s is not None:
        reason = f"{ready_count} of {counted(len(run.members), 'member')} ready"
        if not _waits_in_warmup(numbers, config.min_clients):
            return _warmed_up(
                run, f"{all_of(ready_count, 'member')} ready" if ready_count == len(run.members) else reason
            )
        if (
            run.clock.is_time_over
            or run.clock.now_s >= run.clock.enough_since_s + FAIR_WARMUP_PART * config.warmup_time
        ):
            return _warmed_up(run, f"{reason}, the others have had time")
    if run.clock.is_time_over:
        missing = "no checkpoint" if run.models.checkpoint is None else f"{counted(ready_count, 'member')} ready"
        return Move("members_lost", f"{missing} when time was over, {config.min_clients} needed", next_turn(run))
    return None


def _waits_in_warmup(numbers: Numbers, min_clients: int) -> bool:
    """Whether Warmup, with enough ready members, waits for another one.

    It does not for a member that was late in the last one; nor for a newcomer, once enough are ready that were so in an
    earlier epoch: a newcomer may have long to download, and takes part in the first round after that.
    """
    waits_for_newcomers = numbers.ready_before < min_clients
    return bool(numbers.awaited if waits_for_newcomers else numbers.awaited_before)


def _warmed_up(run: Run, reason: str) -> Move:
    """Return the end of Warmup. The next one does not wait for members that were not ready in this one."""
    return Move("warmed_up", reason, run.with_parts(run.members.after_warmup(run.clock.now_s)))


def _complete_witnesses(current: Round) -> frozenset[ClientId]:
    """Return the witnesses that attested every verified result of the round."""
    held = current.results.verified_bits
    assert held is not None
    return current.witnessed.complete(held)


def _leave_train(run: Run) -> Move | None:
    current = run.round
    if current is None:
        return Move("results_in", "there is no round", run)
    reason = _results_in_reason(current, run.clock, run.pace, run.members)
    if reason is None:
        return None
    return Move("results_in", reason, run.with_parts(current.closed(run.clock.in_phase_s)))


def _results_in_reason(current: Round, clock: PhaseClock, pace: RunPace, members: RunMembers) -> str | None:
    """Return why RoundTrain ends now, or None if it goes on."""
    if clock.is_time_over:
        return "time is over"
    if current.missing.pending:
        is_enough = current.tasks.plan.decisive_count > 0 and only_newcomers_are_late(pace, clock, current.times)
        return "the others have delivered, and newcomers have had time" if is_enough else None
    if not current.results.verified:
        return "every assigned client failed or left"
    witnesses, complete = current.tasks.plan.witnesses, _complete_witnesses(current)
    if len(complete) >= current.tasks.plan.quorum:
        return f"{len(complete)} of {counted(len(witnesses), 'witness', 'witnesses')} attested every result"
    left = [witness for witness in witnesses if witness in members]
    if complete.issuperset(left):
        return "every witness that is left attested every result"
    return None


def _leave_witness(run: Run, seed: Seed) -> Move | None:
    current = run.round
    if current is None or not _is_round_over(current, run.clock, run.members):
        return None
    run, instructions = end_round(run, current, seed)
    run = agreed(next_turn(run))
    ended = _epoch_end_reason(run)
    if ended is not None:
        return Move("epoch_ended", ended, run, instructions)
    return Move("next_round", shown_step(run.progress.step, run.progress.attempt), run, instructions)


def _is_round_over(current: Round, clock: PhaseClock, members: RunMembers) -> bool:
    """Whether no attestation is waited for: time is over, a quorum agrees on everything, or all have attested or left.

    A witness that leaves this to the others is overtaken by them; nobody waits for it.
    """
    if clock.is_time_over or not current.results.verified:
        return True
    complete = _complete_witnesses(current)
    agreeing = Counter(current.witnessed.attestations[witness].replica_digest for witness in complete)
    if any(count >= current.tasks.plan.quorum for count in agreeing.values()):
        return True
    return all(
        witness not in members or witness in current.witnessed.closing or witness in complete
        for witness in current.tasks.plan.witnesses
    )


def _epoch_end_reason(run: Run) -> str | None:
    """Return why the epoch ends with the round that has ended, or None if another round follows."""
    config = run.state_file.config
    ready_count = len(run.ready_members())
    if run.progress.pause_pending:
        return "an operator paused the run"
    if steps_done(run):
        return _done_reason(run)
    if ready_count < config.min_clients:
        return (
            hold_reason(run.clock, run.members, run.state_file.config)
            or f"{counted(ready_count, 'ready member')}, {config.min_clients} needed"
        )
    if run.clock.now_s >= run.clock.epoch_started_s + config.epoch_time:
        return "epoch time is over"
    if run.models.blobs_near_bound:
        return "blobs are near their size limit"
    return None


def _leave_cooldown(run: Run) -> Move | None:
    making = run.models.checkpointing
    if making is None:
        reason = "the checkpoint is verified" if run.models.checkpoint else "there is nothing to keep"
    elif current_checkpointer(run.models, run.members) is None:
        reason = "no client is left to write the checkpoint"
    elif run.clock.is_time_over:
        claimed = "agreed" if agreed_checkpoint_digest(making) else "no quorum on a digest"
        reason = f"time is over without a verified checkpoint ({claimed})"
    else:
        return None
    instructions: tuple[Instruction, ...] = (SegmentEnded(run.progress.epoch + 1),)
    run = run.with_parts(replace(run.progress, epoch=run.progress.epoch + 1))
    if run.progress.pause_pending:
        return Move("held", reason, run, instructions)
    if steps_done(run):
        return Move("finished", _done_reason(run), run, instructions)
    hold = hold_reason(run.clock, run.members, run.state_file.config)
    if hold is not None:
        return Move("epoch_closed", hold, run, (*instructions, RunHeld(hold)))
    return Move("epoch_closed", reason, run, instructions)
