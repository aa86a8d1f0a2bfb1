"""A run's history as figures: a row for each round that has ended, and how rows are merged where fewer are wanted.

Rows are numbered from 0 over the whole run, empty rounds included, so that a reader knows whether it has all of them.
Older rows may be merged with their neighbours: a merged row says how many rounds it represents, and sums stay sums.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from heapq import nsmallest
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from epochal.state.documents import Count, HexId, RunDocument
from epochal.state.errors import FailureKind
from epochal.state.wire_document import WireDocument

MAX_DETAIL_CHARS = 240
"""Maximum length of the reason for which a client's work was not applied."""

Seconds = Annotated[float, Field(ge=0)]
RoundCount = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True)
class RoundFigures(WireDocument):
    """The figures of a round that has ended, or of several neighbours that were merged.

    Of merged rounds, counts of work, bytes and seconds are sums, loss and gradient norm are means by `loss_tokens`,
    `number` and `started_s` are the first one's, and everything else is the last one's.

    Attributes:
        number: counts the rounds that have ended since the run began, from 0.
        rounds: number of rounds that this row represents, from `number` on.
        epoch, step, attempt: name the round.
        version: of the run document that its end published.
        started_s, ended_s: seconds since 1970 on the coordinator's clock.
        train_s, witness_s: seconds of RoundTrain and of RoundWitness, without outages of the coordinator.
        applied_rounds: number of the rounds of which something was applied.
        loss: mean training loss in nats per token, as the clients say; None if none was applied that has one.
        loss_tokens: number of tokens of which the loss is the mean, as the clients say.
        gradient_norm: L2 norm of the gradient over all parameters before clipping: mean over each client's optimizer
            steps, and over the applied results by their tokens, as the clients say; None if none has one.
        learning_rate: of the round's first local step.
        tokens: number of tokens that were applied.
        tokens_total: number of tokens that the run had applied at its end.
        members, ready: number of members at its end, and of those that were ready.
        clients: number of clients in its roster.
        results: number of results that were delivered and checked.
        batches: number of batches in its work list.
        applied_batches, lost_batches: number of those that were applied, and of the others.
        carried_batches, quarantined_batches: number of batches that waited for another attempt at its end, and of those
            that had left the run.
        result_bytes: size of the results that were delivered and checked.
        branch: number of times that the run had gone back before it (`epochal rewind`).
        dropped_rounds: number of the rounds that a later rewind took back: they are no part of the present model.
    """

    number: Count
    rounds: RoundCount
    epoch: Count
    step: Count
    attempt: Count
    version: Count
    started_s: float
    ended_s: float
    train_s: Seconds
    witness_s: Seconds
    applied_rounds: Count
    loss: float | None
    loss_tokens: Count
    gradient_norm: float | None
    learning_rate: float
    tokens: Count
    tokens_total: Count
    members: Count
    ready: Count
    clients: Count
    results: Count
    batches: Count
    applied_batches: Count
    lost_batches: Count
    carried_batches: Count
    quarantined_batches: Count
    result_bytes: Count
    branch: Count = 0
    dropped_rounds: Count = 0

    @property
    def is_dropped(self) -> bool:
        """Whether a later rewind took it back."""
        return self.dropped_rounds > 0

    @property
    def next_number(self) -> int:
        """Number of the round that follows."""
        return self.number + self.rounds


RATED_ROWS = 16
"""Number of the last rows of which a run's speed is given."""


