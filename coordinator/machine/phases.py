"""The phases of a run and every transition between them, in one table.

Theory of operation. A run waits for members, warms up until they hold the model and the data, and then alternates
RoundTrain (clients train and publish) with RoundWitness (the elected witnesses say what arrived in time) until the
epoch ends; Cooldown makes the epoch's checkpoint. `coordinator/machine/transitions.py` decides *whether* to move, and
names a trigger from this table; the table alone says *where to*. A trigger that the table does not allow from the
present phase is a bug of ours, never something that a peer can cause.
"""

from state.errors import InternalError
from state.phases import RunState
from state.transition_table import TransitionTable

TRANSITIONS = [
    {
        "trigger": "started",
        "source": RunState.UNINITIALIZED,
        "dest": RunState.WAITING_FOR_MEMBERS,
        "label": "the coordinator serves the run",
    },
    {
        "trigger": "members_gathered",
        "source": RunState.WAITING_FOR_MEMBERS,
        "dest": RunState.WARMUP,
        "label": "enough members, extra time over",
    },
    {
        "trigger": "members_lost",
        "source": RunState.WARMUP,
        "dest": RunState.WAITING_FOR_MEMBERS,
        "label": "fewer than min_clients, or no checkpoint in time",
    },
    {
        "trigger": "warmed_up",
        "source": RunState.WARMUP,
        "dest": RunState.ROUND_TRAIN,
        "label": "all ready, or time over",
    },
    {
        "trigger": "results_in",
        "source": RunState.ROUND_TRAIN,
        "dest": RunState.ROUND_WITNESS,
        "label": "a quorum saw every result, or time over",
    },
    {
        "trigger": "next_round",
        "source": RunState.ROUND_WITNESS,
        "dest": RunState.ROUND_TRAIN,
        "label": "all elected attested or gone, or time over",
    },
    {
        "trigger": "epoch_ended",
        "source": RunState.ROUND_WITNESS,
        "dest": RunState.COOLDOWN,
        "label": "below min_clients, epoch time over, total_steps reached, pause pending, or blobs near their bound",
    },
    {
        "trigger": "epoch_closed",
        "source": RunState.COOLDOWN,
        "dest": RunState.WAITING_FOR_MEMBERS,
        "label": "checkpoint verified, or time over",
    },
    {
        "trigger": "held",
        "source": RunState.COOLDOWN,
        "dest": RunState.PAUSED,
        "label": "checkpoint verified or time over, pause pending",
    },
    {
        "trigger": "finished",
        "source": RunState.COOLDOWN,
        "dest": RunState.FINISHED,
        "label": "checkpoint verified or time over, all steps done",
    },
    {"trigger": "held", "source": RunState.WAITING_FOR_MEMBERS, "dest": RunState.PAUSED, "label": "pause"},
    {"trigger": "held", "source": RunState.WARMUP, "dest": RunState.PAUSED, "label": "pause"},
    {
        "trigger": "finished",
        "source": RunState.WAITING_FOR_MEMBERS,
        "dest": RunState.FINISHED,
        "label": "all steps done",
    },
    {"trigger": "resumed", "source": RunState.PAUSED, "dest": RunState.WAITING_FOR_MEMBERS, "label": "resume"},
    {
        "trigger": "extended",
        "source": RunState.FINISHED,
        "dest": RunState.WAITING_FOR_MEMBERS,
        "label": "total_steps raised",
    },
]
"""Every transition, as `transitions.Machine` takes it; the label is its condition in words."""

PHASES = TransitionTable(RunState, TRANSITIONS)


def destination(phase: RunState, trigger: str) -> RunState:
    """Return the phase that `trigger` leads to from `phase`.

    Raises:
        InternalError: the table has no such transition.
    """
    found = PHASES.fire(phase, trigger)
    if found is None:
        raise InternalError(f"the phase table has no transition {trigger!r} from {phase.value}")
    return found
