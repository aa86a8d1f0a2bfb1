"""The phases of a run, by the names that `state.toml` and the run document spell."""

from enum import StrEnum


class RunState(StrEnum):
    """The phase of a run (`run_state`)."""

    UNINITIALIZED = "Uninitialized"
    WAITING_FOR_MEMBERS = "WaitingForMembers"
    WARMUP = "Warmup"
    ROUND_TRAIN = "RoundTrain"
    ROUND_WITNESS = "RoundWitness"
    COOLDOWN = "Cooldown"
    FINISHED = "Finished"
    PAUSED = "Paused"


ROUND_PHASES = frozenset({RunState.ROUND_TRAIN, RunState.ROUND_WITNESS})
"""The phases in which the run document holds a round."""
