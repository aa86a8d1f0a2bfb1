"""Messages between clients or operators and the coordinator; `docs/rest-api.md` lists who sends which.

Every message names the round it is about, so a late or repeated one is recognised. Sizes are bounded here by field.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from epochal.state.checkpoint_parts import MAX_PARTS, CheckpointPart
from epochal.state.client_names import SEEN, ClientName, Software
from epochal.state.dataset_descriptions import DatasetDescription
from epochal.state.documents import MAX_SHARE, Count, HexBlake3, HexId, HexSha256, RewindMark
from epochal.state.errors import FailureKind
from epochal.state.intervals import BatchId
from epochal.state.messages.change_messages import AnnouncedChange
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.member_rows import MemberFigures
from epochal.state.messages.round_times import ResultMetrics as ResultMetrics
from epochal.state.messages.round_times import TimesReport as TimesReport
from epochal.state.messages.state_messages import InnerStates
from epochal.state.messages.verification_views import VerificationView
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256
from epochal.state.wire_document import WireDocument

MAX_MESSAGE_CHARS = 500
MAX_NAME_CHARS = 64
MAX_INVITATION_CHARS = 256
MAX_HOST_CHARS = 253
MAX_FINGERPRINT_CHARS = 128
MAX_DATASETS_IN_STATUS = 4
MAX_CODECS = 32
MAX_RELEASED_INTERVALS = 1024
PROTOCOL_VERSION = 1

HexKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Instance = Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]
"""Random digits that name one process of a client."""
HexSignature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]
Step = Annotated[int, Field(ge=1)]
CodecEntry = Annotated[str, Field(max_length=MAX_NAME_CHARS), SEEN]


@dataclass(frozen=True, slots=True)
class ChallengeRequest(WireDocument):
    """A request for a nonce to sign: the first half of a join.

    Attributes:
        joins: whether the key's owner wants to know first whether the run admits it, and be refused if not.
        invitation_sha256: with `joins`, the digest of the invitation that it would give.
    """

    public_key: HexKey
    joins: bool = False
    invitation_sha256: HexSha256 | None = None


@dataclass(frozen=True, slots=True)
class Challenge(WireDocument):
    """A nonce that only this key may use, once, within `expires_in_s` seconds, and the coordinator's own key.

    The key signs the session that follows, which proves it.
    """

    nonce: Annotated[str, Field(max_length=256)]
    expires_in_s: float
    coordinator_key: HexKey


@dataclass(frozen=True, slots=True)
class Capabilities(WireDocument):
    """The abilities of a client.

    Attributes:
        batches_per_round: the most batches that it takes in a round; `MAX_SHARE` for as many as it is fast enough for.
        codecs: the codecs of results that it reads and writes, each with its format's version
            (`state/codecs/codecs_by_name.py`); a client that does not say so has `float32` alone.
    """

    batches_per_round: Annotated[int, Field(ge=1, le=MAX_SHARE)] = MAX_SHARE
    trainer: ClientName = "numpy"
    protocol: Count = PROTOCOL_VERSION
    codecs: Annotated[tuple[CodecEntry, ...], Field(max_length=MAX_CODECS)] = ("float32/1",)


@dataclass(frozen=True, slots=True)
class JoinRequest(WireDocument):
    """The second half of a join: the signature is over `join_message(…)`.

    Attributes:
        host: name or address of the coordinator that the client dialled, without a port.
        instance: the same in every join of one process, which distinguishes a second process with the same key.
        name: for people, of the client's own choice.
        software: the version of its program.
    """

    public_key: HexKey
    nonce: Annotated[str, Field(max_length=256)]
    signature: HexSignature
    host: Annotated[str, Field(min_length=1, max_length=MAX_HOST_CHARS), SEEN]
    capabilities: Capabilities
    invitation: Annotated[str, Field(max_length=MAX_INVITATION_CHARS)] | None = None
    instance: Instance | None = None
    name: ClientName | None = None
    software: Software | None = None


DATA_TICKET_AUDIENCE = "epochal-data"
"""The audience (RFC 7519, `aud`) of the tickets that data servers take."""
VERIFIER_PREFIX = "verifier "
"""The subject of a verifier's ticket begins with this, and its holder may read all of the data; no client's id does."""

SESSION_AUDIENCE = "epochal-session"
"""The audience of session tokens."""


@dataclass(frozen=True, slots=True)
class Session(WireDocument):
    """Answer to a join or a renewal. Renew after half of `expires_in_s`. The ticket is for data servers only."""

    client_id: HexId
    session_token: str
    data_ticket: str
    expires_in_s: float
    client_timeout_s: float


ProgramKind = Literal["data-server", "checker", "verifier", "mirror"]
"""A program beside clients that takes part in a run with a token of its own."""


@dataclass(frozen=True, slots=True)
class ProgramToken(WireDocument):
    """A token of a program (`POST …/tokens/{kind}`)."""

    token: str


@dataclass(frozen=True, slots=True)
class ReadyReport(WireDocument):
    """This client holds replica `step` with this digest, and the dataset with this fingerprint.

    Attributes:
        dataset: describes the dataset, so that a difference can be explained.
    """

    step: Count
    replica_digest: HexBlake3
    data_fingerprint: Annotated[str, Field(max_length=MAX_FINGERPRINT_CHARS), SEEN]
    dataset: DatasetDescription | None = None


@dataclass(frozen=True, slots=True)
class ResultCommitment(WireDocument):
    """The one result of this client for round `(step, attempt)`; the first that arrives binds.

    Attributes:
        states: the inner states of the round, where the run may ask for them; None elsewhere.
    """

    step: Step
    attempt: Count
    result_sha256: HexSha256
    size_bytes: Annotated[int, Field(ge=1)]
    metrics: ResultMetrics
    states: InnerStates | None = None


@dataclass(frozen=True, slots=True)
class Attestation(WireDocument):
    """Which results a witness received in time, and the replica it trained from.

    Attributes:
        received: a hex bit set over roster positions: bit *i* (value `1 << i` of the integer) is set when the
            verified result of the client at roster position *i* is held. A client commits once per round, so a
            position names one result.
    """

    step: Step
    attempt: Count
    replica_digest: HexBlake3
    received: Annotated[str, Field(pattern=r"^[0-9a-f]+$", max_length=25_001)]

    def received_bits(self) -> int:
        """Return the bit set as an integer."""
        return int(self.received, 16)


@dataclass(frozen=True, slots=True)
class CheckpointReport(WireDocument):
    """This client's replica `step` has this digest; the checkpointer also names what it will upload.

    Attributes:
        blob_sha256, size_bytes: of its checkpoint, as in `CheckpointRef`; None and 0 if it uploads none.
        parts: of a checkpoint of several parts, each a blob; empty if `blob_sha256` is its only blob.
    """

    step: Count
    replica_digest: HexBlake3
    blob_sha256: HexSha256 | None
    size_bytes: Count
    parts: Annotated[tuple[CheckpointPart, ...], Field(max_length=MAX_PARTS)] = ()

    def blobs(self) -> tuple[tuple[Sha256, int], ...]:
        """Return digest and size of every blob that the client will upload, in the order of the file."""
        if self.blob_sha256 is None:
            return ()
        return tuple((part.sha256, part.size_bytes) for part in self.parts) or ((self.blob_sha256, self.size_bytes),)


@dataclass(frozen=True, slots=True)
class FailureReport(WireDocument):
    """This client could not take the round's step. `batch_id` narrows the blame to part of its assignment."""

    step: Step
    attempt: Count
    kind: FailureKind
    message: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS), SEEN]
    batch_id: BatchId | None = None


