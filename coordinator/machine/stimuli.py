"""Everything that can happen to a run, in the past tense.

A stimulus is the only input of `coordinator/machine/handle.py`; it is what the journal stores, so its shape is part
of the journal's format: it changes only together with `RULES_VERSION`. A stimulus that a client caused holds the
client's message as it came. `Stamped` adds the time of the coordinator's clock and fresh random bytes, so that the
machine reads neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from epochal.state.checkpoint_parts import CheckpointPart
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.notify_table import NoticeKind
from epochal.state.config.planned_changes import ChangedValues, MixWeights
from epochal.state.config.state_file import StateFile
from epochal.state.documents import CheckpointRef, UpdateRef
from epochal.state.intervals import BatchId
from epochal.state.messages.audit_reports import AuditRecord
from epochal.state.messages.blob_messages import CheckVerdict
from epochal.state.messages.evaluation_reports import EvaluationReport
from epochal.state.messages.notices import MAX_NOTICE_CHARS, MAX_SUBJECT_CHARS
from epochal.state.messages.replay_messages import CalibrationReport, Likeness, ReplayFailure, ReplayReport, ScoreReport
from epochal.state.messages.requests import (
    Attestation,
    Capabilities,
    CheckpointReport,
    FailureReport,
    LeavingReport,
    ReadyReport,
    ResultCommitment,
    TimesReport,
)
from epochal.state.wire import ClientId, Seed, Sha256

MAX_VERIFIER_CHARS = 64
VerifierName = Annotated[str, Field(min_length=1, max_length=MAX_VERIFIER_CHARS)]

RULES_VERSION = 1
"""Version of the machine's rules. A journal that was written under another version is refused."""


@dataclass(frozen=True, slots=True)
class CoordinatorStarted:
    """The coordinator serves the run: it has started, or can keep messages again. Deadlines move by the outage."""

    type: Literal["coordinator_started"] = "coordinator_started"


@dataclass(frozen=True, slots=True)
class RunRestored:
    """The run was restored from a backup: later documents are void, and it continues as `lineage`."""

    lineage: str
    type: Literal["run_restored"] = "run_restored"


@dataclass(frozen=True, slots=True)
class CoordinatorKeyReplaced:
    """The operator gave the run a new coordinator's key (raw Ed25519 public key, hex); it continues as `lineage`."""

    coordinator_key: str
    lineage: str
    type: Literal["coordinator_key_replaced"] = "coordinator_key_replaced"


@dataclass(frozen=True, slots=True)
class RunRewound:
    """An operator took the run back to a kept checkpoint, from which it continues as `lineage`.

    Attributes:
        to_step: of the checkpoint.
        skip: whether the batches are passed over that were applied since, or are under way.
    """

    to_step: int
    skip: bool
    lineage: str
    type: Literal["run_rewound"] = "run_rewound"


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""

    type: Literal["ticked"] = "ticked"


@dataclass(frozen=True, slots=True)
class ClientJoined:
    """A client proved its key, which consumes the nonce.

    The request itself is left out: an invitation's text is a secret, which must not be in a journal.
    """

    client_id: ClientId
    public_key: str
    capabilities: Capabilities
    nonce: str
    nonce_expires_s: float
    invitation_sha256: Sha256 | None = None
    instance: str | None = None
    name: str = ""
    software: str = ""
    type: Literal["client_joined"] = "client_joined"


@dataclass(frozen=True, slots=True)
class ClientWithdrew:
    """A client left the run."""

    client_id: ClientId
    type: Literal["client_withdrew"] = "client_withdrew"


@dataclass(frozen=True, slots=True)
class LeaveAnnounced:
    """A client reported that it leaves after the round under way."""

    client_id: ClientId
    report: LeavingReport
    type: Literal["leave_announced"] = "leave_announced"


@dataclass(frozen=True, slots=True)
class ClientsFellSilent:
    """These clients sent no request for `client_timeout_s`."""

    client_ids: tuple[ClientId, ...]
    type: Literal["clients_fell_silent"] = "clients_fell_silent"


