"""The critical path of a round: the one chain of waits that ended last, since all else happened beside it.

A round ends when the last result that it waited for has come and was attested. So its time is that of the client whose
result came last, piece after piece, and then that of the witness that attested last. Pieces never add up to more than
the coordinator saw: a client's own times divide that time, counted back from the arrival of its message, and what
they leave is time in which the client did not have the run document yet.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from epochal.state.messages.history_rows import ClientFigures, RoundDetail
from epochal.state.shown.operator_actions import OperatorAction

PartKind = Literal[
    "document", "replica", "download", "merge", "data", "train", "encode", "upload", "check",
    "attest", "missing", "empty", "between", "pause", "outage", "unknown",
]  # fmt: skip
"""A part of the time: what a client of `ClientFigures` does (`replica`: other work before it held its replica, such as
opening a trainer), `attest`: results are in and witnesses attest them, `missing`: waiting for results that never come,
`empty`: a round of which nothing was applied, `between`: from one epoch to the next, `pause`: an operator's, `outage`:
of the coordinator, `unknown`: a client's time of which it does not say more."""

Pause: TypeAlias = tuple[float, float]
"""From when to when an operator paused the run, on the coordinator's clock."""
MIN_SPAN_S = 1e-3
"""Shorter waits after the last result are no part of their own."""
FAILED_FATES = frozenset({"missing", "failed", "rejected"})


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a critical path.

    Attributes:
        client_id: whose time it is; None for everybody's.
        size_bytes: size of what was sent or fetched in it; None if nothing was, or if that is not known.
    """

    kind: PartKind
    client_id: str | None
    seconds: float
    size_bytes: int | None = None


def critical_path(detail: RoundDetail, before: RoundDetail | None = None) -> list[Span]:
    """Return the pieces of a round's time, in their order. They add up to the round's time.

    Args:
        detail: the round.
        before: the round before it, whose results are fetched and merged at this round's start; None if unknown.
    """
    figures = detail.figures
    total_s = figures.train_s + figures.witness_s
    if not figures.applied_rounds:
        return [Span("empty", None, total_s)]
    return path_through(detail.clients, figures.train_s, total_s, () if before is None else before.clients)


def path_through(
    clients: Sequence[ClientFigures], train_s: float, total_s: float, before: Sequence[ClientFigures] = ()
) -> list[Span]:
    """Return the pieces of the time of a round of which something was applied; the planner's rounds, too, have one.

    Args:
        clients: of the round.
        train_s, total_s: of RoundTrain, and of the whole round.
        before: those of the round before it; none if unknown.
    """
    last = last_delivered(clients)
    if last is None:
        return [Span("unknown", None, total_s)]
    delivered_s = min(last.delivered_s or 0.0, total_s)
    spans = until_delivered(last, delivered_s, _same(before, last.client_id))
    waited_until_s = max(delivered_s, train_s)
    failed = [client for client in clients if client.batches and client.fate in FAILED_FATES]
    if failed and waited_until_s - delivered_s > MIN_SPAN_S:
        whose = failed[0].client_id if len(failed) == 1 else None
        spans.append(Span("missing", whose, waited_until_s - delivered_s))
        spans += _attesting(clients, total_s - waited_until_s)
    else:
        spans += _attesting(clients, total_s - delivered_s)
    return [span for span in spans if span.seconds > 0]


def last_delivered(clients: Sequence[ClientFigures]) -> ClientFigures | None:
    """Return the client whose result came last; None if no result came."""
    delivered = [client for client in clients if client.delivered_s is not None]
    return max(delivered, key=lambda client: (client.delivered_s or 0.0, client.client_id), default=None)


def _same(clients: Iterable[ClientFigures], client_id: str) -> ClientFigures | None:
    return next((client for client in clients if client.client_id == client_id), None)


def until_delivered(client: ClientFigures, delivered_s: float, earlier: ClientFigures | None) -> list[Span]:
    """Return the pieces of a client's time until its result had arrived and was checked."""
    if client.committed_s is not None:
        sent_s = max(0.0, delivered_s - client.committed_s)
        check_s = min(client.check_s or 0.0, sent_s)
        upload_s: float | None = sent_s - check_s
    else:
        upload_s, check_s = client.upload_s, client.check_s or 0.0
    merge_s = download_s = None
    if earlier is not None:
        merge_s, download_s = earlier.merge_s, earlier.download_s
    replica_s = client.replica_s or 0.0
    merge_s = min(merge_s or 0.0, replica_s)
    download_s = min(download_s or 0.0, replica_s - merge_s)
    pieces: list[tuple[PartKind, float | None]] = [
        ("replica", replica_s - merge_s - download_s),
        ("download", download_s),
        ("merge", merge_s),
        ("data", client.data_s),
        ("train", client.train_s),
        ("encode", client.encode_s),
        ("upload", upload_s),
        ("check", check_s),
    ]
    left_s, spans = delivered_s, list[Span]()
    for kind, seconds in reversed(pieces):
        taken_s = min(max(0.0, seconds or 0.0), left_s)
        left_s -= taken_s
        spans.append(Span(kind, client.client_id, taken_s, _size(kind, client, earlier)))
    says_all = client.replica_s is not None and (client.committed_s is not None or client.upload_s is not None)
    spans.append(Span("document" if says_all else "unknown", client.client_id, left_s))
    return spans[::-1]