def speed_of(rows: Sequence[RoundFigures]) -> float:
    """Return the tokens applied per second of the last rows' rounds; 0 if these took no time.

    What lies between rounds is no part of it: epochs' ends, pauses, and the coordinator's absence.
    """
    rated = rows[-RATED_ROWS:]
    seconds = sum(row.train_s + row.witness_s for row in rated)
    return sum(row.tokens for row in rated) / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RoundColumns(WireDocument):
    """Rows of a history, as a list of values for each field of `RoundFigures`; all lists are of one length."""

    number: tuple[Count, ...]
    rounds: tuple[RoundCount, ...]
    epoch: tuple[Count, ...]
    step: tuple[Count, ...]
    attempt: tuple[Count, ...]
    version: tuple[Count, ...]
    started_s: tuple[float, ...]
    ended_s: tuple[float, ...]
    train_s: tuple[Seconds, ...]
    witness_s: tuple[Seconds, ...]
    applied_rounds: tuple[Count, ...]
    loss: tuple[float | None, ...]
    loss_tokens: tuple[Count, ...]
    gradient_norm: tuple[float | None, ...]
    learning_rate: tuple[float, ...]
    tokens: tuple[Count, ...]
    tokens_total: tuple[Count, ...]
    members: tuple[Count, ...]
    ready: tuple[Count, ...]
    clients: tuple[Count, ...]
    results: tuple[Count, ...]
    batches: tuple[Count, ...]
    applied_batches: tuple[Count, ...]
    lost_batches: tuple[Count, ...]
    carried_batches: tuple[Count, ...]
    quarantined_batches: tuple[Count, ...]
    result_bytes: tuple[Count, ...]
    branch: tuple[Count, ...]
    dropped_rounds: tuple[Count, ...]

    @classmethod
    def of(cls, rows: Sequence[RoundFigures]) -> "RoundColumns":
        """Return rows as columns."""
        return cls(*(tuple(getattr(row, name) for row in rows) for name in FIGURES))

    def rows(self) -> list[RoundFigures]:
        """Return the columns as rows. Raise `ValueError` unless all columns are of one length."""
        return [RoundFigures(*row) for row in zip(*(getattr(self, name) for name in FIGURES), strict=True)]


FIGURES = tuple(found.name for found in fields(RoundFigures))
"""Names of the fields of a row, in their order."""
FLOAT_FIGURES = frozenset(found.name for found in fields(RoundFigures) if found.type in (float, float | None, Seconds))
"""Names of the fields of a row that are no whole numbers."""
MAX_INT64 = 2**63 - 1
"""The greatest count that an array or a column of int64 holds; sums of what clients claim may be greater."""

GPU_FIGURES = ("gpu_memory_bytes", "gpu_memory_total_bytes", "gpu_utilisation")
"""Names of the fields on a client's GPUs, in its part of a round and in a member's row."""
ClientFate = Literal["applied", "lost", "rejected", "failed", "missing", "idle"]
"""The end of a client's work in a round: it was applied; its result was delivered and not applied; its result broke a
rule; it reported a failure; nothing came; or it had no work."""


