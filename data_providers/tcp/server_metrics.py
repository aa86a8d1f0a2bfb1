"""A data server's Prometheus metrics: requests, connections, clients, and the delay in following the coordinator."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from epochal.data_providers.tcp.coordinator_gate import CoordinatorGate
from epochal.data_providers.tcp.server import ConnectionShed, DataServer, DataServerEvent, RequestEnded
from epochal.runtime.metrics.metrics_registry import LATENCY_BUCKETS_S

ANSWERED = "samples"
MAX_CLIENT_LABELS = 256
"""Maximum number of clients that are counted by name. For another, one that got nothing joins `OTHERS`, or else the one
that has asked for nothing for longest."""
OTHERS = "others"


@dataclass(slots=True)
class _ClientTotals:
    """Totals of one client, or of all that are not counted by name."""

    requests: int = 0
    samples: int = 0
    sent_bytes: int = 0
    errors: int = 0

    def add(self, other: "_ClientTotals") -> None:
        self.requests += other.requests
        self.samples += other.samples
        self.sent_bytes += other.sent_bytes
        self.errors += other.errors


class _ByClient(Collector):
    """Counters with a label for the client, of at most `MAX_CLIENT_LABELS` clients and `OTHERS`."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, _ClientTotals] = OrderedDict()
        self._others = _ClientTotals()

    def count(self, client_id: str, event: RequestEnded) -> None:
        """Count a request that was answered."""
        totals = self._clients.get(client_id)
        if totals is None:
            totals = self._clients[client_id] = _ClientTotals()
            if len(self._clients) > MAX_CLIENT_LABELS:
                got_nothing = (name for name, of in self._clients.items() if not of.samples and name != client_id)
                self._others.add(self._clients.pop(next(got_nothing, next(iter(self._clients)))))
        self._clients.move_to_end(client_id)
        is_error = event.failure is not None
        totals.add(_ClientTotals(1, event.sample_count, event.size_bytes, int(is_error)))

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Yield the metrics without values."""
        yield from self._metrics()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the metrics with their values."""
        metrics = self._metrics()
        for client_id, totals in [*self._clients.items(), (OTHERS, self._others)]:
            values = (totals.requests, totals.samples, totals.sent_bytes, totals.errors)
            for metric, value in zip(metrics, values, strict=True):
                metric.add_metric((client_id,), value)
        yield from metrics

    @staticmethod
    def _metrics() -> tuple[CounterMetricFamily, ...]:
        of = f"by client ({MAX_CLIENT_LABELS} of them; {OTHERS}: those that asked for nothing for longer)."
        return tuple(
            CounterMetricFamily(f"epochal_data_server_client_{name}", f"{meaning}, {of}", labels=("client_id",))
            for name, meaning in (
                ("requests", "Requests answered"),
                ("samples", "Samples sent"),
                ("sent_bytes", "Bytes of samples sent"),
                ("errors", "Requests answered with an error"),
            )
        )


class DataServerMetrics:
    """A data server's metrics, in one registry. They measure from `watch` on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._duration = Histogram(
            "epochal_data_server_request_duration_seconds",
            "Time from a request for samples to its answer's last byte, by answer: samples, or the error.",
            ("answer",),
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )
        self._samples = Counter("epochal_data_server_samples", "Samples sent.", registry=registry)
        self._bytes = Counter("epochal_data_server_sent_bytes", "Bytes of samples sent.", registry=registry)
        self._by_client = _ByClient()
        registry.register(self._by_client)
        self._turned_away = Counter(
            "epochal_data_server_clients_turned_away", "Clients not admitted, by error.", ("reason",), registry=registry
        )
        self._shed = Counter(
            "epochal_data_server_connections_shed",
            "Connections closed for the sake of others: displaced (the oldest of the sender with the most), silent (no "
            "handshake in time), slow (an answer was received too slowly).",
            ("reason",),
            registry=registry,
        )
        self._connections = Gauge("epochal_data_server_connections_open", "Connections open.", registry=registry)
        self._strangers = Gauge(
            "epochal_data_server_connections_not_admitted", "Connections not admitted yet.", registry=registry
        )
        self._held = Gauge(
            "epochal_data_server_answer_bytes", "Bytes of memory held by the answers under way.", registry=registry
        )
        self._waiting = Gauge(
            "epochal_data_server_requests_waiting", "Requests that wait for memory.", registry=registry
        )
        self._lag = Gauge(
            "epochal_data_server_follower_lag_seconds",
            "Time since the coordinator fell silent; 0 while it answers.",
            registry=registry,
        )
        self._version = Gauge(
            "epochal_data_server_document_version",
            "Version of the run document that is followed; -1 before there is one.",
            registry=registry,
        )

    def watch(self, server: DataServer, gate: CoordinatorGate) -> None:
        """Measure this server and its gate from now on."""
        server.watch(self._observe)
        self._connections.set_function(lambda: len(server.connections))
        self._strangers.set_function(lambda: server.connections.stranger_count)
        self._held.set_function(lambda: server.memory.held_bytes)
        self._waiting.set_function(lambda: server.memory.waiting_count)
        self._lag.set_function(lambda: gate.lag_s)
        self._version.set_function(lambda: gate.document_version)

    def _observe(self, event: DataServerEvent) -> None:
        if isinstance(event, ConnectionShed):
            self._shed.labels(event.reason).inc()
            return
        if event.duration_s is None:
            self._turned_away.labels(event.failure).inc()
            return
        if event.client_id is not None:
            self._by_client.count(event.client_id, event)
        self._duration.labels(event.failure or ANSWERED).observe(event.duration_s)
        self._samples.inc(event.sample_count)
        self._bytes.inc(event.size_bytes)