@dataclass(frozen=True, slots=True)
class LeavingReport(WireDocument):
    """This client leaves after the round under way: no other round is to count on it."""


Report: TypeAlias = (
    ReadyReport | ResultCommitment | Attestation | CheckpointReport | FailureReport | TimesReport | LeavingReport
)
"""A report of a member on its replica or its part of a round."""

REPORT_PATHS: Mapping[type[Report], str] = {
    ReadyReport: "ready",
    ResultCommitment: "results",
    Attestation: "attestations",
    CheckpointReport: "checkpoints",
    FailureReport: "failures",
    TimesReport: "times",
    LeavingReport: "leaving",
}
"""Path to which each report is posted, below the run's URL."""


@dataclass(frozen=True, slots=True)
class Standing(WireDocument):
    """Which messages of a client for the round under way have arrived (`GET …/clients/me`).

    Attributes:
        missed: missed rounds that it has not made up for.
        rest_s: seconds for which it still gets no work, because it missed too many rounds; None if it gets work.
        last_miss: why it missed a round last; "" if it has missed none.
    """

    client_id: HexId
    ready: bool
    in_roster: bool
    step: Count
    attempt: Count
    committed_sha256: HexSha256 | None
    result_verified: bool
    result_rejected: str | None
    attested: bool
    failed: bool
    missed: Count = 0
    rest_s: float | None = None
    last_miss: str = ""


@dataclass(frozen=True, slots=True)
class CommittedResult(WireDocument):
    """A result that the coordinator holds and has checked; `norm` is its length √Σx²."""

    client_id: HexId
    result_sha256: HexSha256
    size_bytes: Count
    norm: Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class ResultsPage(WireDocument):
    """Verified results of a round in order of arrival, from number `after`; ask again with `after = next`.

    `complete` says that no further result can come: every assigned client delivered, failed or left, or time is over.
    """

    step: Step
    attempt: Count
    next: Count
    complete: bool
    results: tuple[CommittedResult, ...]


@dataclass(frozen=True, slots=True)
class FailedBatches(WireDocument):
    """Batches on which clients failed.

    Attributes:
        batch_id: the batches.
        clients: the different clients whose failures count: each had delivered other work recently.
        message: kind and text of the last failure.
    """

    batch_id: BatchId
    clients: tuple[HexId, ...]
    message: str