@dataclass(frozen=True, slots=True)
class ClientFigures(WireDocument):
    """One client's part of a round: as the coordinator observed it, and as the client reported it.

    The coordinator observes fate, arrivals (seconds since the round began), `check_s` and `result_bytes`. The client's
    word, shown and never relied on, are the other durations, `tokens` and `loss`; those from `upload_s` on, `check_s`
    excepted, come with its next result or when it leaves, and are None until then. `document_s` follows from both.

    Attributes:
        batches: number of batches that it was to train on.
        witness: whether it was elected to attest results.
        fate: the end of its work.
        detail: why its work was not applied, if that is known: the rule that its result broke, or its own report.
        committed_s: when it had trained and encoded its result, and announced it; None if it did not, or if the result
            came along with the announcement.
        delivered_s: when its result was held and checked; None if it never was.
        attested_s: when its last attestation came; None if none came.
        result_bytes: size of its result; 0 if it announced none.
        train_s: time in its trainer, without waits for data; None if it announced no result, as for the rest.
        fetching_s, decoding_s, packing_s: time for which its trainer waited for data; None if it does not say so.
        tokens: of its samples without padding, by its own count, up to as many as they can have.
        loss: mean loss in nats per token.
        gradient_norm: mean over its optimizer steps of the gradient's L2 norm before clipping; None if it has none.
        gpu_memory_bytes, gpu_memory_total_bytes: memory of its GPUs in use, by whomever, and in all; None without one,
            or where nothing shows it.
        gpu_utilisation: part of the last moments of its training in which its GPUs computed, from 0 to 1.
        name: that it had chosen; "" without one.
        failure: the kind of its own report, if that is why its work was not applied.
        document_s: time from the round's start until it had the run document: what is left of the time until its
            message arrived, without what it says that it did meanwhile.
        idle_s: time for which it had nothing to do before that document came.
        replica_s: time from the document until it held the replica to start from: it fetched and merged the results of
            the round before.
        data_s: sum of the three waits for data.
        encode_s: time to encode its result.
        upload_s: time to send its result, without the check.
        check_s: time until the coordinator had checked its result, once it had arrived.
        attest_s: time until its attestation was answered.
        download_s: time in which it fetched results of this round.
        merge_s: time to merge this round's outcome.
        uploaded_bytes, downloaded_bytes: size of the results that it sent and fetched; None if it does not say.
    """

    client_id: HexId
    batches: Count
    witness: bool
    fate: ClientFate
    detail: Annotated[str, Field(max_length=MAX_DETAIL_CHARS)]
    committed_s: float | None
    delivered_s: float | None
    attested_s: float | None
    result_bytes: Count
    train_s: float | None
    fetching_s: float | None
    decoding_s: float | None
    packing_s: float | None
    tokens: Count
    loss: float | None
    document_s: float | None = None
    idle_s: float | None = None
    replica_s: float | None = None
    data_s: float | None = None
    encode_s: float | None = None
    upload_s: float | None = None
    check_s: float | None = None
    attest_s: float | None = None
    download_s: float | None = None
    merge_s: float | None = None
    uploaded_bytes: Count | None = None
    downloaded_bytes: Count | None = None
    gradient_norm: float | None = None
    gpu_memory_bytes: Count | None = None
    gpu_memory_total_bytes: Count | None = None
    gpu_utilisation: float | None = None
    name: str = ""
    failure: FailureKind | None = None


@dataclass(frozen=True, slots=True)
class RoundDetail(WireDocument):
    """A round that has ended, with each of its clients in the order of the roster.

    Attributes:
        reason: why it ended as it did, in words.
        away_s: how long the coordinator was absent since the round before ended, but for its absence in a pause.
    """

    figures: RoundFigures
    reason: str
    clients: tuple[ClientFigures, ...]
    away_s: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class HistoryPage(WireDocument):
    """A part of a run's history (`GET …/history`).

    Attributes:
        run_id, lineage: of the run; under another lineage, the last rounds may be other ones.
        next: number of the round that ends next: all before it have ended.
        detailed_from: number of the first round of which the clients' figures are held; `next` if it is missing.
        rounds: the rows that were asked for, merged if that is needed to be as few as were asked for.
    """

    run_id: str
    lineage: str
    next: Count
    detailed_from: Count
    rounds: RoundColumns


@dataclass(frozen=True, slots=True)
class Moment(WireDocument):
    """A run as it is (`GET …/history/present`).

    Attributes:
        document: the run document.
        at_s: seconds since 1970 on the coordinator's clock.
        members, ready: number of members, and of those that are ready.
        loss: the last training loss; None before the first.
        tokens_total: number of tokens that were applied.
        round_s: time for which the round under way has lasted, in seconds; None if it is missing.
        under_way: the clients of the round under way, as far as they have come, in the order of the roster.
        last_round: the last round that has ended, if it is known.
        passes: number of passes over the data that were begun, with the part of the last one; None if it is not known.
        pass_samples: number of samples in that last pass, as members describe the data; None if it is not known.
        waiting: says what the run waits for, as "waits for …".
        explanation: says why it is not faster, by its last rounds (`SpeedExplanation.sentence`); "" before the first.
    """

    document: RunDocument
    at_s: float
    members: Count
    ready: Count
    loss: float | None
    tokens_total: Count
    round_s: float | None
    under_way: tuple[ClientFigures, ...]
    last_round: RoundDetail | None
    passes: float | None
    pass_samples: Count | None
    waiting: str = ""
    explanation: str = ""


