"""Strangers that hold connections to the data server open, and clients that shake hands meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from data_providers.dummy import DummyDataProvider
from data_providers.tcp.client import DataServerAddress, TcpDataProvider
from data_providers.tcp.frames import FrameKind, frame_header
from data_providers.tcp.limits import ServerLimits
from data_providers.tcp.server import ConnectionShed, DataServer, DataServerEvent
from state.intervals import DataIds
from tests.support.data_files import SPEC
from tests.support.data_server import HOST, open_client, serving

HALF_HELLO = frame_header(FrameKind.HELLO, 0, 100)[:5]
LIMITS = ServerLimits(
    max_connections=64, max_strangers=100, max_strangers_per_address=80, displaced_after_s=0.3, shutdown_timeout_s=0.2
)
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
    async with asyncio.timeout(60), besieged(LIMITS) as (server, address, events):
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
    async with asyncio.timeout(20), serving(DummyDataProvider(SPEC), limits=limits) as (server, address):
        server.watch(events.append)
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(HALF_HELLO)
        assert await reader.read() == b""
        writer.close()
        assert events == [ConnectionShed("silent")]
        assert len(server.connections) == 0
