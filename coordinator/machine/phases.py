"""The phases of a run and every transition between them, in one table.

Theory of operation. A run waits for members, warms up until they hold the model and the data, and then alternates
RoundTrain (clients train and publish) with RoundWitness (the elected witnesses say what arrived in time) until the
epoch ends; Cooldown makes the epoch's checkpoint. Witnesses attest while a round trains, and the attestation that
completes the quorum (`results_in`) usually ends both phases at once: RoundWitness is published only if some are late.

`coordinator/machine/transitions.py` decides whether to move and names a trigger of this table; only the table says
where to. A trigger that the table does not allow from the present phase is a bug of ours; no peer can cause one.
"""

from epochal.state.errors import InternalError
from epochal.state.phase_names import RunState
from epochal.state.transition_table import EVERY_STATE, TransitionTable

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


def destination(phase: RunState, trigger: str) -> RunState:
    """Return the phase that `trigger` leads to from `phase`. Raise `InternalError` if the table has no such row."""
    found = PHASES.fire(phase, trigger)
    if found is None:
        raise InternalError(f"the phase table has no transition {trigger!r} from {phase.value}")
    return found