@dataclass(frozen=True, slots=True)
class ClientEjected:
    """An operator removed a client; its key may not join again."""

    client_id: ClientId
    type: Literal["client_ejected"] = "client_ejected"


@dataclass(frozen=True, slots=True)
class ClientBecameReady:
    """A client reported that it holds a replica and the dataset."""

    client_id: ClientId
    report: ReadyReport
    type: Literal["client_became_ready"] = "client_became_ready"


@dataclass(frozen=True, slots=True)
class ResultReceived:
    """A client committed to its result of a round, or the bytes of that result came, or both at once.

    The first commitment binds.

    Attributes:
        report: the client's commitment.
        verdict: on the bytes, which are held if they break no rule; None if only the commitment came.
    """

    client_id: ClientId
    report: ResultCommitment
    verdict: CheckVerdict | None = None
    type: Literal["result_received"] = "result_received"


@dataclass(frozen=True, slots=True)
class StateRevealed:
    """A client revealed an inner state to which it had committed; its bytes are held."""

    client_id: ClientId
    sha256: Sha256
    type: Literal["state_revealed"] = "state_revealed"


@dataclass(frozen=True, slots=True)
class AttestationReceived:
    """A witness attested which results are on the list of verified ones, and which replica it holds."""

    client_id: ClientId
    report: Attestation
    type: Literal["attestation_received"] = "attestation_received"


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A client could not take a round's step."""

    client_id: ClientId
    report: FailureReport
    type: Literal["step_failed"] = "step_failed"


@dataclass(frozen=True, slots=True)
class TimesReported:
    """A client reported the times of its last round."""

    client_id: ClientId
    report: TimesReport
    type: Literal["times_reported"] = "times_reported"


@dataclass(frozen=True, slots=True)
class CheckpointReported:
    """A client reported the digest of its replica, and, if it is the checkpointer, the blob it will upload."""

    client_id: ClientId
    report: CheckpointReport
    type: Literal["checkpoint_reported"] = "checkpoint_reported"


@dataclass(frozen=True, slots=True)
class CheckpointHeld:
    """The bytes of a reported checkpoint are held; its step and replica digest were computed from them."""

    client_id: ClientId
    checkpoint: CheckpointRef
    type: Literal["checkpoint_held"] = "checkpoint_held"


@dataclass(frozen=True, slots=True)
class CheckpointRejected:
    """The bytes of a reported checkpoint break a rule, so another client is asked."""

    client_id: ClientId
    step: int
    blob_sha256: Sha256
    rule: str
    type: Literal["checkpoint_rejected"] = "checkpoint_rejected"


@dataclass(frozen=True, slots=True)
class GenesisProvided:
    """The operator provided the run's first checkpoint; its bytes are held and checked.

    Attributes:
        model: the spec of the run's model, complete; it is the run's model document from now on.
        parts: of a checkpoint of several parts, in their order.
    """

    checkpoint: CheckpointRef
    model: ModelSpec
    parts: tuple[CheckpointPart, ...] = ()
    type: Literal["genesis_provided"] = "genesis_provided"


@dataclass(frozen=True, slots=True)
class UpdateMade:
    """The update of an outcome was made from its results; its bytes are held.

    Attributes:
        parts: of an update of several parts, in their order.
    """

    update: UpdateRef
    parts: tuple[CheckpointPart, ...] = ()
    type: Literal["update_made"] = "update_made"


@dataclass(frozen=True, slots=True)
class ResultsCompared:
    """The results of an outcome were compared with each other, and with earlier ones.

    Attributes:
        step: of the outcome.
        seed: of the sketches that were compared (`runtime/merging/sketches.py`), published only now.
        figures: of those results that were compared, by client.
    """

    step: int
    seed: Seed
    figures: Mapping[ClientId, Likeness]
    type: Literal["results_compared"] = "results_compared"


@dataclass(frozen=True, slots=True)
class DataFingerprintSet:
    """The operator pinned the data that the run trains on; None takes an earlier pin back."""

    data_fingerprint: str | None
    type: Literal["data_fingerprint_set"] = "data_fingerprint_set"


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """An operator asked the run to pause after this round."""

    type: Literal["pause_requested"] = "pause_requested"


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    """An operator asked the run to continue."""

    type: Literal["resume_requested"] = "resume_requested"