def _size(kind: PartKind, client: ClientFigures, earlier: ClientFigures | None) -> int | None:
    if kind == "upload":
        return client.result_bytes
    return earlier.downloaded_bytes if kind == "download" and earlier is not None else None


def _attesting(clients: Sequence[ClientFigures], seconds: float) -> list[Span]:
    """Return the pieces of the time after the last result: the last witness hears of it, and attests."""
    if seconds <= 0:
        return []
    attested = [client for client in clients if client.attested_s is not None]
    if not attested:
        return [Span("attest", None, seconds)]
    last = max(attested, key=lambda client: (client.attested_s or 0.0, client.client_id))
    return [Span("attest", last.client_id, seconds)]


def time_between(before: RoundDetail, after: RoundDetail, pauses: Sequence[Pause] = ()) -> list[Span]:
    """Return what lies between two neighbouring rounds: nothing, an epoch's end and beginning, a pause, an outage."""
    from_s, to_s = before.figures.ended_s, after.figures.started_s
    seconds = to_s - from_s
    if seconds <= MIN_SPAN_S:
        return []
    if after.figures.epoch == before.figures.epoch:
        return [Span("outage", None, seconds)]
    away_s = min(seconds, after.away_s)
    paused_s = sum(max(0.0, min(to_s, end_s) - max(from_s, begin_s)) for begin_s, end_s in pauses)
    paused_s = min(seconds - away_s, paused_s)
    found = [
        Span("pause", None, paused_s),
        Span("outage", None, away_s),
        Span("between", None, seconds - away_s - paused_s),
    ]
    return [span for span in found if span.seconds > 0]


def pauses_of(actions: Sequence[OperatorAction]) -> list[Pause]:
    """Return from when to when operators paused a run; a pause that lasts has no end (infinity)."""
    pauses, since_s = list[Pause](), None
    for action in actions:
        if action.name == "pause" and since_s is None:
            since_s = action.at_s
        elif action.name == "resume" and since_s is not None:
            pauses.append((since_s, action.at_s))
            since_s = None
    return pauses if since_s is None else [*pauses, (since_s, math.inf)]


def path_of(details: Sequence[RoundDetail], pauses: Sequence[Pause] = ()) -> list[Span]:
    """Return the critical path of neighbouring rounds, the oldest first, with what lies between them."""
    spans, before = list[Span](), None
    for detail in details:
        if before is not None:
            spans += time_between(before, detail, pauses)
        spans += critical_path(detail, before)
        before = detail
    return spans
