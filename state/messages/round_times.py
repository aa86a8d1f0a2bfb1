"""Clients' own figures of a round: what it trained, and how long each part took.

Times are whole milliseconds on the client's monotonic clock. They travel as lists of numbers, because the journal keeps
them for each client and round. A client knows some only after the round, and reports those with its next result, or in
a message of their own when it ends.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import Field

from epochal.state.messages.data_metrics import MAX_CLAIMED_S, DataMetrics
from epochal.state.wire_document import WireDocument

MAX_CLAIMED_TOKENS = 2**63 - 1
MAX_TOLD_MS = int(MAX_CLAIMED_S) * 1000
MAX_TOLD_BYTES = 2**53
MS_PER_S = 1000

Milliseconds = Annotated[int, Field(ge=0, le=MAX_TOLD_MS, strict=True)]
ClaimedTokens = Annotated[int, Field(ge=0, le=MAX_CLAIMED_TOKENS)]
ToldBytes = Annotated[int, Field(ge=0, le=MAX_TOLD_BYTES, strict=True)]
RoundStep = Annotated[int, Field(ge=1, strict=True)]
RoundAttempt = Annotated[int, Field(ge=0, strict=True)]


class WorkTimes(NamedTuple):
    """Times of a client's work in a round until its result was ready, beside those of data and training.

    Attributes:
        idle_ms: time with nothing left to do, before the run document came that began the round; None if unknown.
        replica_ms: time from that document until the client held the replica to start from: it fetched and merged the
            results of the round before, or opened its trainer.
        encode_ms: time to encode the result.
    """

    idle_ms: Milliseconds | None
    replica_ms: Milliseconds
    encode_ms: Milliseconds


class LaterTimes(NamedTuple):
    """Times of a client's round that it knows only afterwards; None for what it did not do.

    Attributes:
        step, attempt: name the round.
        upload_ms: time from the first attempt to send its result until the coordinator had counted it.
        attest_ms: time that its last attestation took to be answered.
        download_ms: time in which it fetched results of others.
        merge_ms: time to merge the outcome into its replica.
        uploaded_bytes: size of the result that it sent.
        downloaded_bytes: size of the results that it fetched.
    """

    step: RoundStep
    attempt: RoundAttempt
    upload_ms: Milliseconds | None
    attest_ms: Milliseconds | None
    download_ms: Milliseconds | None
    merge_ms: Milliseconds | None
    uploaded_bytes: ToldBytes
    downloaded_bytes: ToldBytes


@dataclass(frozen=True, slots=True)
class GpuUse(WireDocument):
    """The use of the GPUs on which a client trains, by whomever, as their driver shows it.

    Attributes:
        memory_bytes, memory_total_bytes: memory in use, and in all; of several GPUs the sum.
        utilisation: part of the last moments in which the GPU computed, from 0 to 1; of several the mean.
    """

    memory_bytes: ToldBytes
    memory_total_bytes: ToldBytes
    utilisation: Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class ResultMetrics(WireDocument):
    """A client's own figures of its round.

    Attributes:
        loss: mean training loss, nats per token, each micro-batch measured before its optimizer step.
        tokens: tokens predicted.
        train_s: seconds in the trainer.
        data: how its data came; None if the client does not know, because its trainer loads them.
        work: the other times of this round; None if the client does not say, as for the next.
        before: the times of an earlier round that it knows by now.
        gradient_norm: mean over its optimizer steps of the gradient's L2 norm before clipping; None if it has none.
        gpu: of the end of its training, or of the round before; None without a GPU, or where nothing shows its use.
        sample_tokens: tokens of its samples as they were trained on, without padding; None if it does not count them.
    """

    loss: float | None
    tokens: ClaimedTokens
    train_s: float
    data: DataMetrics | None = None
    work: WorkTimes | None = None
    before: LaterTimes | None = None
    gradient_norm: Annotated[float, Field(ge=0)] | None = None
    gpu: GpuUse | None = None
    sample_tokens: ClaimedTokens | None = None


@dataclass(frozen=True, slots=True)
class TimesReport(WireDocument):
    """The times of the last round of a client that has left."""

    times: LaterTimes


def milliseconds(seconds: float) -> int:
    """Return a time in whole milliseconds, from 0 to `MAX_TOLD_MS`."""
    return max(0, min(round(seconds * MS_PER_S), MAX_TOLD_MS))