def slowest_first(clients: Sequence[ClientFigures], most: int) -> tuple[ClientFigures, ...]:
    """Return at most `most` clients: those of whose work nothing has come, then those whose results came last."""

    def key(client: ClientFigures) -> tuple[bool, bool, float, str]:
        is_awaited = bool(client.batches) and client.delivered_s is None
        return not client.batches, not is_awaited, -(client.delivered_s or 0.0), client.client_id

    return tuple(nsmallest(most, clients, key=key))


def merged(first: RoundFigures, second: RoundFigures) -> RoundFigures:
    """Return one row in the place of two neighbours."""
    loss, loss_tokens = _mean(first, second, "loss")
    return RoundFigures(
        number=first.number,
        rounds=first.rounds + second.rounds,
        epoch=second.epoch,
        step=second.step,
        attempt=second.attempt,
        version=second.version,
        started_s=first.started_s,
        ended_s=second.ended_s,
        train_s=first.train_s + second.train_s,
        witness_s=first.witness_s + second.witness_s,
        applied_rounds=first.applied_rounds + second.applied_rounds,
        loss=loss,
        loss_tokens=loss_tokens,
        gradient_norm=_mean(first, second, "gradient_norm")[0],
        learning_rate=second.learning_rate,
        tokens=first.tokens + second.tokens,
        tokens_total=second.tokens_total,
        members=second.members,
        ready=second.ready,
        clients=second.clients,
        results=first.results + second.results,
        batches=first.batches + second.batches,
        applied_batches=first.applied_batches + second.applied_batches,
        lost_batches=first.lost_batches + second.lost_batches,
        carried_batches=second.carried_batches,
        quarantined_batches=second.quarantined_batches,
        result_bytes=first.result_bytes + second.result_bytes,
        branch=second.branch,
        dropped_rounds=first.dropped_rounds + second.dropped_rounds,
    )


def _mean(
    first: RoundFigures, second: RoundFigures, name: Literal["loss", "gradient_norm"]
) -> tuple[float | None, int]:
    """Return the mean of a figure of two rows, by their `loss_tokens`, and the number of these; (None, 0) without."""
    known = [(value, row.loss_tokens) for row in (first, second) if (value := getattr(row, name)) is not None]
    tokens = sum(count for _, count in known)
    if not tokens:
        return None, 0
    mean = sum(value * (count / tokens) for value, count in known)
    return (mean, tokens) if math.isfinite(mean) else (None, 0)


def are_alike(first: RoundFigures, second: RoundFigures) -> bool:
    """Return whether two neighbours may be merged: they are of one branch, and both or none of them were taken back."""
    return (first.branch, first.is_dropped) == (second.branch, second.is_dropped)


def kept(rows: Sequence[RoundFigures]) -> list[RoundFigures]:
    """Return the rows that no rewind has taken back."""
    return [row for row in rows if not row.is_dropped]


def thinned(rows: Sequence[RoundFigures], most: int) -> list[RoundFigures]:
    """Return the rows merged into at most `most` (1 or more), each of about as many; the same rows if they are few.

    Rows that are not alike stay apart, unless `most` is less than twice the number of their groups.
    """
    if len(rows) <= most:
        return list(rows)
    borders = [place for place in range(1, len(rows)) if not are_alike(rows[place - 1], rows[place])]
    if 2 * (len(borders) + 1) > most:
        borders = []
    size = -(-len(rows) // (most - len(borders)))
    groups = [rows[start:end] for start, end in pairwise((0, *borders, len(rows)))]
    return [reduce(merged, group[start : start + size]) for group in groups for start in range(0, len(group), size)]
