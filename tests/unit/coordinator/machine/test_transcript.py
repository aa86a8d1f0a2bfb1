"""A run from its first member to its end, stimulus by stimulus, as one golden transcript: what changes it, is seen."""

from typing import Any

from epochal.coordinator.insight.actions import action_of
from epochal.coordinator.machine.instructions import (
    Instruction,
    MembershipChanged,
    OperatorActed,
    OutcomeDecided,
    PhaseChanged,
)
from epochal.coordinator.machine.stimuli import Stimulus
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver


class Scribe(Driver):
    """A driver that writes down what each stimulus came to."""

    def __init__(self, **overrides: Any) -> None:
        self.lines: list[str] = []
        super().__init__(state_file(**overrides))

    def send(self, stimulus: Stimulus) -> tuple[Instruction, ...]:
        instructions = super().send(stimulus)
        told = ", ".join(_told(instruction) for instruction in instructions)
        if told:
            self.lines.append(f"{type(stimulus).__name__}: {told}")
        return instructions


def _told(instruction: Instruction) -> str:
    match instruction:
        case PhaseChanged(before=before, after=after):
            return f"{before.value} > {after.value}"
        case OutcomeDecided(step=step, attempt=attempt, outcome=outcome):
            return f"outcome of {step}.{attempt} " + ("empty" if outcome is None else f"of {len(outcome.entries)}")
        case MembershipChanged(change=change):
            return change
        case OperatorActed():
            name, _ = action_of(instruction)
            return f"operator: {name}"
        case _:
            return type(instruction).__name__


def test_run_from_its_first_member_to_its_end_is_this_transcript() -> None:
    scribe = Scribe(config__total_steps=3, config__epoch_time=100)
    scribe.join(1, 2)
    scribe.pass_time(2)
    scribe.warm_up()
    scribe.play_round()
    scribe.pass_time(60)  # nobody delivers: the step is tried again
    scribe.pass_time(10)
    scribe.play_round()
    scribe.now_s += 50  # the epoch's time is over
    scribe.play_round()
    scribe.make_checkpoint()
    assert "\n".join(scribe.lines) == TRANSCRIPT


TRANSCRIPT = """\
CoordinatorStarted: Uninitialized > WaitingForMembers
GenesisProvided: SweepBlobs, operator: genesis
ClientJoined: joined
ClientJoined: joined
Ticked: WaitingForMembers > Warmup
ClientBecameReady: ready
ClientBecameReady: ready, Warmup > RoundTrain
AttestationReceived: RoundTrain > RoundWitness, outcome of 1.0 of 2, RoundWitness > RoundTrain
Ticked: RoundTrain > RoundWitness, outcome of 2.0 empty, RoundWitness > RoundTrain
AttestationReceived: RoundTrain > RoundWitness, outcome of 2.1 of 2, RoundWitness > RoundTrain
AttestationReceived: RoundTrain > RoundWitness, outcome of 3.0 of 2, RoundWitness > Cooldown
CheckpointReported: SweepBlobs, SegmentEnded, Cooldown > Finished"""
