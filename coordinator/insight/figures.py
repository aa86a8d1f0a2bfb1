"""The figures of rounds, of one that has ended and of the one under way, from the values that the machine gives."""

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from epochal.coordinator.machine.instructions import OutcomeDecided
from epochal.coordinator.machine.parts.persistent_map import plain
from epochal.coordinator.machine.parts.round import NO_ARRIVALS, Round
from epochal.coordinator.machine.run import Run
from epochal.state.documents import Outcome, branch_of, tries_before
from epochal.state.intervals import total_batches
from epochal.state.messages.data_metrics import MAX_CLAIMED_S
from epochal.state.messages.history_rows import MAX_DETAIL_CHARS, ClientFate, ClientFigures, RoundDetail, RoundFigures
from epochal.state.messages.round_times import MS_PER_S, LaterTimes, ResultMetrics
from epochal.state.weights import number_of
from epochal.state.wire import ClientId

NO_NAMES: Mapping[ClientId, str] = MappingProxyType({})
EXAM = "an exam: a new key's first result counts for nothing, and is computed again"
_PLACES = 4
"""Number of decimal places of seconds: a tenth of a millisecond, below what any clock here means."""


def mean_of(current: Round, outcome: Outcome, name: Literal["loss", "gradient_norm"]) -> tuple[float | None, int]:
    """Return the mean of a figure of the applied results, and the number of tokens of these; (None, 0) if none has one.

    Absurd claims, whose mean is not finite, have none: a snapshot could not hold it.
    """
    commitments = plain(current.results.commitments)
    weighted = [
        (value, metrics.tokens)
        for entry in outcome.entries
        if (value := getattr(metrics := commitments[entry.client_id].metrics, name)) is not None and metrics.tokens
    ]
    tokens = sum(count for _, count in weighted)
    if not tokens:
        return None, 0
    mean = sum(value * count for value, count in weighted) / tokens
    return (mean, tokens) if math.isfinite(mean) else (None, 0)


def figures_of(decided: OutcomeDecided, number: int, version: int) -> RoundFigures:
    """Return the row of a round that has ended.

    Args:
        decided: the round's end, with `ended`.
        number: of the round in the history.
        version: of the run document that was published with its end.
    """
    ended, outcome = decided.ended, decided.outcome
    assert ended is not None, "every end of a round tells the round"
    current = ended.round
    loss, loss_tokens = (None, 0) if outcome is None else mean_of(current, outcome, "loss")
    applied = 0 if outcome is None else total_batches(batch for entry in outcome.entries for batch in entry.assignment)
    train_s, batches = max(0.0, current.times.trained_s or 0.0), current.tasks.work.batch_count()
    verified = plain(current.results.verified)
    return RoundFigures(
        number=number,
        rounds=1,
        epoch=ended.epoch,
        step=current.number.step,
        attempt=tries_before(current.number.attempt),
        version=version,
        started_s=_seconds(ended.ended_s - ended.witness_s - train_s),
        ended_s=_seconds(ended.ended_s),
        train_s=_seconds(train_s),
        witness_s=_seconds(max(0.0, ended.witness_s)),
        applied_rounds=int(outcome is not None),
        loss=loss,
        loss_tokens=loss_tokens,
        gradient_norm=None if outcome is None else mean_of(current, outcome, "gradient_norm")[0],
        learning_rate=ended.learning_rate,
        tokens=0 if outcome is None else sum(ended.tokens[entry.client_id] for entry in outcome.entries),
        tokens_total=ended.tokens_total,
        members=ended.members,
        ready=ended.ready,
        clients=len(current.tasks.roster.clients),
        results=len(verified),
        batches=batches,
        applied_batches=applied,
        lost_batches=batches - applied,
        carried_batches=ended.carried_batches,
        quarantined_batches=ended.quarantined_batches,
        result_bytes=sum(current.results.commitments[client_id].size_bytes for client_id in verified),
        branch=branch_of(current.number.attempt),
    )


