"""Metrics of a training service for Prometheus: its sessions, their examples, and the time of the arithmetic."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from epochal.runtime.metrics.metrics_registry import LATENCY_BUCKETS_S, HttpMetrics


class TrainingMetrics:
    """A training service's metrics, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.http = HttpMetrics(registry)
        self._sessions = Gauge("epochal_training_service_sessions_open", "Sessions open.", registry=registry)
        self._examples = Counter("epochal_training_service_examples", "Examples trained on.", registry=registry)
        self._tokens = Counter(
            "epochal_training_service_tokens", "Predicted tokens of those examples.", registry=registry
        )
        self.waiting = Gauge(
            "epochal_training_service_requests_waiting",
            "Requests that wait for the arithmetic, including the current one.",
            registry=registry,
        )
        self.arithmetic = Histogram(
            "epochal_training_service_arithmetic_duration_seconds",
            "Time of one request's arithmetic, without its wait.",
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )

    def watch_sessions(self, count: Callable[[], int]) -> None:
        """Show the number of open sessions."""
        self._sessions.set_function(count)

    def count_examples(self, example_count: int, token_count: int) -> None:
        """Count a request's examples. Any thread may call this."""
        self._examples.inc(example_count)
        self._tokens.inc(token_count)
