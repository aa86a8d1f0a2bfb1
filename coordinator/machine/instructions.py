"""Instructions of a run to the service that owns it: things to do, and news to log.

The service carries instructions out after the run that gave them is kept (`coordinator/service.py`).
"""

from dataclasses import dataclass
from typing import TypeAlias

from state.documents import Outcome
from state.intervals import BatchId
from state.phases import RunState
from state.wire import ClientId


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """Log it, and rewrite `state.toml`."""

    before: RunState
    after: RunState
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """Open a new journal segment with a snapshot: an epoch begins."""

    epoch: int


@dataclass(frozen=True, slots=True)
class OutcomeDecided:
    """A round ended. `outcome` is None when it was empty; audits and logs read it, nobody must act."""

    step: int
    attempt: int
    outcome: Outcome | None
    reason: str


@dataclass(frozen=True, slots=True)
class BatchesQuarantined:
    """These batches failed on too many clients and leave the run."""

    batch_id: BatchId
    tried: tuple[ClientId, ...]
    message: str


@dataclass(frozen=True, slots=True)
class SweepBlobs:
    """Delete every blob that `blobs_needed(run)` does not name."""


@dataclass(frozen=True, slots=True)
class MembershipChanged:
    """Log who came or went and why."""

    client_id: ClientId
    change: str


Instruction: TypeAlias = (
    PhaseChanged | SegmentEnded | OutcomeDecided | BatchesQuarantined | SweepBlobs | MembershipChanged
)
