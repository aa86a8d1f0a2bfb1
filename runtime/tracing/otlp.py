"""Spans to an OpenTelemetry collector over OTLP/HTTP, by the SDK (extra `epochal[otel]`).

The rule kept here: whoever hands a span over never waits, and nothing grows. Spans wait in a queue of bounded length,
of which the oldest are dropped; a thread sends them; a collector that hangs or is absent costs a log line a minute, and
`CLOSE_S` at the end of the process.
"""

import contextlib
import importlib.util
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from epochal.runtime.connections.throttled_log import RareLog
from epochal.runtime.http.http_client import check_url
from epochal.runtime.tracing.spans import NS_PER_S, RoundSpan, SpanSink
from epochal.runtime.tracing.trace_ids import TracedRound
from epochal.state.errors import ExtraMissing

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger(__name__)

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
DISABLED_VARIABLE = "OTEL_SDK_DISABLED"
TRACES_PATH = "/v1/traces"
EXTRA = "pip install 'epochal[otel]'"
QUEUE_SPANS = 4096
"""Number of spans that wait to be sent; with more, the oldest are dropped."""
BATCH_SPANS = 512
SEND_EVERY_S = 2.0
SEND_TIMEOUT_S = 10.0
CLOSE_S = 3.0
"""Time at the end of a process in which the last spans are sent."""
MAX_ATTRIBUTE_CHARS = 240


def endpoint_of(option: str | None) -> str | None:
    """Return where to send traces: the option, or what OpenTelemetry's own variables say; None for nowhere.

    Raises:
        InvalidInput: the option is no URL, or the packages are missing that it needs.
    """
    if option is not None:
        check_url(option, "--otel-endpoint")
        if not _is_installed():
            raise ExtraMissing(f"--otel-endpoint needs OpenTelemetry: {EXTRA}")
        return _with_path(option)
    if os.environ.get(DISABLED_VARIABLE, "").strip().lower() == "true":
        return None
    own, base = os.environ.get(TRACES_ENDPOINT_VARIABLE), os.environ.get(ENDPOINT_VARIABLE)
    place = own or (_with_path(base) if base else None)
    if place and not place.startswith(("http://", "https://")):
        log.warning("traces_not_sent", extra={"reason": f"{ENDPOINT_VARIABLE} is no http:// or https:// URL"})
        return None
    if place and not _is_installed():  # the variable may be meant for other programs
        log.warning("traces_not_sent", extra={"reason": f"{ENDPOINT_VARIABLE} is set; to send traces: {EXTRA}"})
        return None
    return place


def _with_path(base: str) -> str:
    return base if base.rstrip("/").endswith(TRACES_PATH) else base.rstrip("/") + TRACES_PATH


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter") is not None
    except ModuleNotFoundError:
        return False


@contextlib.contextmanager
def exported_spans(endpoint: str, service: str) -> Iterator[SpanSink]:
    """Yield what takes spans, and sends them to this URL; the last ones when the context is left.

    Args:
        endpoint: as `endpoint_of` returns it.
        service: `service.name` of the process, unless `OTEL_SERVICE_NAME` says otherwise.
    """
    exporter = _OtlpSpans(endpoint, service)
    try:
        yield exporter
    finally:
        exporter.close()


class _OtlpSpans:
    """A `SpanSink` over the SDK. Sampling, headers and attributes of the resource are as its variables say."""

    def __init__(self, endpoint: str, service: str) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # said here, rarely, and without headers
        self._trace = trace
        self._ids = _GivenIds()
        attributes = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
        self._provider = TracerProvider(
            resource=Resource.create(attributes),
            id_generator=self._ids,
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_span_attribute_length=MAX_ATTRIBUTE_CHARS),
        )
        exporter = _said(OTLPSpanExporter(endpoint=endpoint, timeout=SEND_TIMEOUT_S))
        self._provider.add_span_processor(BatchSpanProcessor(exporter, QUEUE_SPANS, SEND_EVERY_S * 1000, BATCH_SPANS))
        self._tracer = self._provider.get_tracer("epochal")
        self._lock = threading.Lock()

    def take(self, span: RoundSpan) -> None:
        try:
            self._take(span)
        except Exception:  # never in the way of the run
            log.debug("span_not_taken", exc_info=True)

    def _take(self, span: RoundSpan) -> None:
        trace = self._trace
        kind = trace.SpanKind.CLIENT if span.is_request else trace.SpanKind.INTERNAL
        attributes = _named(span.round) | dict(span.attributes)
        with self._lock:
            self._ids.give(span.round.trace_id, span.span_id)
            made = self._tracer.start_span(
                span.name,
                context=self._context(span),
                kind=kind,
                attributes=attributes,
                start_time=round(span.start_s * NS_PER_S),
            )
        if span.failure is not None:
            made.set_status(trace.StatusCode.ERROR, span.failure[:MAX_ATTRIBUTE_CHARS])
        made.end(end_time=round(max(span.start_s, span.end_s) * NS_PER_S))

    def _context(self, span: RoundSpan) -> Any:
        from opentelemetry.context import Context

        trace = self._trace
        if span.parent_id is None:
            return Context()
        sampled = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        parent = trace.SpanContext(span.round.trace_id, span.parent_id, is_remote=True, trace_flags=sampled)
        return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())

    def close(self) -> None:
        """Send what waits, for `CLOSE_S` at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="epochal-otel-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _named(traced: TracedRound) -> dict[str, str | int | float | bool]:
    return {"epochal.run_id": traced.run_id, "epochal.step": traced.step, "epochal.attempt": traced.attempt}


class _GivenIds:
    """An `IdGenerator` of the SDK that returns the ids that were given last."""

    def __init__(self) -> None:
        self.give(1, 1)

    def give(self, trace_id: int, span_id: int) -> None:
        self._trace_id, self._span_id = trace_id, span_id

    def generate_trace_id(self) -> int:
        return self._trace_id

    def generate_span_id(self) -> int:
        return self._span_id

    def is_trace_id_random(self) -> bool:
        return False


def _said(exporter: "SpanExporter") -> "SpanExporter":
    """Return an exporter that logs at a bounded rate how many spans were not sent."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    failed = RareLog(log, "traces_not_sent")

    class Said(SpanExporter):  # type: ignore[misc]  # the package may be absent
        def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
            result = exporter.export(spans)
            if result is not SpanExportResult.SUCCESS:
                failed.note("the OpenTelemetry endpoint does not take them; the run continues without", len(spans))
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return bool(exporter.force_flush(timeout_millis))

    return Said()