@dataclass(frozen=True, slots=True)
class FailedData(WireDocument):
    """The data of a run that failed: batches that left it, and batches that wait for another attempt."""

    quarantined: tuple[FailedBatches, ...]
    waiting: tuple[FailedBatches, ...]


@dataclass(frozen=True, slots=True)
class QuarantineRelease(WireDocument):
    """The quarantined batches to release, or, in the answer, those that were released. None names all of them."""

    batches: Annotated[tuple[BatchId, ...], Field(max_length=MAX_RELEASED_INTERVALS)] | None


@dataclass(frozen=True, slots=True)
class FingerprintSetting(WireDocument):
    """The fingerprint of the data that the run must train on, as its operator pins it; None takes the pin back."""

    data_fingerprint: HexSha256 | None


DataDecision = Literal["state file", "operator", "first round", "turn of its members", "nobody yet"]


@dataclass(frozen=True, slots=True)
class DatasetView(WireDocument):
    """One of the datasets that members have: its fingerprint, how many have it, and its description if one is kept."""

    data_fingerprint: str
    member_count: Count
    dataset: DatasetDescription | None


@dataclass(frozen=True, slots=True)
class RunStatus(WireDocument):
    """The run as `epochal status` shows it: the document's progress, and values that change too often for it.

    Attributes:
        hold: who rests and why, if the run waits for that; else None.
        carried_batches: batches that no outcome has applied yet, those that wait included.
        waiting_batches: batches that failed and wait for another attempt.
        quarantined: all quarantined batches, as intervals.
        failed_data: the first of those batches, with the reasons.
        pausing: an operator asked for a pause, and nobody has ended it.
        data_fingerprint: of the run's data, as far as they are agreed.
        data_decided_by: who or what decided it.
        datasets: the data that most members have, at most `MAX_DATASETS_IN_STATUS`.
        evaluations: the last ones that were recorded, in their order.
        total_steps: the last step that takes new data, as the state file or the operator's command says.
        finish_after: the step after which that command ends the run; None without one.
        waiting: says what the run waits for, as "waits for …".
        explanation: says why the run is not faster; "" before that is known. Both may quote other machines' words.
        verification: of members' results; None where the state file has no `[verify]`.
        gradient_norm: of the last applied round that has one, as `RoundFigures.gradient_norm`.
        gpu_memory_bytes, gpu_memory_total_bytes: memory in use and in all, summed over the clients of the last round
            that reported a GPU; None without one.
        gpu_utilisation: mean over these clients, from 0 to 1.
        attempt: number of earlier attempts at this step.
        rewound: the last time that an operator took the run back to a checkpoint; None if that never happened.
        skipped_batches: batches that were passed over as the run went back.
        changes: settings that change from a step on, and are not in force yet.
    """

    run_id: str
    version: Count
    run_state: RunState
    reason: str
    hold: str | None
    phase_remaining_s: float | None
    epoch: Count
    step: Count
    total_steps: Count
    attempt: Count
    member_count: Count
    ready_count: Count
    resting_count: Count
    members: tuple[MemberFigures, ...]
    data_indices_applied: Count
    tokens_applied: Count
    tokens_per_s: float
    loss: float | None
    loss_history: tuple[tuple[int, float], ...]
    carried_batches: Count
    waiting_batches: Count
    quarantined_batches: Count
    quarantined: tuple[BatchId, ...]
    failed_data: FailedData
    checkpoint_step: int | None
    blob_bytes: Count
    journal_bytes: Count
    data_fingerprint: str | None = None
    data_decided_by: DataDecision = "nobody yet"
    datasets: tuple[DatasetView, ...] = ()
    store_problem: str | None = None
    """Why the coordinator can keep nothing at the moment, such as a full disk; meanwhile the run holds."""
    pausing: bool = False
    evaluations: tuple[Evaluation, ...] = ()
    finish_after: Count | None = None
    waiting: str = ""
    explanation: str = ""
    verification: VerificationView | None = None
    gradient_norm: float | None = None
    gpu_memory_bytes: Count | None = None
    gpu_memory_total_bytes: Count | None = None
    gpu_utilisation: float | None = None
    rewound: RewindMark | None = None
    skipped_batches: Count = 0
    changes: tuple[AnnouncedChange, ...] = ()


def join_message(run_id: str, nonce: str, public_key: str, coordinator_key: str, host: str) -> bytes:
    """Return the bytes that a joining client signs: `"epochal/join/v1"` and the arguments, each after its length.

    A length is that of the UTF-8 bytes, in 4 bytes, big-endian.
    """
    return signed_parts("epochal/join/v1", run_id, nonce, public_key, coordinator_key, host)


def signed_parts(*texts: str) -> bytes:
    """Return texts as bytes, each after its length."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in (text.encode() for text in texts))