@dataclass(frozen=True, slots=True)
class BatchesReleased:
    """An operator released the quarantined batches in these intervals; None: all of them."""

    intervals: tuple[BatchId, ...] | None
    type: Literal["batches_released"] = "batches_released"


@dataclass(frozen=True, slots=True)
class EvaluationReported:
    """An operator's command reported the loss of one of the run's checkpoints."""

    report: EvaluationReport
    type: Literal["evaluation_reported"] = "evaluation_reported"


@dataclass(frozen=True, slots=True)
class NoticeRaised:
    """Something happened for which `[notify]` asks for a notice.

    Attributes:
        subject: of notices that are sent once.
        period_s: time within which no other of its kind is raised.
    """

    kind: NoticeKind
    subject: Annotated[str, Field(max_length=MAX_SUBJECT_CHARS)]
    message: Annotated[str, Field(max_length=MAX_NOTICE_CHARS)]
    period_s: float
    type: Literal["notice_raised"] = "notice_raised"


@dataclass(frozen=True, slots=True)
class NoticeSettled:
    """A webhook has the newest notice of this kind, or does not take it; `raised_s` identifies the newest."""

    kind: NoticeKind
    raised_s: float
    webhook: Annotated[str, Field(max_length=MAX_SUBJECT_CHARS)]
    type: Literal["notice_settled"] = "notice_settled"


@dataclass(frozen=True, slots=True)
class BlobsNearedBound:
    """The blobs are near their size limit; a checkpoint should free some.

    Attributes:
        total_bytes: size of all blobs.
        checkpoint_step: the replica of the newest checkpoint at that time: a newer one has made room since.
    """

    total_bytes: int
    checkpoint_step: int | None = None
    type: Literal["blobs_neared_bound"] = "blobs_neared_bound"


@dataclass(frozen=True, slots=True)
class JournalCompacted:
    """A proof of the journal's first segments is kept in their place."""

    segment_count: int
    proof_sha256: Sha256
    type: Literal["journal_compacted"] = "journal_compacted"


@dataclass(frozen=True, slots=True)
class ConfigChanged:
    """`state.toml` was edited between two starts, in fields that may change."""

    state_file: StateFile
    type: Literal["config_changed"] = "config_changed"


@dataclass(frozen=True, slots=True)
class ChangeAnnounced:
    """An operator announced settings that change from a step on (`state/config/planned_changes.py`)."""

    at_step: Annotated[int, Field(ge=1)]
    values: ChangedValues
    mix: MixWeights = None
    type: Literal["change_announced"] = "change_announced"


@dataclass(frozen=True, slots=True)
class ChangeWithdrawn:
    """An operator took back the change of a step."""

    at_step: int
    type: Literal["change_withdrawn"] = "change_withdrawn"


@dataclass(frozen=True, slots=True)
class FinishRequested:
    """An operator ended the run after this step; None takes that back."""

    after_step: int | None
    type: Literal["finish_requested"] = "finish_requested"


@dataclass(frozen=True, slots=True)
class InvitationMade:
    """An operator invited clients. The code itself is left out: it is a secret, which must not be in a journal.

    Attributes:
        sha256: digest of the code.
        uses: number of clients that it admits.
        expires_s: time from which it admits no further client, on the coordinator's clock; None for never.
    """

    sha256: Sha256
    uses: int
    expires_s: float | None
    type: Literal["invitation_made"] = "invitation_made"


@dataclass(frozen=True, slots=True)
class InvitationRevoked:
    """An operator took an invitation back."""

    sha256: Sha256
    type: Literal["invitation_revoked"] = "invitation_revoked"


@dataclass(frozen=True, slots=True)
class KeyAdmitted:
    """An operator let the owner of a key join (raw Ed25519 public key, hex)."""

    public_key: str
    type: Literal["key_admitted"] = "key_admitted"