def detail_of(decided: OutcomeDecided, figures: RoundFigures, names: Mapping[ClientId, str] = NO_NAMES) -> RoundDetail:
    """Return a round that has ended, with each of its clients.

    Args:
        decided: the round's end, with `ended`.
        figures: its row.
        names: that clients have chosen.
    """
    assert decided.ended is not None, "every end of a round tells the round"
    applied = frozenset[ClientId](
        () if decided.outcome is None else (entry.client_id for entry in decided.outcome.entries)
    )
    clients = clients_of(decided.ended.round, decided.ended.tokens, applied, names, decided.ended.exams)
    return RoundDetail(figures, decided.reason[:MAX_DETAIL_CHARS], clients, _seconds(decided.ended.away_s))


def parts_of(run: Run) -> dict[ClientId, float]:
    """Return each client's part of the batches of the round under way, from 0 to 1."""
    if run.round is None:
        return {}
    whole = max(1, run.round.tasks.work.batch_count())
    return {
        client_id: round(total_batches(given) / whole, _PLACES)
        for client_id, given in run.round.tasks.plan.assignments.items()
    }


def ahead_in(current: Round) -> frozenset[ClientId]:
    """Return the clients that train, or have trained, for the round after this one (`merge.delay`).

    A client does as soon as its own result is ready, if the next round promises it work.
    """
    ahead = current.ahead
    if ahead is None or not ahead.is_promised:
        return frozenset()
    entries = (ahead.roster or current.tasks.roster).clients
    given = frozenset(ClientId(entry.client_id) for entry in entries if entry.proven and entry.share)
    return given.intersection(current.results.commitments)


def lowered_factors(run: Run) -> dict[ClientId, float]:
    """Return the factors of those results of the last outcome that counted for less than their batches."""
    last = run.models.outcomes.get(run.progress.replica_step)
    found = {} if last is None else {ClientId(entry.client_id): number_of(entry.factor) for entry in last.entries}
    return {client_id: factor for client_id, factor in found.items() if factor < 1}


def clients_of(
    current: Round,
    tokens: Mapping[ClientId, int],
    applied: frozenset[ClientId] = frozenset(),
    names: Mapping[ClientId, str] = NO_NAMES,
    exams: frozenset[ClientId] = frozenset(),
) -> tuple[ClientFigures, ...]:
    """Return each client's part of a round, as far as it has come.

    Args:
        current: the round.
        tokens: for how many tokens the result of each counts (`Round.tokens`).
        applied: the clients whose results were applied.
        names: that clients have chosen.
        exams: the clients whose results were exams.
    """
    witnesses = frozenset(current.tasks.plan.witnesses)
    arrivals, commitments = plain(current.arrivals), plain(current.results.commitments)
    found = []
    for entry in current.tasks.roster.clients:
        client_id = ClientId(entry.client_id)
        fate, detail = _fate(current, client_id, applied)
        detail = EXAM if client_id in exams else detail
        times, bound = arrivals.get(client_id, NO_ARRIVALS), commitments.get(client_id)
        metrics = None if bound is None else bound.metrics
        waits = None if metrics is None else metrics.data
        figures = ClientFigures(
            client_id=client_id,
            batches=total_batches(current.tasks.plan.assignments.get(client_id, ())),
            witness=client_id in witnesses,
            fate=fate,
            detail=detail[:MAX_DETAIL_CHARS],
            committed_s=None if times.committed_s is None else _known(max(0.0, times.committed_s)),
            delivered_s=_known(times.delivered_s),
            attested_s=_known(times.attested_s),
            result_bytes=0 if bound is None else bound.size_bytes,
            train_s=None if metrics is None else _trained(metrics),
            fetching_s=None if waits is None else _seconds(waits.fetching_s),
            decoding_s=None if waits is None else _seconds(waits.decoding_s),
            packing_s=None if waits is None else _seconds(waits.packing_s),
            tokens=tokens.get(client_id, 0),
            loss=None if metrics is None else metrics.loss,
            check_s=_of_ms(times.check_ms),
            name=names.get(client_id, ""),
            failure=None if fate != "failed" else current.missing.failures[client_id].kind,
        )
        if metrics is not None:
            figures = _with_work(figures, metrics)
        found.append(figures if times.told is None else with_later_times(figures, times.told))
    return tuple(found)


