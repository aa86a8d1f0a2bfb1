"""Metrics for Prometheus: a registry for each service, how it is shown, and what every HTTP server measures.

The rules kept here: no registry is global, so that several services may live in one process; and the labels have few
values, never a client's id or a URL, so that no stranger can make the metrics grow. Names follow
https://prometheus.io/docs/practices/naming/; docs/metrics.md lists them.
"""

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    make_asgi_app,
)
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.http_server import Endpoint, serving_app
from state.refusals import Refusal

LOOPBACK = "127.0.0.1"
MAX_SCRAPES = 16
"""Connections that a server of metrics alone takes at a time."""
LATENCY_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0)
"""For answers and writes."""
DURATION_BUCKETS_S = (0.01, 0.05, 0.2, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 3600.0)
"""For phases, rounds, training and transfers."""
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
REFUSAL_IN_SCOPE = "epochal.refusal"
"""Where the ASGI scope of a refused request holds its `Refusal`."""
UNKNOWN_LABEL = "(none)"
"""The route of a request that met none, and the method of one that HTTP does not define."""


def new_registry() -> CollectorRegistry:
    """Return a registry that holds the process's own metrics: CPU, memory, open files."""
    # A second series for each counter, of which Prometheus makes nothing.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


class MetricsEndpoint:
    """`GET /metrics`: a registry in the format that the reader asks for, which may be OpenMetrics."""

    path = "/metrics"

    def __init__(self, registry: CollectorRegistry) -> None:
        self._show = make_asgi_app(registry)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._show(scope, receive, send)


def metrics_route(registry: CollectorRegistry) -> Route:
    """Return the route that shows a registry."""
    return Route(MetricsEndpoint.path, MetricsEndpoint(registry), methods=["GET"], name="metrics")


@contextlib.asynccontextmanager
async def serving_metrics(registry: CollectorRegistry, port: int, host: str = LOOPBACK) -> AsyncIterator[str]:
    """Serve a registry until the context is left, for a process that serves no HTTP; yields the URL to read.

    Args:
        registry: what is shown, to everyone who reaches the port.
        port: where to listen; 0 picks a free port.
        host: this machine alone, unless the operator names another address.

    Raises:
        InvalidInput: it cannot listen there.
    """
    endpoint = Endpoint(host, port)
    app = Starlette(routes=[metrics_route(registry)])
    async with serving_app(endpoint, app, max_connections=MAX_SCRAPES) as url:
        yield url + MetricsEndpoint.path


class HttpMetrics:
    """What an HTTP server measures of its requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._duration = Histogram(
            "epochal_http_request_duration_seconds",
            "Time from a request's head to the end of its answer; a long poll's wait is part of it.",
            ("method", "route", "status"),
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )
        self._received = Counter(
            "epochal_http_request_body_bytes", "Bytes received in requests' bodies.", ("route",), registry=registry
        )
        self._sent = Counter(
            "epochal_http_response_body_bytes", "Bytes sent in answers' bodies.", ("route",), registry=registry
        )
        self._refused = Counter(
            "epochal_http_refusals", "Requests refused, by the problem's type.", ("reason",), registry=registry
        )
        self._counts: dict[tuple[str, str, int], _Counts] = {}

    def add(self, scope: Scope, answer: "Answer") -> None:
        """Count one request that was answered."""
        route = getattr(scope.get("route") or scope.get("endpoint"), "path", UNKNOWN_LABEL)
        method = scope["method"] if scope["method"] in METHODS and route != UNKNOWN_LABEL else UNKNOWN_LABEL
        key = (method, route, answer.status // 100)
        counts = self._counts.get(key) or self._counts.setdefault(key, self._counts_of(*key))
        counts.duration.observe(answer.duration_s)
        if answer.received_bytes:
            counts.received.inc(answer.received_bytes)
        if answer.sent_bytes:
            counts.sent.inc(answer.sent_bytes)
        refusal: Refusal | None = Refusal.INTERNAL if answer.failed else scope.get(REFUSAL_IN_SCOPE)
        if refusal is not None:
            self._refused.labels(refusal.value).inc()

    def _counts_of(self, method: str, route: str, status_class: int) -> "_Counts":
        duration = self._duration.labels(method, route, f"{status_class}xx")
        return _Counts(duration, self._received.labels(route), self._sent.labels(route))


@dataclass(frozen=True, slots=True)
class _Counts:
    """What a request of one method, route and status class adds to; kept, because looking it up by labels is slow."""

    duration: Histogram
    received: Counter
    sent: Counter


class Answer:
    """One request as it is answered: wraps `receive` and `send`.

    Attributes:
        status: HTTP status code; 0 until the answer begins.
        failed: whether the application raised an exception.
    """

    __slots__ = ("_receive", "_send", "_started_s", "failed", "received_bytes", "sent_bytes", "status")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._started_s = time.perf_counter()
        self.status = self.received_bytes = self.sent_bytes = 0
        self.failed = False

    @property
    def duration_s(self) -> float:
        """Seconds since the request's head arrived."""
        return time.perf_counter() - self._started_s

    async def receive(self) -> Message:
        """Pass on a message from the client."""
        message = await self._receive()
        self.received_bytes += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        """Pass on a message to the client."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.sent_bytes += len(message.get("body", b""))
        await self._send(message)


class MeasuredRequests:
    """ASGI middleware that measures requests. It adds no task and copies nothing."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = Answer(receive, send)
        try:
            await self._app(scope, answer.receive, answer.send)
        except Exception:
            answer.status, answer.failed = answer.status or Refusal.INTERNAL.status, True
            raise
        finally:
            if answer.status:
                self._metrics.add(scope, answer)
