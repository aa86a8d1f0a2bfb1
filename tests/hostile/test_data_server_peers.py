"""What a data server's peers do to it over real sockets: bad tickets, others' data, and floods."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

import epochal.data_providers.tcp.coordinator_gate
from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.auth.tokens import SESSION_LIFETIME_S, SessionTokens
from epochal.coordinator_client.http import CoordinatorClient
from epochal.data_providers.protocol import Rejected
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.tcp.client_connection import DataServerAccess, DataServerAddress
from epochal.data_providers.tcp.coordinator_gate import CLOCK_LEEWAY_S, CoordinatorGate
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.data_providers.tcp.server_limits import DEFAULT_LIMITS
from epochal.runtime.connections.descriptors import allow_connections, open_files_limit
from epochal.runtime.connections.shedding import Peer
from epochal.state.assignment import assign_data_for_state
from epochal.state.documents import WorkList
from epochal.state.intervals import BatchId, DataIds
from tests.support.bounds import BOUND_S
from tests.support.data.data_files import SPEC, write_dataset
from tests.support.data.documents import round_head
from tests.support.data.states import state_file
from tests.support.servers.data_coordinator import CLIENTS, PublishedRun
from tests.support.servers.data_http import http_server
from tests.support.servers.data_server import HOST, open_client, serving

RUN = "test-run"
BATCH = 3
WORK = (BatchId(0, 5),)
FLOOD = 1000


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.data_providers.tcp.coordinator_gate, "CATCH_UP_S", BOUND_S)


@pytest.fixture
def run() -> PublishedRun:
    return PublishedRun(state_file(config__data_indices_per_batch=BATCH))


@asynccontextmanager
async def serving_run(run: PublishedRun, folder: Path) -> AsyncIterator[DataServerAddress]:
    """A data server that follows the run over HTTP."""
    source = LocalDataProvider.open(write_dataset(folder), SPEC)
    async with http_server(run) as url, httpx.AsyncClient(base_url=url) as http, asyncio.TaskGroup() as group:
        gate = CoordinatorGate(CoordinatorClient(http, RUN))
        following = group.create_task(gate.follow())
        async with serving(source, gate) as (_, address):
            yield DataServerAddress(HOST, address.port, RUN)
        following.cancel()


def bad_tickets() -> dict[str, str]:
    ours = SessionTokens(SigningKey(bytes(range(32))), RUN)
    late_s = time.time() - SESSION_LIFETIME_S - 2 * CLOCK_LEEWAY_S
    of_another_run = SessionTokens(SigningKey(bytes(range(32))), "other")
    return {
        "forged": SessionTokens(SigningKey(bytes(32)), RUN).data_ticket(CLIENTS[0], time.time()),
        "expired": ours.data_ticket(CLIENTS[0], late_s),
        "foreign": of_another_run.data_ticket(CLIENTS[0], time.time()),
    }


@pytest.mark.parametrize("name", bad_tickets())
async def test_forged_expired_and_foreign_tickets_open_nothing(name: str, run: PublishedRun, tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND_S), serving_run(run, tmp_path) as address:
        with pytest.raises(Rejected, match="the ticket is"):
            await open_client(address, bad_tickets()[name])
        good = await open_client(address, run.tokens.data_ticket(CLIENTS[0], time.time()))
        await good.aclose()


async def test_client_gets_its_own_data_and_not_anothers(
    run: PublishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.publish(1, WORK)
    parts = assign_data_for_state(run.roster, WorkList((), WORK), round_head(1).assignment_seed)
    own, anothers = (parts[client_id][0].to_data_ids(BATCH) for client_id in CLIENTS[:2])
    async with asyncio.timeout(BOUND_S), serving_run(run, tmp_path) as address:
        access = DataServerAccess(lambda: run.tokens.data_ticket(CLIENTS[0], time.time()), lambda: 2)
        client = await TcpDataProvider.open(address, access)
        assert (await client.get_samples(own)).sample_count == own.count
        monkeypatch.setattr(epochal.data_providers.tcp.coordinator_gate, "CATCH_UP_S", 0.05)
        with pytest.raises(Rejected, match="not assigned to client"):
            await client.get_samples(anothers)
        assert (await client.get_samples(own)).sample_count == own.count
        await client.aclose()


@pytest.mark.nightly
async def test_thousand_connections_that_never_authenticate_keep_nobody_out(tmp_path: Path) -> None:
    allow_connections()
    if open_files_limit() < 4 * FLOOD:
        pytest.skip(f"a process may open {open_files_limit()} files here")
    source = LocalDataProvider.open(write_dataset(tmp_path), SPEC)
    async with asyncio.timeout(BOUND_S), serving(source) as (server, address), contextlib.AsyncExitStack() as held:
        for _ in range(FLOOD):
            _, writer = await asyncio.open_connection(HOST, address.port)
            held.callback(writer.close)
        client = await open_client(address)
        assert (await client.get_samples(DataIds(0, 9))).sample_count == 10
        assert FLOOD // 2 < server.connections.count(Peer.STRANGER) <= DEFAULT_LIMITS.connections.strangers
        await client.aclose()