def _trained(metrics: ResultMetrics) -> float:
    """Return the seconds in the trainer, without its waits for data: from 0 to `MAX_CLAIMED_S`."""
    return _seconds(max(0.0, min(metrics.train_s, MAX_CLAIMED_S) - (_waited(metrics) or 0.0)))


def _waited(metrics: ResultMetrics) -> float | None:
    data = metrics.data
    return None if data is None else data.fetching_s + data.decoding_s + data.packing_s


def _with_work(figures: ClientFigures, metrics: ResultMetrics) -> ClientFigures:
    """Return a client's figures with those that it reports of its work until its result was ready."""
    data_s, work, gpu = _waited(metrics), metrics.work, metrics.gpu
    figures = replace(
        figures,
        data_s=_known(data_s),
        gradient_norm=metrics.gradient_norm,
        gpu_memory_bytes=None if gpu is None else gpu.memory_bytes,
        gpu_memory_total_bytes=None if gpu is None else gpu.memory_total_bytes,
        gpu_utilisation=None if gpu is None else gpu.utilisation,
    )
    if work is None:
        return figures
    ready_s = metrics.train_s + (work.replica_ms + work.encode_ms) / MS_PER_S
    figures = replace(
        figures, idle_s=_of_ms(work.idle_ms), replica_s=_of_ms(work.replica_ms), encode_s=_of_ms(work.encode_ms)
    )
    arrived_s = figures.committed_s
    return figures if arrived_s is None else replace(figures, document_s=_seconds(max(0.0, arrived_s - ready_s)))


def with_later_times(figures: ClientFigures, told: LaterTimes) -> ClientFigures:
    """Return a client's figures of a round with the times of it that the client has reported since."""
    upload_s = _of_ms(told.upload_ms)
    if upload_s is not None and figures.check_s is not None:
        upload_s = _seconds(max(0.0, upload_s - figures.check_s))
    if figures.document_s is None and figures.delivered_s is not None and told.upload_ms is not None:
        figures = _with_document(figures, told.upload_ms / MS_PER_S)
    return replace(
        figures,
        upload_s=upload_s,
        attest_s=_of_ms(told.attest_ms),
        download_s=_of_ms(told.download_ms),
        merge_s=_of_ms(told.merge_ms),
        uploaded_bytes=told.uploaded_bytes,
        downloaded_bytes=told.downloaded_bytes,
    )


def _with_document(figures: ClientFigures, sent_s: float) -> ClientFigures:
    """Return the figures of a client whose result came along with its announcement, after it was sent for so long."""
    parts = (figures.replica_s, figures.data_s, figures.train_s, figures.encode_s)
    if figures.delivered_s is None or figures.replica_s is None:
        return figures
    ready_s = sum(part for part in parts if part is not None)
    return replace(figures, document_s=_seconds(max(0.0, figures.delivered_s - ready_s - sent_s)))


def _of_ms(told: int | None) -> float | None:
    return None if told is None else told / MS_PER_S


def _fate(current: Round, client_id: ClientId, applied: frozenset[ClientId]) -> tuple[ClientFate, str]:
    if client_id in applied:
        return "applied", ""
    if client_id in current.results.verified:
        return "lost", ""
    if client_id in current.missing.rejected:
        return "rejected", current.missing.rejected[client_id]
    if client_id in current.missing.failures:
        report = current.missing.failures[client_id]
        return "failed", f"{report.kind}: {report.message}"
    return ("missing", "") if current.tasks.plan.assignments.get(client_id) else ("idle", "")


def _seconds(value: float) -> float:
    return round(value, _PLACES)


def _known(value: float | None) -> float | None:
    return None if value is None else _seconds(value)
