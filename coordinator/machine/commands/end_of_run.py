"""The end of a run: after `total_steps`, or earlier, after the step that its operator named."""

from dataclasses import replace

from epochal.coordinator.machine.parts.phase_clock import PhaseClock
from epochal.coordinator.machine.parts.run_progress import RunProgress
from epochal.coordinator.machine.stimuli import FinishRequested
from epochal.state.config.state_file import RunConfig
from epochal.state.errors import Refused
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.text.amounts import all_of

_UNDER_WAY = (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, RunState.FINISHED)
"""Phases in which the present step is not the last one's past: its round is under way, or the run would go on to it."""


def finish(progress: RunProgress, clock: PhaseClock, config: RunConfig, event: FinishRequested) -> RunProgress:
    """Return the progress of a run that ends after a step, or, with None, after `total_steps` again.

    A finished run goes on if its end is moved behind what it has done.

    Raises:
        Refused: `not-now` for a step that is over, or beyond `total_steps`.
    """
    after, most = event.after_step, config.total_steps
    least = progress.step if clock.phase in _UNDER_WAY else progress.replica_step
    if after is not None and not least <= after <= most:
        allowed = f"allowed: {least} to {most}" if least <= most else f"{all_of(most, 'step')} done"
        raise Refused(Refusal.NOT_NOW, f"the run cannot end after step {after}; {allowed}")
    if after == progress.finish_after:
        return progress
    moved = replace(progress, finish_after=after)
    return moved if moved.step > moved.last_step(most) else moved.draining_anew()
