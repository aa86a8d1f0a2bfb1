"""The phases of a run and every transition between them, in one table.

Theory of operation. A run waits for members, warms up until they hold the model and the data, and then alternates
RoundTrain (clients train and publish) with RoundWitness (the elected witnesses say what arrived in time) until the
epoch ends; Cooldown makes the epoch's checkpoint. `coordinator/machine/transitions.py` decides *whether* to move, and
names a trigger from this table; the table alone says *where to*. A trigger that the table does not allow from the
present phase is a bug of ours, never something that a peer can cause.

The table is data of the `transitions` library; no callbacks hang on it. `state_diagram()` draws it for `docs/`.
"""

from functools import cache
from typing import Any

from transitions import Machine

from state.errors import InternalError
from state.phases import RunState

TRANSITIONS: tuple[tuple[str, RunState, RunState, str], ...] = (
    ("started", RunState.UNINITIALIZED, RunState.WAITING_FOR_MEMBERS, "the coordinator serves the run"),
    ("members_gathered", RunState.WAITING_FOR_MEMBERS, RunState.WARMUP, "enough members, extra time over"),
    ("members_lost", RunState.WARMUP, RunState.WAITING_FOR_MEMBERS, "fewer than min_clients, or no checkpoint in time"),
    ("warmed_up", RunState.WARMUP, RunState.ROUND_TRAIN, "all ready, or time over"),
    ("results_in", RunState.ROUND_TRAIN, RunState.ROUND_WITNESS, "a quorum saw every result, or time over"),
    ("next_round", RunState.ROUND_WITNESS, RunState.ROUND_TRAIN, "all elected attested or gone, or time over"),
    (
        "epoch_ended",
        RunState.ROUND_WITNESS,
        RunState.COOLDOWN,
        "below min_clients, epoch time over, total_steps reached, pause pending, or blobs near their bound",
    ),
    ("epoch_closed", RunState.COOLDOWN, RunState.WAITING_FOR_MEMBERS, "checkpoint verified, or time over"),
    ("held", RunState.COOLDOWN, RunState.PAUSED, "checkpoint verified or time over, pause pending"),
    ("finished", RunState.COOLDOWN, RunState.FINISHED, "checkpoint verified or time over, all steps done"),
    ("held", RunState.WAITING_FOR_MEMBERS, RunState.PAUSED, "pause"),
    ("held", RunState.WARMUP, RunState.PAUSED, "pause"),
    ("finished", RunState.WAITING_FOR_MEMBERS, RunState.FINISHED, "all steps done"),
    ("resumed", RunState.PAUSED, RunState.WAITING_FOR_MEMBERS, "resume"),
    ("extended", RunState.FINISHED, RunState.WAITING_FOR_MEMBERS, "total_steps raised"),
)
"""(trigger, source, destination, condition) of every transition."""


@cache
def _table() -> Any:
    machine = Machine(
        model=None,
        states=[phase.value for phase in RunState],
        initial=RunState.UNINITIALIZED.value,
        auto_transitions=False,
        send_event=False,
    )
    for trigger, source, destination, _ in TRANSITIONS:
        machine.add_transition(trigger, source.value, destination.value)
    return machine


def destination(phase: RunState, trigger: str) -> RunState:
    """The phase that `trigger` leads to from `phase`.

    Raises:
        InternalError: the table has no such transition.
    """
    found = _table().get_transitions(trigger=trigger, source=phase.value)
    if len(found) != 1:
        raise InternalError(f"the phase table has no transition {trigger!r} from {phase.value}")
    return RunState(found[0].dest)


def state_diagram() -> str:
    """The table as a Mermaid state diagram, for `docs/concepts.md`."""
    lines = ["stateDiagram-v2", f"    [*] --> {RunState.UNINITIALIZED.value}"]
    lines += [f"    {source.value} --> {goal.value}: {condition}" for _, source, goal, condition in TRANSITIONS]
    lines.append(f"    {RunState.FINISHED.value} --> [*]")
    return "\n".join(lines)
