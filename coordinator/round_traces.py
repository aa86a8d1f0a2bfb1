"""Rounds that have ended as spans: the round itself, its phases, and the checks of results."""

from epochal.runtime.tracing.spans import RoundSpan, SpanSink
from epochal.runtime.tracing.trace_ids import TracedRound
from epochal.state.messages.history_rows import ClientFigures, RoundDetail

MAX_TRACED_CLIENTS = 256
"""Maximum number of clients of a round whose results have spans."""


def trace_round(run_id: str, detail: RoundDetail, sink: SpanSink) -> None:
    """Give the spans of a round that has ended to the sink.

    Args:
        run_id: of the run.
        detail: of the round.
        sink: takes them.
    """
    figures = detail.figures
    name, start_s = TracedRound(run_id, figures.step, figures.attempt), figures.started_s
    root = name.root_span_id
    attributes: dict[str, str | int | float | bool] = {
        "epochal.epoch": figures.epoch,
        "epochal.clients": figures.clients,
        "epochal.results": figures.results,
        "epochal.batches": figures.batches,
        "epochal.applied_batches": figures.applied_batches,
        "epochal.tokens": figures.tokens,
        "epochal.result_bytes": figures.result_bytes,
    }
    failure = None if figures.applied_rounds else "nothing was applied"
    sink.take(RoundSpan("round", name, start_s, figures.ended_s, attributes, root, failure=failure))
    trained_s = start_s + figures.train_s
    sink.take(RoundSpan("RoundTrain", name, start_s, trained_s, parent_id=root))
    sink.take(RoundSpan("RoundWitness", name, trained_s, trained_s + figures.witness_s, parent_id=root))
    for client in detail.clients[:MAX_TRACED_CLIENTS]:
        span = _check_of(client, name, start_s)
        if span is not None:
            sink.take(span)


def _check_of(client: ClientFigures, name: TracedRound, start_s: float) -> RoundSpan | None:
    """Return the check of a client's result, if its result came and its time is known."""
    if client.delivered_s is None or client.check_s is None:
        return None
    end_s = start_s + client.delivered_s
    attributes: dict[str, str | int | float | bool] = {
        "epochal.client_id": client.client_id,
        "epochal.bytes": client.result_bytes,
        "epochal.fate": client.fate,
    }
    return RoundSpan("check result", name, end_s - client.check_s, end_s, attributes, parent_id=name.root_span_id)
