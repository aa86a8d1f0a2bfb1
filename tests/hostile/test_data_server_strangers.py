"""Strangers that hold connections to the data server open, and clients that shake hands meanwhile."""

import asyncio
import contextlib
import logging

import pytest

from epochal.data_providers.protocol import Rejected
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.tcp.client_connection import DataServerAddress
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.data_providers.tcp.frames import FrameKind, frame_header
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.runtime.connections import shedding
from epochal.runtime.connections.shedding import MAX_PERCENT_OF_ADDRESS, ConnectionLimits, Peer, Shed
from epochal.state.intervals import DataIds
from epochal.state.wire import ClientId
from tests.support.bounds import BOUND_S
from tests.support.data.data_files import SPEC
from tests.support.data.open_gate import OpenGate
from tests.support.servers.data_server import HOST, open_client, serving

HALF_HELLO = frame_header(FrameKind.HELLO, 0, 100)[:5]
MAX_STRANGERS = 40
STRANGERS = 60
PLACES = 16
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


async def test_no_honest_handshake_is_lost_to_strangers_of_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shedding, "STRANGER_GRACE_S", 0.1)
    limits = ServerLimits(ConnectionLimits(total=100, strangers=MAX_STRANGERS), shutdown_timeout_s=0.2)
    most = MAX_STRANGERS * MAX_PERCENT_OF_ADDRESS // 100
    async with (
        asyncio.timeout(BOUND_S),
        serving(DummyDataProvider(SPEC), limits=limits) as (server, address),
        asyncio.TaskGroup() as tasks,
    ):
        holding = [tasks.create_task(hold_one(address)) for _ in range(STRANGERS)]
        while server.connections.count(Peer.STRANGER) < most:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        clients: list[TcpDataProvider] = []
        for _ in range(HONEST):
            client = await open_client(address)
            assert (await client.get_samples(DataIds(0, 3))).sample_count == 4
            clients.append(client)
        while not server.connections.shed_counts[Shed.STRANGERS]:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        assert server.connections.count(Peer.MEMBER) == HONEST
        for client in clients:
            assert (await client.get_samples(DataIds(5, 5))).sample_count == 1, "an admitted client keeps its place"
            await client.aclose()
        for task in holding:
            task.cancel()


async def test_strangers_that_say_nothing_are_closed_in_time() -> None:
    limits = ServerLimits(handshake_timeout_s=0.05, shutdown_timeout_s=0.2)
    async with asyncio.timeout(BOUND_S), serving(DummyDataProvider(SPEC), limits=limits) as (server, address):
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(HALF_HELLO)
        assert await reader.read() == b""
        writer.close()
        assert len(server.connections) == 0


class RoundsGate(OpenGate):
    """Admits everyone as the client that the ticket names; "honest" ones are in a round, others wait for theirs."""

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        if ticket == "bad":
            raise Rejected("the ticket is not valid")
        return ClientId(ticket)

    def is_in_rounds(self, client_id: ClientId) -> bool:
        return client_id.startswith("honest")


async def test_fresh_keys_take_no_place_of_clients_of_a_round() -> None:
    limits = ServerLimits(ConnectionLimits(total=PLACES), shutdown_timeout_s=0.2)
    async with (
        asyncio.timeout(BOUND_S),
        serving(DummyDataProvider(SPEC), RoundsGate(), limits) as (server, address),
        contextlib.AsyncExitStack() as stack,
    ):
        names = [
            *(f"fresh-{number}" for number in range(PLACES)),
            *(f"honest-{number}" for number in range(HONEST)),
            *(f"fresh-{number}" for number in range(PLACES, 3 * PLACES)),
        ]
        clients = {name: await open_client(address, name) for name in names}
        for client in clients.values():
            stack.push_async_callback(client.aclose)
        assert server.connections.shed_counts == {Shed.CONNECTIONS: len(names) - PLACES}
        for name, client in clients.items():
            assert client._connection.lost is None or name.startswith("fresh")


async def test_refused_handshakes_write_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with asyncio.timeout(BOUND_S), serving(DummyDataProvider(SPEC), RoundsGate()) as (_, address):
        for _ in range(20):
            with pytest.raises(Rejected):
                await open_client(address, "bad")
    assert [record.message for record in caplog.records].count("client turned away") == 1
