"""Instructions of the machine to the service that owns the run: things to do, and events to log.

The service executes them after it has kept the run that gave them (`coordinator/run/service.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from epochal.coordinator.machine.parts.member import Member
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.verification import OpenReplay
from epochal.coordinator.machine.stimuli import OperatorStimulus, RecordedStimulus
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome, RewindMark
from epochal.state.intervals import BatchId
from epochal.state.messages.replay_messages import ReplayReport, ScoreReport
from epochal.state.messages.round_times import LaterTimes
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """Log the phase, and rewrite `state.toml`."""

    before: RunState
    after: RunState
    reason: str


@dataclass(frozen=True, slots=True)
class Rewound:
    """Log that the run went back to a kept checkpoint, and mark the later rounds in its history.

    Attributes:
        mark: the branch that begins, and the replica from which it does.
        rounds: number of applied rounds that were taken back.
        batches_again, batches_skipped: number of batches that are trained again, and of those that are passed over.
    """

    mark: RewindMark
    rounds: int
    batches_again: int
    batches_skipped: int


@dataclass(frozen=True, slots=True)
class RunHeld:
    """Log that the run waits for members that rest, and for what they rest."""

    reason: str


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """Open a new journal segment with a snapshot: an epoch begins, or a checkpoint was kept within one."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EndedRound:
    """A round that has ended, for the run's history: itself, and the run around it.

    Attributes:
        epoch: in which it ended.
        ended_s: when it ended, on the coordinator's clock.
        witness_s: seconds of RoundWitness.
        away_s: how long the coordinator was absent since the round before ended, but for its absence in a pause.
        members, ready: number of members, and of those that were ready.
        carried_batches, quarantined_batches: number of batches that wait for another attempt, and that left the run.
        learning_rate: of its first local step.
        tokens: for how many tokens each result counts to which a client is bound.
        tokens_total: number of tokens that the run has applied.
        exams: clients whose results were exams, which count for nothing (`machine/replays/lottery.py`).
    """

    round: Round
    epoch: int
    ended_s: float
    witness_s: float
    away_s: float
    members: int
    ready: int
    carried_batches: int
    quarantined_batches: int
    learning_rate: float
    tokens: Mapping[ClientId, int]
    tokens_total: int
    exams: frozenset[ClientId] = frozenset()


@dataclass(frozen=True, slots=True)
class OutcomeDecided:
    """Log the end of a round, and take it into the run's history. `outcome` is None when it was empty."""

    step: int
    attempt: int
    outcome: Outcome | None
    reason: str
    ended: EndedRound | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class TimesTold:
    """Take into the run's history what a client says of a round that is over."""

    client_id: ClientId
    times: LaterTimes


@dataclass(frozen=True, slots=True)
class BatchesQuarantined:
    """Log that these batches leave the run: different members that delivered other work failed on them."""

    batch_id: BatchId
    against: tuple[ClientId, ...]
    message: str


@dataclass(frozen=True, slots=True)
class QuarantineEnded:
    """Log that an operator released these batches, which are carried."""

    batches: tuple[BatchId, ...]


@dataclass(frozen=True, slots=True)
class SweepBlobs:
    """Delete every blob that `blobs_needed(run)` does not name."""


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """Log that a client joined or left, and why, and take it into the run's history.

    Attributes:
        member: as it joined, or as it was when it left.
        at_s: when, on the coordinator's clock.
    """

    client_id: ClientId
    change: str
    member: Member | None = field(default=None, repr=False, compare=False)
    at_s: float = field(default=0.0, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class CheckpointRefused:
    """Log that the bytes of a client's checkpoint broke a rule, and take it into the run's history.

    Attributes:
        step: of the checkpoint.
        at_s: when, on the coordinator's clock.
    """

    client_id: ClientId
    step: int
    rule: str
    at_s: float


@dataclass(frozen=True, slots=True)
class SentToRest:
    """Log that a client is kept off the rosters for a while, because it missed too many rounds."""

    client_id: ClientId
    rest_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class ReplaysDrawn:
    """Log which results of a step are to be computed again, and take it into the run's history."""

    step: int
    replays: tuple[OpenReplay, ...]


@dataclass(frozen=True, slots=True)
class ReplaysDropped:
    """Log which results are not computed again, and why."""

    replays: tuple[OpenReplay, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ReplayJudged:
    """Log a verifier's report, and take it into the run's history.

    Attributes:
        verifier: its name.
        tolerance: up to which excess distance a result passes.
        verdict: what follows: the result passes; others are asked for; verifiers contradict each other, so that nothing
            follows for its client; or its client is convicted.
    """

    verifier: str
    report: ReplayReport
    tolerance: float
    verdict: Literal["passed", "disputed", "unclear", "convicted"]


@dataclass(frozen=True, slots=True)
class Scored:
    """Log a verifier's score of a result."""

    verifier: str
    report: ScoreReport


@dataclass(frozen=True, slots=True)
class Flagged:
    """Log that each result of a client is computed again from now on, and why."""

    client_id: ClientId
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class StateWithheld:
    """Log that a client did not reveal the inner states of a result in time."""

    client_id: ClientId
    step: int


@dataclass(frozen=True, slots=True)
class Convicted:
    """Log that a client was ejected, because replays show that its result is not its work.

    Attributes:
        figures: the distances and tolerances by which it was found, in words.
        at_s: when, on the coordinator's clock.
    """

    client_id: ClientId
    step: int
    figures: str
    at_s: float


@dataclass(frozen=True, slots=True)
class VerifierTested:
    """Log that a verifier computed a result again of which the answer is known.

    It had differed from another verifier, or is alone, and would convict.

    Attributes:
        found, expected: excess distances; found is None if it could not compute it.
        is_refused: whether its reports are refused from now on.
    """

    verifier: str
    found: float | None
    expected: float
    is_refused: bool


@dataclass(frozen=True, slots=True)
class OperatorActed:
    """Log that an operator's command changed the run, and take it into the run's history.

    Attributes:
        stimulus: the command.
        before: the state file before it.
        at_s: when, on the coordinator's clock.
    """

    stimulus: OperatorStimulus
    before: StateFile = field(repr=False)
    at_s: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """Take into the run's history what was reported.

    Attributes:
        stimulus: the report.
        step: the last step that the run had applied.
        at_s: when, on the coordinator's clock.
    """

    stimulus: RecordedStimulus
    step: int
    at_s: float


# fmt: off
Instruction: TypeAlias = (
    PhaseChanged | RunHeld | SegmentEnded | OutcomeDecided | BatchesQuarantined | QuarantineEnded
    | SweepBlobs | MembershipChanged | CheckpointRefused | SentToRest | OperatorActed | TimesTold
    | Recorded | ReplaysDrawn | ReplaysDropped | ReplayJudged | Scored | Flagged | Convicted | VerifierTested
    | StateWithheld | Rewound
)
# fmt: on
