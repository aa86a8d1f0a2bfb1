"""What can happen to a run, in the past tense, and what the run tells its shell to do.

A stimulus is the only input of `coordinator/machine/handle.py`; it is what the journal stores, so its shape is part
of the journal's format and changes only together with `RULES_VERSION`. Every stimulus carries the time of the
coordinator's clock and fresh random bytes, so that the machine reads neither.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from state.config.state_file import StateFile
from state.documents import Outcome
from state.intervals import BatchId
from state.messages import Capabilities, FailureKind, ResultMetrics
from state.phases import RunState
from state.wire import ClientId, Seed, Sha256

RULES_VERSION = 2
"""Under which rules a journal was written. A journal of another version is refused, never guessed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """When a stimulus happened (seconds on the coordinator's clock) and 32 fresh random bytes in hex."""

    now_s: float
    seed: Seed


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStarted(Stamp):
    """The coordinator serves the run (again). Re-bases the phase's deadline, so an outage ends nothing."""

    type: Literal["coordinator_started"] = "coordinator_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRestored(Stamp):
    """The run directory is a backup's: what was published after it is void. The seed begins with the new lineage."""

    type: Literal["run_restored"] = "run_restored"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked(Stamp):
    """Time passed."""

    type: Literal["ticked"] = "ticked"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientJoined(Stamp):
    """A client proved its key. The nonce is consumed with this."""

    client_id: ClientId
    public_key: str
    capabilities: Capabilities
    nonce: str
    nonce_expires_s: float
    invitation_sha256: Sha256 | None = None
    type: Literal["client_joined"] = "client_joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientWithdrew(Stamp):
    """A client left by its own word."""

    client_id: ClientId
    type: Literal["client_withdrew"] = "client_withdrew"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsFellSilent(Stamp):
    """Nothing was heard of these clients for `client_timeout_s`."""

    client_ids: tuple[ClientId, ...]
    type: Literal["clients_fell_silent"] = "clients_fell_silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEjected(Stamp):
    """An operator removed a client; its key may not join again."""

    client_id: ClientId
    type: Literal["client_ejected"] = "client_ejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientBecameReady(Stamp):
    """A client reported that it holds replica `step` and the dataset."""

    client_id: ClientId
    step: int
    replica_digest: Sha256
    data_fingerprint: str
    type: Literal["client_became_ready"] = "client_became_ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCommitted(Stamp):
    """A client named its result of a round; the first one binds."""

    client_id: ClientId
    step: int
    attempt: int
    result_sha256: Sha256
    size_bytes: int
    metrics: ResultMetrics
    type: Literal["result_committed"] = "result_committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultVerified(Stamp):
    """The bytes of a committed result are held and pass `state/results.py`. `replica_digest` is from their header."""

    client_id: ClientId
    step: int
    attempt: int
    result_sha256: Sha256
    replica_digest: Sha256
    type: Literal["result_verified"] = "result_verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRejected(Stamp):
    """The bytes of a committed result break `rule`; the commitment binds, so the client's work is carried."""

    client_id: ClientId
    step: int
    attempt: int
    result_sha256: Sha256
    rule: str
    type: Literal["result_rejected"] = "result_rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationReceived(Stamp):
    """A witness attested. `received` is the bit set of `state.messages.Attestation`."""

    client_id: ClientId
    step: int
    attempt: int
    replica_digest: Sha256
    received: str
    type: Literal["attestation_received"] = "attestation_received"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed(Stamp):
    """A client could not take a round's step."""

    client_id: ClientId
    step: int
    attempt: int
    kind: FailureKind
    message: str
    batch_id: BatchId | None
    type: Literal["step_failed"] = "step_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReported(Stamp):
    """A client reported the digest of its replica, and, if it is the checkpointer, the blob it will upload."""

    client_id: ClientId
    step: int
    replica_digest: Sha256
    blob_sha256: Sha256 | None
    size_bytes: int
    type: Literal["checkpoint_reported"] = "checkpoint_reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHeld(Stamp):
    """The bytes of a reported checkpoint are held; `step` and `replica_digest` were computed from them."""

    client_id: ClientId
    step: int
    blob_sha256: Sha256
    size_bytes: int
    replica_digest: Sha256
    type: Literal["checkpoint_held"] = "checkpoint_held"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRejected(Stamp):
    """The bytes of a reported checkpoint break a rule; its writer has failed at it."""

    client_id: ClientId
    step: int
    blob_sha256: Sha256
    rule: str
    type: Literal["checkpoint_rejected"] = "checkpoint_rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequested(Stamp):
    """An operator wants the run to hold after this round."""

    type: Literal["pause_requested"] = "pause_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested(Stamp):
    """An operator wants the run to go on."""

    type: Literal["resume_requested"] = "resume_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobsNearedBound(Stamp):
    """The blobs take up so much that a checkpoint should free some."""

    total_bytes: int
    type: Literal["blobs_neared_bound"] = "blobs_neared_bound"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged(Stamp):
    """`state.toml` was edited between two starts, in fields that may change."""

    state_file: StateFile
    type: Literal["config_changed"] = "config_changed"


Stimulus: TypeAlias = (
    CoordinatorStarted
    | RunRestored
    | Ticked
    | ClientJoined
    | ClientWithdrew
    | ClientsFellSilent
    | ClientEjected
    | ClientBecameReady
    | ResultCommitted
    | ResultVerified
    | ResultRejected
    | AttestationReceived
    | StepFailed
    | CheckpointReported
    | CheckpointHeld
    | CheckpointRejected
    | PauseRequested
    | ResumeRequested
    | BlobsNearedBound
    | ConfigChanged
)

STIMULI: TypeAdapter[Any] = TypeAdapter(tuple[Annotated[Stimulus, Field(discriminator="type")], ...])
"""Reads and writes a group of stimuli as JSON, for the journal."""


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
