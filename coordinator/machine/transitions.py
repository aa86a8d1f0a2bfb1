"""Whether a run leaves its phase now, and why. Pure: `(run) -> Move | None`, read top to bottom per phase.

RoundWitness has two questions: `round_over_reason` asks whether the round may be taken into the run, and after that
(`run.round` is None) `decide` asks what follows.

Timers are upper bounds only (DESIGN, section 4): each phase first asks whether everything it waits for is there.
"""

from dataclasses import dataclass

from coordinator.machine.round import Round, RoundPlan, plan_of
from coordinator.machine.run import Run, agreed_checkpoint_digest, current_checkpointer
from state.phases import RunState
from state.wire import ClientId

DRAIN_ROUNDS = 3
"""After `total_steps`, at most so many rounds try again what is still carried."""


@dataclass(frozen=True, slots=True)
class Move:
    """A trigger of the phase table, and the reason in words."""

    trigger: str
    reason: str


def decide(run: Run) -> Move | None:
    """The move that the run makes at `run.now_s`, or None when it stays."""
    match run.phase:
        case RunState.UNINITIALIZED:
            return Move("started", "the coordinator serves the run")
        case RunState.WAITING_FOR_MEMBERS:
            return _leave_waiting(run)
        case RunState.WARMUP:
            return _leave_warmup(run)
        case RunState.ROUND_TRAIN:
            return _leave_train(run)
        case RunState.ROUND_WITNESS:
            return _leave_witness(run)
        case RunState.COOLDOWN:
            return _leave_cooldown(run)
        case RunState.PAUSED:
            return None if run.pause_pending else Move("resumed", "an operator resumed the run")
        case RunState.FINISHED:
            return None if steps_done(run) else Move("extended", "total_steps was raised")


def steps_done(run: Run) -> bool:
    """Whether every step is taken and what is still carried has had its drain rounds."""
    if run.step <= run.state_file.config.total_steps:
        return False
    return not (run.carried or run.suspects) or run.drain_rounds >= DRAIN_ROUNDS


def time_is_over(run: Run) -> bool:
    """Whether the phase's deadline has passed."""
    return run.phase_ends_s is not None and run.now_s >= run.phase_ends_s


def _leave_waiting(run: Run) -> Move | None:
    config = run.state_file.config
    if run.pause_pending:
        return Move("held", "an operator paused the run")
    if steps_done(run):
        return Move("finished", f"all {config.total_steps} steps are done")
    if run.enough_since_s is None or len(run.members) < config.init_min_clients:
        return None
    if run.now_s < run.enough_since_s + config.waiting_for_members_extra_time:
        return None
    return Move("members_gathered", f"{len(run.members)} members, {config.init_min_clients} needed")


def _leave_warmup(run: Run) -> Move | None:
    config = run.state_file.config
    if run.pause_pending:
        return Move("held", "an operator paused the run")
    if len(run.members) < config.min_clients:
        return Move("members_lost", f"{len(run.members)} members, {config.min_clients} needed")
    ready_count = sum(member.ready_step is not None for member in run.members.values())
    if run.checkpoint is not None and ready_count >= config.min_clients:
        if ready_count == len(run.members):
            return Move("warmed_up", f"all {ready_count} members are ready")
        if time_is_over(run):
            return Move("warmed_up", f"{ready_count} of {len(run.members)} members are ready, time is over")
    if time_is_over(run):
        missing = "no checkpoint" if run.checkpoint is None else f"{ready_count} members ready"
        return Move("members_lost", f"{missing} when time was over, {config.min_clients} needed")
    return None


def covers_verified(current: Round, plan: RoundPlan, received: int) -> bool:
    """Whether a bit set of roster positions names every verified result of the round."""
    return all(received >> plan.positions[client_id] & 1 for client_id in current.verified)


def _witnesses_with_everything(current: Round, plan: RoundPlan) -> list[ClientId]:
    return [
        witness
        for witness in plan.witnesses
        if (attested := current.attestations.get(witness)) is not None
        and covers_verified(current, plan, int(attested.received, 16))
    ]


def _leave_train(run: Run) -> Move | None:
    current = run.round
    if current is None or time_is_over(run):
        return Move("results_in", "time is over")
    if current.pending:
        return None
    if not current.verified:
        return Move("results_in", "every assigned client failed or left")
    plan = plan_of(current)
    complete = _witnesses_with_everything(current, plan)
    live = sum(witness in run.members for witness in plan.witnesses)
    if len(complete) >= plan.quorum:
        return Move("results_in", f"{len(complete)} of {len(plan.witnesses)} witnesses saw every result")
    if all(witness in complete for witness in plan.witnesses if witness in run.members):
        return Move("results_in", f"all {live} witnesses that are left saw every result")
    return None


def round_over_reason(run: Run) -> str | None:
    """Why the round under way takes no more attestations, or None while it does (RoundWitness)."""
    current = run.round
    if current is None:
        return None
    if time_is_over(run):
        return "time is over"
    if not current.verified:
        return "there is no result to attest"
    plan = plan_of(current)
    for witness in plan.witnesses:
        attested = current.attestations.get(witness)
        if attested is None and witness in run.members:
            return None
        may_send_more = attested is not None and not attested.closing and witness in run.members
        if attested and may_send_more and not covers_verified(current, plan, int(attested.received, 16)):
            return None
    return "every elected witness attested or left"


def _leave_witness(run: Run) -> Move | None:
    if run.round is not None:
        return None
    ended = epoch_end_reason(run)
    return Move("epoch_ended", ended) if ended else Move("next_round", f"step {run.step}, try {run.attempt + 1}")


def epoch_end_reason(run: Run) -> str | None:
    """Why no further round follows in this epoch once the last one is taken into the run; None when one does."""
    config = run.state_file.config
    ready_count = len(run.ready_members())
    if run.pause_pending:
        return "an operator paused the run"
    if steps_done(run):
        return f"all {config.total_steps} steps are done"
    if ready_count < config.min_clients:
        return f"{ready_count} ready members, {config.min_clients} needed"
    if run.now_s >= run.epoch_started_s + config.epoch_time:
        return "epoch time is over"
    if run.blobs_near_bound:
        return "blobs are near their bound"
    return None


def _leave_cooldown(run: Run) -> Move | None:
    making = run.checkpointing
    if making is None:
        reason = "the checkpoint is verified" if run.checkpoint else "there is nothing to keep"
    elif current_checkpointer(run) is None:
        reason = "nobody is left to write the checkpoint"
    elif time_is_over(run):
        claimed = "agreed" if agreed_checkpoint_digest(making) else "no quorum on a digest"
        reason = f"time is over without a verified checkpoint ({claimed})"
    else:
        return None
    if run.pause_pending:
        return Move("held", reason)
    return Move("finished" if steps_done(run) else "epoch_closed", reason)
