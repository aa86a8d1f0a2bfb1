"""The end of a run: after `total_steps`, or earlier, after the step that its operator named."""

from dataclasses import replace

from epochal.coordinator.machine.operator_stimuli import FinishRequested
from epochal.coordinator.machine.run import Handled, Run
from epochal.coordinator.machine.transitions import END_MOVED
from epochal.state.errors import Refused
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal

_UNDER_WAY = (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.FINISHED)
"""Phases in which the present step is not the last one's past: its round is under way, or the run would go on to it."""


def finish(run: Run, event: FinishRequested) -> Handled:
    """Return the run that ends after a step; or, with None, after `total_steps` again.

    A finished run goes on if its end is moved behind what it has done.

    Raises:
        Refused: `not-now` for a step that is over, or beyond `total_steps`.
    """
    after, most = event.after_step, run.state_file.config.total_steps
    least = run.progress.step if run.clock.phase in _UNDER_WAY else run.progress.replica_step
    if after is not None and not least <= after <= most:
        allowed = f"allowed: {least} to {most}" if least <= most else f"all {most} steps are done"
        raise Refused(Refusal.NOT_NOW, f"the run cannot end after step {after}; {allowed}")
    if after == run.progress.finish_after:
        return run, ()
    moved = run.with_parts(replace(run.progress, finish_after=after))
    if run.progress.step > moved.last_step:
        return moved, ()
    reason = END_MOVED if run.clock.phase is RunState.FINISHED else run.clock.reason
    return moved.with_parts(replace(moved.progress, drain_rounds=0), replace(moved.clock, reason=reason)), ()
