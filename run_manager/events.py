"""The events of a client, for displays, logs and tests. Events are facts, in the past tense.

The rule kept here: an observer is called on the event loop and must return at once; it cannot influence the client.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from epochal.coordinator_client.session import Joined
from epochal.state.documents import RunDocument
from epochal.state.intervals import BatchId
from epochal.state.wire import Blake3, Sha256


@dataclass(frozen=True, slots=True)
class DocumentArrived:
    """A newer run document."""

    document: RunDocument


@dataclass(frozen=True, slots=True)
class StepEntered:
    """The step machine entered this step."""

    step_name: str
    document: RunDocument


@dataclass(frozen=True, slots=True)
class TrainerOpened:
    """The client can train, `opening_s` seconds after it began to open its trainer."""

    opening_s: float


@dataclass(frozen=True, slots=True)
class BecameReady:
    """The coordinator knows that this client holds replica `step` and the data."""

    step: int


RoundPart: TypeAlias = Literal["replica", "train", "encode", "upload"]
"""Waiting for the replica to start from, training, encoding the result, and sending it."""


@dataclass(frozen=True, slots=True)
class PartBegan:
    """The client began the next part of its work in a round."""

    step: int
    attempt: int
    part: RoundPart


@dataclass(frozen=True, slots=True)
class RoundTrained:
    """The client's result of a round is with the coordinator.

    Attributes:
        loss: nats per token; None when the trainer computes none.
        token_count: tokens trained on.
        batch_count: batches trained on.
        train_s: seconds from the first sample to the difference, waits for data included.
        data_wait_s: seconds of those in which the trainer waited for samples: the sum of the next three.
        fetching_s, decoding_s, packing_s: seconds by what it waited for.
        ahead_samples: number of the round's samples that had been fetched ahead.
        dropped_samples: number of samples that were fetched ahead, since the last result, and dropped.
        idle_s: seconds with nothing to do before the round's document came; None if unknown.
        replica_s: seconds from the document until the replica to start from was held.
        encode_s: seconds to encode the result.
        upload_s: seconds to send it, until the coordinator had checked it.
        uploaded_bytes: its size.
        gradient_norm: mean over the optimizer steps, before clipping; None if the trainer knows none.
    """

    step: int
    attempt: int
    loss: float | None
    token_count: int
    batch_count: int
    train_s: float
    data_wait_s: float
    result_sha256: Sha256
    fetching_s: float = 0.0
    decoding_s: float = 0.0
    packing_s: float = 0.0
    ahead_samples: int = 0
    dropped_samples: int = 0
    idle_s: float | None = None
    replica_s: float = 0.0
    encode_s: float = 0.0
    upload_s: float = 0.0
    uploaded_bytes: int = 0
    gradient_norm: float | None = None


@dataclass(frozen=True, slots=True)
class RoundFailed:
    """The client could not deliver a result for a round, and reported it."""

    step: int
    attempt: int
    kind: str
    message: str
    batch_id: BatchId | None


@dataclass(frozen=True, slots=True)
class Attested:
    """The client attested `count` results.

    Attributes:
        attest_s: time until it was answered, or until the round was over if that came first.
    """

    step: int
    attempt: int
    count: int
    attest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BlobFetched:
    """A blob was downloaded and its digest compared.

    Attributes:
        is_merged: whether it is an update, or a result of which this client makes one; else it is a checkpoint's.
    """

    size_bytes: int
    duration_s: float
    is_merged: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaDistrusted:
    """The replica is dropped, to be rebuilt from checkpoint and outcomes."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class OutcomeMerged:
    """The outcome of `step` was merged into the replica."""

    step: int
    merge_s: float


@dataclass(frozen=True, slots=True)
class ReplicaHeld:
    """The client holds replica `step`. `origin` is `outcome`, `checkpoint` or `initial`."""

    step: int
    replica_digest: Blake3
    origin: str


Event: TypeAlias = (
    Joined
    | DocumentArrived
    | StepEntered
    | TrainerOpened
    | BecameReady
    | PartBegan
    | RoundTrained
    | RoundFailed
    | Attested
    | BlobFetched
    | OutcomeMerged
    | ReplicaHeld
    | ReplicaDistrusted
)
Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Observe nothing."""
    del event
