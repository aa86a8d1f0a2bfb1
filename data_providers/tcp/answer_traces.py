"""A data server's answers as spans, in the trace of the round that the run document names when they are given."""

import time
from collections.abc import Callable

from epochal.data_providers.tcp.coordinator_gate import CoordinatorGate
from epochal.data_providers.tcp.server import DataServerEvent, RequestEnded
from epochal.runtime.tracing.spans import RoundSpan, SpanSink


class DataServerTraces:
    """Makes spans of a data server's events. `observe` is a watcher of `DataServer`.

    Args:
        gate: follows the run.
        sink: takes the spans.
        now_s: returns seconds since 1970.
    """

    def __init__(self, gate: CoordinatorGate, sink: SpanSink, now_s: Callable[[], float] = time.time) -> None:
        self._gate = gate
        self._sink = sink
        self._now_s = now_s

    def observe(self, event: DataServerEvent) -> None:
        """Take an event of the data server."""
        name = self._gate.traced_round
        if name is None or not isinstance(event, RequestEnded) or not event.duration_s or event.client_id is None:
            return
        end_s = self._now_s()
        attributes: dict[str, str | int | float | bool] = {
            "epochal.client_id": event.client_id,
            "epochal.samples": event.sample_count,
            "epochal.bytes": event.size_bytes,
        }
        self._sink.take(
            RoundSpan(
                "serve samples",
                name,
                end_s - event.duration_s,
                end_s,
                attributes,
                parent_id=name.root_span_id,
                failure=event.failure,
            )
        )
