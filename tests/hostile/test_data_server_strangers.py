"""Strangers that hold connections to the data server open, and clients that shake hands meanwhile."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from epochal.data_providers.protocol import Rejected
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.tcp.client_connection import DataServerAddress
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.data_providers.tcp.frames import FrameKind, frame_header
from epochal.data_providers.tcp.server import ConnectionShed, DataServer, DataServerEvent
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.state.intervals import DataIds
from epochal.state.wire import ClientId
from tests.support.bounds import BOUND_S
from tests.support.data.data_files import SPEC
from tests.support.servers.data_server import HOST, open_client, serving

HALF_HELLO = frame_header(FrameKind.HELLO, 0, 100)[:5]
LIMITS = ServerLimits(
    max_connections=64, max_strangers=100, max_strangers_per_address=80, displaced_after_s=0.3, shutdown_timeout_s=0.2
)
FEW_PLACES = ServerLimits(max_connections=16, shutdown_timeout_s=0.2)
STRANGERS = 150
HONEST = 12


async def hold_one(address: DataServerAddress) -> None:
    """Hold a connection with half a greeting until it is closed, again and again."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, address.port)
            try:
                writer.write(HALF_HELLO)
                await reader.read()
            finally:
                writer.close()


@contextlib.asynccontextmanager
async def besieged(limits: ServerLimits) -> AsyncIterator[tuple[DataServer, DataServerAddress, list[DataServerEvent]]]:
    """A data server on which strangers hold as many connections as they can, and open new ones for those they lose."""
    events: list[DataServerEvent] = []
    async with serving(DummyDataProvider(SPEC), limits=limits) as (server, address), asyncio.TaskGroup() as tasks:
        server.watch(events.append)
        holding = [tasks.create_task(hold_one(address)) for _ in range(STRANGERS)]
        try:
            yield server, address, events
        finally:
            for task in holding:
                task.cancel()


async def until_full(server: DataServer, count: int) -> None:
    while server.connections.stranger_count < count:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)


async def test_no_honest_handshake_is_lost_to_strangers_of_its_own_address() -> None:
    async with asyncio.timeout(BOUND_S), besieged(LIMITS) as (server, address, events):
        await until_full(server, LIMITS.max_strangers_per_address)
        clients: list[TcpDataProvider] = []
        for _ in range(HONEST):
            client = await open_client(address)
            assert (await client.get_samples(DataIds(0, 3))).sample_count == 4
            clients.append(client)
        assert server.connections.client_count == HONEST
        assert server.connections.stranger_count <= LIMITS.max_strangers_per_address
        assert ConnectionShed("displaced") in events
        for client in clients:
            assert (await client.get_samples(DataIds(5, 5))).sample_count == 1, "an admitted client keeps its place"
            await client.aclose()


async def test_strangers_that_say_nothing_are_closed_in_time_and_counted() -> None:
    limits = ServerLimits(handshake_timeout_s=0.05, shutdown_timeout_s=0.2)
    events: list[DataServerEvent] = []
    async with asyncio.timeout(BOUND_S), serving(DummyDataProvider(SPEC), limits=limits) as (server, address):
        server.watch(events.append)
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(HALF_HELLO)
        assert await reader.read() == b""
        writer.close()
        assert events == [ConnectionShed("silent")]
        assert len(server.connections) == 0


class RoundsGate:
    """Admits everyone as the client that the ticket names; "honest" ones are in a round, others wait for theirs."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        if ticket == "bad":
            raise Rejected("the ticket is not valid")
        return ClientId(ticket)

    async def allow(self, client_id: ClientId, data_ids: DataIds, version: int) -> None:
        if not self.is_in_rounds(client_id):
            await asyncio.Event().wait()

    def is_in_rounds(self, client_id: ClientId) -> bool:
        return client_id.startswith("honest")


@pytest.mark.parametrize("do_ask", [False, True])
async def test_fresh_keys_lock_no_client_of_a_round_out(do_ask: bool) -> None:
    places = FEW_PLACES.max_connections
    async with (
        asyncio.timeout(BOUND_S),
        serving(DummyDataProvider(SPEC), RoundsGate(), FEW_PLACES) as (server, address),
        contextlib.AsyncExitStack() as stack,
        asyncio.TaskGroup() as tasks,
    ):
        asking: list[asyncio.Task[object]] = []
        for number in range(places):
            fresh = await open_client(address, f"fresh-{number}")
            stack.push_async_callback(fresh.aclose)
            if do_ask:
                asking.append(tasks.create_task(_ask(fresh)))
        while sum(one.busy for one in server.connections) != (places if do_ask else 0):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        honest = [await open_client(address, f"honest-{number}") for number in range(HONEST)]
        for client in honest:
            stack.push_async_callback(client.aclose)
            assert (await client.get_samples(DataIds(0, 3))).sample_count == 4
        assert server.connections.client_count == places
        for task in asking:
            task.cancel()


async def test_fresh_keys_displace_each_other_and_no_client_of_a_round() -> None:
    async with (
        asyncio.timeout(BOUND_S),
        serving(DummyDataProvider(SPEC), RoundsGate(), FEW_PLACES) as (server, address),
        contextlib.AsyncExitStack() as stack,
    ):
        honest = await open_client(address, "honest")
        stack.push_async_callback(honest.aclose)
        kept = next(iter(server.connections))
        for number in range(3 * FEW_PLACES.max_connections):
            fresh = await open_client(address, f"fresh-{number}")
            stack.push_async_callback(fresh.aclose)
        assert kept in set(server.connections)
        assert (await honest.get_samples(DataIds(0, 3))).sample_count == 4


async def test_refused_handshakes_write_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with asyncio.timeout(BOUND_S), serving(DummyDataProvider(SPEC), RoundsGate()) as (_, address):
        for _ in range(20):
            with pytest.raises(Rejected):
                await open_client(address, "bad")
    assert [record.message for record in caplog.records].count("client turned away") == 1


async def _ask(client: TcpDataProvider) -> None:
    """Ask for samples that no round assigns to the client."""
    with contextlib.suppress(Exception):
        await client.get_samples(DataIds(0, 3))
