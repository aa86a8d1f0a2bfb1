"""A data server's Prometheus metrics: requests, connections, and the delay in following the coordinator."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from epochal.data_providers.tcp.coordinator_gate import CoordinatorGate
from epochal.data_providers.tcp.server import DataServer, RequestEnded
from epochal.runtime.metrics.metrics_registry import LATENCY_BUCKETS_S

ANSWERED = "samples"


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
        self._turned_away = Counter(
            "epochal_data_server_clients_turned_away", "Clients not admitted, by error.", ("reason",), registry=registry
        )
        self._connections = Gauge("epochal_data_server_connections_open", "Connections open.", registry=registry)
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
        self._waiting.set_function(lambda: server.memory.waiting_count)
        self._lag.set_function(lambda: gate.lag_s)
        self._version.set_function(lambda: gate.document_version)

    def _observe(self, event: RequestEnded) -> None:
        if event.duration_s is None:
            self._turned_away.labels(event.failure).inc()
            return
        self._duration.labels(event.failure or ANSWERED).observe(event.duration_s)
        self._samples.inc(event.sample_count)
        self._bytes.inc(event.size_bytes)
