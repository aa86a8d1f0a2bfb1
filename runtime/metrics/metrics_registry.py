"""Metrics for Prometheus: a registry for each service, its route, and what every HTTP server measures.

The rules kept here: no registry is global, so that several services may live in one process; and the labels have few
values, never a client's id or a URL, so that no stranger can make the metrics grow. Names follow
https://prometheus.io/docs/practices/naming/; docs/metrics.md lists them.
"""

import time
from collections.abc import Awaitable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    make_asgi_app,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from epochal.runtime.connections.shedding import CONNECTION_IN_SCOPE, Peer, ServerConnections, Shed
from epochal.runtime.connections.whole_answers import AT_ONCE_IN_SCOPE, AtOnce
from epochal.state.refusals import Refusal

LATENCY_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0)
"""For answers and writes."""
DURATION_BUCKETS_S = (0.01, 0.05, 0.2, 1.0, 5.0, 15.0, 60.0, 180.0, 600.0, 1800.0, 3600.0)
"""For phases, rounds, training and transfers."""
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
REFUSAL_IN_SCOPE = "epochal.refusal"
"""Key of a refused request's `Refusal` in the ASGI scope."""
UNKNOWN_LABEL = "(none)"
"""Route of a request that matches none, and the method of one that HTTP does not define."""


def new_registry() -> CollectorRegistry:
    """Return a registry that holds the process's own metrics: CPU, memory, open files."""
    # `_created` doubles the series of each counter, and Prometheus does not use it.
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


class HttpMetrics:
    """Measures an HTTP server's requests, and collects what its connections count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._refused = Counter(
            "epochal_http_refusals", "Requests refused, by the problem's type.", ("reason",), registry=registry
        )
        self._durations = Histogram(
            "epochal_http_request_duration_seconds",
            "Time from a request's head to the end of its answer, including the wait of a long poll.",
            ("method", "route", "status"),
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._received = Counter(
            "epochal_http_request_body_bytes", "Bytes received in requests' bodies.", ("route",), registry=registry
        )
        self._sent = Counter(
            "epochal_http_response_body_bytes", "Bytes sent in answers' bodies.", ("route",), registry=registry
        )
        self._of_route: dict[tuple[str, str, int], tuple[Histogram, Counter, Counter]] = {}
        """Duration, received and sent bytes by method, route and status class: finding labels takes time."""
        self.connections: ServerConnections | None = None
        """The server's connections, known from its first request on."""
        registry.register(self)

    def add(self, scope: Scope, answer: "Answer") -> None:
        """Count one request that was answered."""
        route = getattr(scope.get("route") or scope.get("endpoint"), "path", UNKNOWN_LABEL)
        method = scope["method"] if scope["method"] in METHODS and route != UNKNOWN_LABEL else UNKNOWN_LABEL
        key = method, route, answer.status // 100
        if key not in self._of_route:
            duration = self._durations.labels(method, route, f"{answer.status // 100}xx")
            self._of_route[key] = duration, self._received.labels(route), self._sent.labels(route)
        duration, received, sent = self._of_route[key]
        duration.observe(time.perf_counter() - answer.started_s)
        if answer.received_bytes:
            received.inc(answer.received_bytes)
        if answer.sent_bytes:
            sent.inc(answer.sent_bytes)
        refusal: Refusal | None = Refusal.INTERNAL if answer.failed else scope.get(REFUSAL_IN_SCOPE)
        if refusal is not None:
            self._refused.labels(refusal.value).inc()

    def notes(self) -> Iterator[str]:
        """Yield what the server sheds at the moment, as lines for its operator."""
        if self.connections is not None:
            yield from self.connections.notes()

    def describe(self) -> tuple[Metric, ...]:
        """Return the metrics of the connections without values."""
        return _connection_metrics()

    def collect(self) -> tuple[Metric, ...]:
        """Return the metrics of the connections with their values."""
        if self.connections is None:
            return ()
        held, shed, accept_errors = _connection_metrics()
        for peer in Peer:
            held.add_metric((peer.value,), self.connections.count(peer))
        for reason in Shed:
            shed.add_metric((reason.value,), self.connections.shed_counts[reason])
        accept_errors.add_metric((), self.connections.accept_error_count)
        return held, shed, accept_errors


def _connection_metrics() -> tuple[GaugeMetricFamily, CounterMetricFamily, CounterMetricFamily]:
    """Return the metrics of a server's connections, without values."""
    return (
        GaugeMetricFamily(
            "epochal_http_connections",
            "Open connections: of strangers (no head of a request yet), of senders (no whole body yet), of readers "
            "(without a token), of members.",
            labels=("peer",),
        ),
        CounterMetricFamily(
            "epochal_http_connections_shed", "Connections ended before their time, by the reason.", labels=("reason",)
        ),
        CounterMetricFamily("epochal_http_accept_errors", "Errors while accepting a connection."),
    )


class Answer:
    """One request as it is answered: counts what passes through `receive` and `send`.

    Attributes:
        started_s: when the request's head arrived, by `time.perf_counter`.
        status: HTTP status code; 0 until the answer begins.
        failed: whether the application raised an exception.
    """

    __slots__ = ("_at_once", "_receive", "_send", "failed", "received_bytes", "sent_bytes", "started_s", "status")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._at_once: AtOnce | None = scope.get(AT_ONCE_IN_SCOPE)
        if self._at_once is not None:
            scope[AT_ONCE_IN_SCOPE] = self.at_once
        self.started_s = time.perf_counter()
        self.status = self.received_bytes = self.sent_bytes = 0
        self.failed = False

    async def receive(self) -> Message:
        """Pass on a message from the client."""
        message = await self._receive()
        self.received_bytes += len(message.get("body", b""))
        return message

    def send(self, message: Message) -> Awaitable[None]:
        """Pass on a message to the client."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.sent_bytes += len(message.get("body", b""))
        return self._send(message)

    def at_once(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Pass on an answer in one piece; return whether that could be."""
        if self._at_once is None or not self._at_once(status, headers, body):
            return False
        self.status, self.sent_bytes = status, len(body)
        return True


class MeasuredRequests:
    """ASGI middleware that measures requests. It adds no task and copies nothing."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        place = scope.get(CONNECTION_IN_SCOPE)
        if place is not None:
            self._metrics.connections = place[0]
        answer = Answer(scope, receive, send)
        try:
            await self._app(scope, answer.receive, answer.send)
        except Exception:
            answer.status, answer.failed = answer.status or Refusal.INTERNAL.status, True
            raise
        finally:
            scope.pop(AT_ONCE_IN_SCOPE, None)  # else they hold each other
            if answer.status:
                self._metrics.add(scope, answer)
