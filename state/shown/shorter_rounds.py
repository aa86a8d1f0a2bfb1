"""By how much rounds would be shorter without one of the causes of their length.

The rule kept here: what is called a cause is compared with the round as it would have been without it. Where another
client is nearly as late, one client's slow upload has a large part of the critical path, and its removal helps little.
Whether the data of a client would come as early as it could train then, its figures do not say.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import get_args

from epochal.state.messages.history_rows import ClientFigures, RoundDetail
from epochal.state.shown.critical_path import MIN_SPAN_S, PartKind, critical_path, last_delivered, until_delivered

CHANGEABLE: tuple[PartKind, ...] = tuple(
    kind
    for kind in get_args(PartKind)
    if kind in ("document", "replica", "download", "merge", "data", "encode", "upload", "check", "unknown")
)
"""The parts of a client's time that may be absent: all until its result was checked, but training."""
NOT_BESIDE_DATA: tuple[PartKind, ...] = ("document", "data", "encode", "upload", "check", "unknown")
"""Of these, those that are not beside the arrival of data: where data are waited for, the others cost nothing."""
LIMITING_PART = 0.1
"""Waits for data limit a client that are longer than this part of its training."""
Cause = tuple[PartKind, str | None]
"""A kind of part, and whose it is; None for that of all clients together. Of `train`, what exceeds the others' time."""


def saved_s(details: Sequence[RoundDetail], usual_train_s: Mapping[str, float]) -> dict[Cause, float]:
    """Return by how many seconds rounds would be shorter in all without each cause that makes them longer.

    Args:
        details: of neighbouring rounds, the oldest first.
        usual_train_s: of clients that train slowly, how long the others train in a round, in seconds.
    """
    saved: dict[Cause, float] = defaultdict(float)
    before: RoundDetail | None = None
    for detail in details:
        for cause, seconds in _saved_in(detail, before, usual_train_s).items():
            saved[cause] += seconds
        before = detail
    return dict(saved)


def _saved_in(
    detail: RoundDetail, before: RoundDetail | None, usual_train_s: Mapping[str, float]
) -> dict[Cause, float]:
    """Return the seconds of one round; of one in which nothing was applied or the timer ended, those of no client."""
    total_s = detail.figures.train_s + detail.figures.witness_s
    last = last_delivered(detail.clients)
    path = critical_path(detail, before)
    saved: dict[Cause, float] = defaultdict(float)
    for span in path:
        if last is None or (span.kind not in CHANGEABLE and span.kind != "train"):
            saved[span.kind, None] += span.seconds
    if last is None or any(span.kind in ("missing", "empty") for span in path):
        return saved
    earlier = {} if before is None else {client.client_id: client for client in before.clients}
    by_time = sorted(
        (client for client in detail.clients if client.delivered_s is not None), key=lambda one: -_until_s(one, total_s)
    )
    latest_s = _until_s(last, total_s)
    next_s = max((_until_s(client, total_s) for client in by_time if client is not last), default=0.0)
    own = _pieces(last, latest_s, earlier.get(last.client_id))
    for kind in CHANGEABLE if own["data"] <= LIMITING_PART * own["train"] else NOT_BESIDE_DATA:
        saved[kind, last.client_id] += min(own[kind], latest_s - next_s)
    usual_s = usual_train_s.get(last.client_id)
    if usual_s is not None and own["data"] <= LIMITING_PART * own["train"]:
        saved["train", last.client_id] += min(max(0.0, own["train"] - usual_s), latest_s - next_s)
    ends_s = dict.fromkeys(CHANGEABLE, 0.0)
    for client in by_time:
        until_s = _until_s(client, total_s)
        if until_s <= min(ends_s.values()) + MIN_SPAN_S:
            break
        pieces = _pieces(client, until_s, earlier.get(client.client_id))
        if pieces["data"] > LIMITING_PART * pieces["train"]:
            pieces |= dict.fromkeys(("replica", "download", "merge"), 0.0)
        ends_s = {kind: max(end_s, until_s - pieces[kind]) for kind, end_s in ends_s.items()}
    for kind, end_s in ends_s.items():
        saved[kind, None] += latest_s - end_s
    return saved


def _until_s(client: ClientFigures, total_s: float) -> float:
    return min(client.delivered_s or 0.0, total_s)


def _pieces(client: ClientFigures, delivered_s: float, earlier: ClientFigures | None) -> dict[PartKind, float]:
    pieces: dict[PartKind, float] = dict.fromkeys((*CHANGEABLE, "train"), 0.0)
    for span in until_delivered(client, delivered_s, earlier):
        if span.kind in pieces:
            pieces[span.kind] += span.seconds
    return pieces
