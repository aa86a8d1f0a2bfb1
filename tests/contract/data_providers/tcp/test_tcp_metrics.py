"""A data server's counters by client."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import epochal.data_providers.tcp.server_metrics
from epochal.coordinator_client.http import CoordinatorClient
from epochal.data_providers.protocol import Rejected
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.tcp.coordinator_gate import CoordinatorGate
from epochal.data_providers.tcp.server import DataServer
from epochal.data_providers.tcp.server_metrics import OTHERS, DataServerMetrics
from epochal.runtime.retry import RetryPolicy
from epochal.state.intervals import DataIds
from epochal.state.wire import ClientId
from tests.support.data.data_files import SPEC, write_dataset
from tests.support.data.states import state_file
from tests.support.servers.data_coordinator import PublishedRun
from tests.support.servers.data_http import http_server
from tests.support.servers.data_server import HalfGate, open_client, serving

BYTES = SPEC.sequence_bytes


class NamingGate(HalfGate):
    """Admits everyone as the client that the ticket names, and allows data indices below 50."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        return ClientId(ticket)


def by_client(registry: CollectorRegistry) -> dict[str, tuple[float, ...]]:
    """Return each client's requests, samples, bytes and errors, as Prometheus reads them."""
    names = [f"epochal_data_server_client_{name}_total" for name in ("requests", "samples", "sent_bytes", "errors")]
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if sample.name in names:
                found.setdefault(sample.labels["client_id"], {})[sample.name] = sample.value
    return {client_id: tuple(values[name] for name in names) for client_id, values in found.items()}


async def metrics_of(server: DataServer) -> CollectorRegistry:
    registry = CollectorRegistry()
    async with (
        http_server(PublishedRun(state_file())) as url,
        await CoordinatorClient.connect(url, RetryPolicy()) as api,
    ):
        DataServerMetrics(registry).watch(server, CoordinatorGate(api))
    return registry


async def ask(address: object, name: str, *wanted: DataIds) -> None:
    client = await open_client(address, name)  # type: ignore[arg-type]
    for data_ids in wanted:
        if data_ids.end < 50:
            await client.get_samples(data_ids)
        else:
            with pytest.raises(Rejected):
                await client.get_samples(data_ids)
    await client.aclose()


async def test_requests_samples_bytes_and_errors_are_counted_by_client(tmp_path: Path) -> None:
    source = LocalDataProvider.open(write_dataset(tmp_path), SPEC)
    async with serving(source, NamingGate()) as (server, address):
        registry = await metrics_of(server)
        await ask(address, "alice", DataIds(0, 2), DataIds(7, 7), DataIds(50, 50))
        await ask(address, "bob", DataIds(3, 4))
    found = by_client(registry)
    assert found == {"alice": (3, 4, 4 * BYTES, 1), "bob": (1, 2, 2 * BYTES, 0), OTHERS: (0, 0, 0, 0)}


async def test_clients_counted_by_name_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.data_providers.tcp.server_metrics, "MAX_CLIENT_LABELS", 2)
    source = LocalDataProvider.open(write_dataset(tmp_path), SPEC)
    async with serving(source, NamingGate()) as (server, address):
        registry = await metrics_of(server)
        await ask(address, "alice", DataIds(0, 0))
        for number in range(3):
            await ask(address, f"stranger-{number}", DataIds(50, 50))
        assert set(by_client(registry)) == {"alice", "stranger-2", OTHERS}, "who got nothing makes room"
        await ask(address, "bob", DataIds(1, 1))
        await ask(address, "carol", DataIds(2, 3))
    found = by_client(registry)
    assert found == {"bob": (1, 1, BYTES, 0), "carol": (1, 2, 2 * BYTES, 0), OTHERS: (4, 1, BYTES, 3)}
