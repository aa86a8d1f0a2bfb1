"""The tables of the site's page of metrics: every metric of every program, from the registries themselves."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric

from epochal.coordinator.api.coordinator_metrics import CoordinatorMetrics
from epochal.data_providers.tcp.server_metrics import DataServerMetrics
from epochal.training_service.metrics import TrainingMetrics

SUFFIXES = {"counter": "_total", "info": "_info"}
PROGRAMS: dict[str, Callable[[CollectorRegistry], object]] = {
    "coordinator": CoordinatorMetrics,
    "data-server": DataServerMetrics,
    "training-service": TrainingMetrics,
}


def table(register: Callable[[CollectorRegistry], object]) -> str:
    """Return the table of the metrics that `register` adds to a registry."""
    registry = CollectorRegistry()
    register(registry)
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for metric, labels in sorted(_described(registry), key=lambda described: described[0].name):
        shown = ", ".join(f"`{label}`" for label in labels)
        lines.append(
            f"| `{metric.name}{SUFFIXES.get(metric.type, '')}` | {metric.type} | {shown} | {metric.documentation} |"
        )
    return "\n".join(lines)


def _described(registry: CollectorRegistry) -> Iterator[tuple[Metric, tuple[str, ...]]]:
    for collector in registry._collector_to_names:
        if isinstance(collector, ProcessCollector):
            continue
        for metric in collector.describe():  # type: ignore[attr-defined]
            yield metric, tuple(getattr(metric, "_labelnames", ()) or getattr(collector, "_labelnames", ()))
