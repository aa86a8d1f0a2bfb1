"""Instructions of the machine to the service that owns the run: things to do, and events to log.

The service executes them after it has kept the run that gave them (`coordinator/service.py`).
"""

from dataclasses import dataclass
from typing import TypeAlias

from state.documents import Outcome
from state.evaluations import Evaluation
from state.intervals import BatchId
from state.phases import RunState
from state.wire import ClientId


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """Log the phase, and rewrite `state.toml`."""

    before: RunState
    after: RunState
    reason: str


@dataclass(frozen=True, slots=True)
class RunHeld:
    """Log that the run waits for members that rest, and for what they rest."""

    reason: str


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """Open a new journal segment with a snapshot: an epoch begins, or a checkpoint was kept within one."""

    epoch: int


@dataclass(frozen=True, slots=True)
class OutcomeDecided:
    """Log the end of a round. `outcome` is None when it was empty."""

    step: int
    attempt: int
    outcome: Outcome | None
    reason: str


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
    """Log that a client joined or left, and why."""

    client_id: ClientId
    change: str


@dataclass(frozen=True, slots=True)
class SentToRest:
    """Log that a client is kept off the rosters for a while, because it missed too many rounds."""

    client_id: ClientId
    rest_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class EvaluationRecorded:
    """Log that the run's history has a new evaluation."""

    evaluation: Evaluation


# fmt: off
Instruction: TypeAlias = (
    PhaseChanged | RunHeld | SegmentEnded | OutcomeDecided | BatchesQuarantined | QuarantineEnded
    | SweepBlobs | MembershipChanged | SentToRest | EvaluationRecorded
)
# fmt: on