@dataclass(frozen=True, slots=True)
class KeyRemoved:
    """An operator took back that the owner of a key may join."""

    public_key: str
    type: Literal["key_removed"] = "key_removed"


@dataclass(frozen=True, slots=True)
class ReplayReported:
    """A verifier computed a result again."""

    verifier: VerifierName
    report: ReplayReport
    type: Literal["replay_reported"] = "replay_reported"


@dataclass(frozen=True, slots=True)
class ScoreReported:
    """A verifier scored a result."""

    verifier: VerifierName
    report: ScoreReport
    type: Literal["score_reported"] = "score_reported"


@dataclass(frozen=True, slots=True)
class ReplayFailed:
    """A verifier could not compute a result again."""

    verifier: VerifierName
    failure: ReplayFailure
    type: Literal["replay_failed"] = "replay_failed"


@dataclass(frozen=True, slots=True)
class CalibrationReported:
    """A verifier repeated honest work, and reported how far apart the results are."""

    verifier: VerifierName
    report: CalibrationReport
    type: Literal["calibration_reported"] = "calibration_reported"


@dataclass(frozen=True, slots=True)
class ClientAbsolved:
    """An operator took back what replays had shown of a client: it may join again, as a new one."""

    client_id: ClientId
    type: Literal["client_absolved"] = "client_absolved"


@dataclass(frozen=True, slots=True)
class AuditReported:
    """An operator's command reported what an audit of the run found."""

    report: AuditRecord
    type: Literal["audit_reported"] = "audit_reported"


# fmt: off
Stimulus: TypeAlias = (
    CoordinatorStarted | RunRestored | CoordinatorKeyReplaced | Ticked | ClientJoined | ClientWithdrew
    | ClientsFellSilent | ClientEjected | ClientBecameReady | ResultReceived | AttestationReceived | StepFailed
    | CheckpointReported | CheckpointHeld | CheckpointRejected | GenesisProvided | UpdateMade | DataFingerprintSet
    | PauseRequested | ResumeRequested | BatchesReleased | BlobsNearedBound | ConfigChanged | EvaluationReported
    | JournalCompacted | TimesReported | NoticeRaised | NoticeSettled | FinishRequested | InvitationMade
    | InvitationRevoked | KeyAdmitted | KeyRemoved | AuditReported | ReplayReported | ReplayFailed
    | CalibrationReported | ClientAbsolved | ResultsCompared | ScoreReported | LeaveAnnounced
    | RunRewound | ChangeAnnounced | ChangeWithdrawn | StateRevealed
)
OperatorStimulus: TypeAlias = (
    RunRestored | CoordinatorKeyReplaced | ClientEjected | GenesisProvided | DataFingerprintSet
    | PauseRequested | ResumeRequested | BatchesReleased | ConfigChanged | FinishRequested | InvitationMade
    | InvitationRevoked | KeyAdmitted | KeyRemoved | AuditReported | ClientAbsolved | RunRewound
    | ChangeAnnounced | ChangeWithdrawn
)
# fmt: on
"""A stimulus by which an operator changes the run or its records."""
RecordedStimulus: TypeAlias = NoticeRaised | NoticeSettled | AuditReported | EvaluationReported
"""A stimulus that changes nothing of the run, and is kept in the journal for those who read it."""
VerifierStimulus: TypeAlias = ReplayReported | ScoreReported | ReplayFailed | CalibrationReported
"""A stimulus by which a verifier reports what it found."""
AccessCommand: TypeAlias = FinishRequested | InvitationMade | InvitationRevoked | KeyAdmitted | KeyRemoved
"""A stimulus that changes who may join, or when the run ends."""


@dataclass(frozen=True, slots=True)
class Stamped:
    """A stimulus, when it happened (seconds on the coordinator's clock), and 32 fresh random bytes in hex."""

    stimulus: Annotated[Stimulus, Field(discriminator="type")]
    now_s: float
    seed: Seed


STIMULI: TypeAdapter[Any] = TypeAdapter(tuple[Stamped, ...])
"""Reads and writes a group of stimuli as JSON, for the journal."""
