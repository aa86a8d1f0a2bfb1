"""A data server's counters: requests by their answer, samples and bytes."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from epochal.coordinator_client.http import CoordinatorClient
from epochal.data_providers.protocol import Rejected
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.tcp.coordinator_gate import CoordinatorGate
from epochal.data_providers.tcp.server_metrics import DataServerMetrics
from epochal.runtime.retry import RetryPolicy
from epochal.state.intervals import DataIds
from tests.support.data.data_files import SPEC, write_dataset
from tests.support.data.states import state_file
from tests.support.servers.data_coordinator import PublishedRun
from tests.support.servers.data_http import http_server
from tests.support.servers.data_server import HalfGate, open_client, serving


async def test_requests_are_counted_by_answer_with_samples_and_bytes(tmp_path: Path) -> None:
    source, registry = LocalDataProvider.open(write_dataset(tmp_path), SPEC), CollectorRegistry()
    async with serving(source, HalfGate()) as (server, address), http_server(PublishedRun(state_file())) as url:
        async with await CoordinatorClient.connect(url, RetryPolicy()) as api:
            DataServerMetrics(registry).watch(server, CoordinatorGate(api))
        client = await open_client(address)
        await client.get_samples(DataIds(0, 2))
        await client.get_samples(DataIds(7, 7))
        with pytest.raises(Rejected):
            await client.get_samples(DataIds(50, 50))
        await client.aclose()
        with pytest.raises(Rejected):
            await open_client(address, "bad")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"epochal_data_server_{name}", labels)

    assert value("request_duration_seconds_count", answer="samples") == 2
    assert value("request_duration_seconds_count", answer="rejected") == 1
    assert value("clients_turned_away_total", reason="rejected") == 1
    assert (value("samples_total"), value("sent_bytes_total")) == (4, 4 * SPEC.sequence_bytes)
