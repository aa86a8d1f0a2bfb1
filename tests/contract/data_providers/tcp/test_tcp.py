"""The TCP data server and its client over real sockets: gates, bounds, breaks and restarts."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

import epochal.data_providers.tcp.data_client
from epochal.data_providers.protocol import (
    CorruptData,
    DatasetSpec,
    OutOfRange,
    Rejected,
    SourceUnavailable,
    TokenBatch,
)
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.tcp.client_connection import DataServerAddress
from epochal.data_providers.tcp.data_client import PIECE_BYTES, TcpDataProvider
from epochal.data_providers.tcp.frames import HEADER_BYTES, FrameKind, Hello, frame_header, json_frame, parse_header
from epochal.data_providers.tcp.payloads import welcome_of
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.runtime.connections.shedding import ConnectionLimits, Shed
from epochal.state.errors import DataError
from epochal.state.intervals import DataIds
from epochal.state.wire import ClientId
from epochal.trainers.mesh.mesh_options import MAX_PROCESSES
from tests.support.bounds import BOUND_S
from tests.support.data.data_files import SPEC, write_dataset
from tests.support.data.open_gate import OpenGate
from tests.support.servers.data_server import HOST, HalfGate, NamingGate, open_client, serving


class Scripted:
    """A provider whose every answer waits for `go`, and may be an error."""

    sequence_count = None
    fingerprint = "0" * 64

    def __init__(self, error: Exception | None = None) -> None:
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.error = error

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        self.asked.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return await DummyDataProvider(SPEC).get_samples(data_ids)

    async def aclose(self) -> None:
        self.go.set()


@pytest.fixture
def source(tmp_path: Path) -> LocalDataProvider:
    return LocalDataProvider.open(write_dataset(tmp_path), SPEC)


async def test_tcp_client_with_a_bad_ticket_is_rejected_with_the_reason(source: LocalDataProvider) -> None:
    async with serving(source, HalfGate()) as (_, address):
        with pytest.raises(Rejected, match="ticket worse is bad"):
            await open_client(address, "worse")


async def test_tcp_client_gets_what_is_allowed_and_the_reason_for_the_rest(source: LocalDataProvider) -> None:
    async with serving(source, HalfGate()) as (_, address):
        client = await open_client(address)
        with pytest.raises(Rejected, match="not yours"):
            await client.get_samples(DataIds(49, 50))
        assert (await client.get_samples(DataIds(48, 49))).sample_count == 2
        await client.aclose()


@pytest.mark.parametrize("kind", [SourceUnavailable, CorruptData, OutOfRange, Rejected])
async def test_tcp_error_of_the_servers_source_arrives_as_it_was(kind: type[DataError]) -> None:
    source = Scripted(kind("the very reason"))
    source.go.set()
    async with serving(source) as (_, address):
        client = await open_client(address)
        with pytest.raises(kind, match="the very reason"):
            await client.get_samples(DataIds(0, 0))
        await client.aclose()


async def test_tcp_bug_in_the_source_breaks_only_its_connection(source: LocalDataProvider) -> None:
    broken = Scripted(ZeroDivisionError())
    broken.go.set()
    async with serving(broken) as (_, address):
        client = await open_client(address)
        with pytest.raises(SourceUnavailable, match="closed the connection"):
            await client.get_samples(DataIds(0, 0))
        broken.error = None
        assert (await client.get_samples(DataIds(0, 0))).sample_count == 1
        await client.aclose()


async def test_tcp_server_restarted_serves_the_same_client(source: LocalDataProvider) -> None:
    async with serving(source) as (_, address):
        client = await open_client(address)
        before = await client.get_samples(DataIds(0, 30))
    with pytest.raises(SourceUnavailable):
        await client.get_samples(DataIds(0, 30))
    async with serving(source, port=address.port):
        assert np.array_equal((await client.get_samples(DataIds(0, 30))).input_ids, before.input_ids)
        await client.aclose()


async def test_tcp_server_restarted_with_another_dataset_is_corrupt(source: LocalDataProvider) -> None:
    async with serving(source) as (_, address):
        client = await open_client(address)
    async with serving(DummyDataProvider(SPEC), port=address.port):
        with pytest.raises(CorruptData, match="and now"):
            await client.get_samples(DataIds(0, 0))
        await client.aclose()


async def test_tcp_server_that_is_away_is_unavailable() -> None:
    async with serving(DummyDataProvider(SPEC)) as (_, address):
        pass
    with pytest.raises(SourceUnavailable, match="cannot be reached"):
        await open_client(address)


async def test_tcp_silent_server_is_given_up_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Scripted()
    async with serving(source) as (_, address):
        client = await open_client(address)
        monkeypatch.setattr(epochal.data_providers.tcp.data_client, "ANSWER_TIMEOUT_S", 0.05)
        with pytest.raises(SourceUnavailable, match="does not answer"):
            await client.get_samples(DataIds(0, 0))
        source.go.set()
        monkeypatch.setattr(epochal.data_providers.tcp.data_client, "ANSWER_TIMEOUT_S", BOUND_S)
        assert (await client.get_samples(DataIds(0, 0))).sample_count == 1
        await client.aclose()


class Counting(OpenGate):
    """An open gate that counts who comes."""

    admitted = 0

    async def admit(self, run_id: str, ticket: str) -> ClientId:
        self.admitted += 1
        return await super().admit(run_id, ticket)


async def test_tcp_call_cancelled_before_a_byte_came_drops_the_connection() -> None:
    source, gate = Scripted(), Counting()
    async with serving(source, gate) as (_, address):
        client = await open_client(address)
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(client.get_samples(DataIds(0, 3)))
            await source.asked.wait()
            asking.cancel()
        source.go.set()
        assert (await client.get_samples(DataIds(7, 8))).sample_count == 2
        assert gate.admitted == 2
        await client.aclose()


async def test_tcp_call_cancelled_in_the_middle_keeps_the_connection() -> None:
    spec, halfway, closing = DatasetSpec(2, PIECE_BYTES), asyncio.Event(), asyncio.Event()
    welcome = json_frame(FrameKind.WELCOME, 0, welcome_of(spec, "0" * 64, 10))
    payload = np.arange(PIECE_BYTES, dtype="<u2").tobytes()
    admitted = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal admitted
        admitted += 1
        await reader.readexactly(parse_header(await reader.readexactly(HEADER_BYTES)).length)
        writer.write(welcome)
        for request in (1, 2):
            await reader.readexactly(parse_header(await reader.readexactly(HEADER_BYTES)).length)
            writer.write(frame_header(FrameKind.SAMPLES, request, len(payload)) + payload[: len(payload) // 4])
            await writer.drain()
            if request == 1:
                await halfway.wait()
            writer.write(payload[len(payload) // 4 :])
        await closing.wait()
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    client = await open_client(DataServerAddress(HOST, server.sockets[0].getsockname()[1], "a-run"))
    async with asyncio.TaskGroup() as group, asyncio.timeout(BOUND_S):
        asking = group.create_task(client.get_samples(DataIds(0, 0)))
        arrived = client._connection.received_bytes + len(payload) // 4
        while client._connection.received_bytes < arrived:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        asking.cancel()
    halfway.set()
    assert (await client.get_samples(DataIds(1, 1))).input_ids.tobytes() == payload
    assert admitted == 1
    closing.set()
    await client.aclose()
    server.close()


async def test_tcp_server_closing_finishes_the_answer_under_way() -> None:
    source = Scripted()
    async with serving(source, limits=ServerLimits(shutdown_timeout_s=2 * BOUND_S)) as (server, address):
        busy, idle = await open_client(address), await open_client(address)
        async with asyncio.TaskGroup() as group, asyncio.timeout(BOUND_S):
            asking = group.create_task(busy.get_samples(DataIds(0, 0)))
            await source.asked.wait()
            closing = group.create_task(server.aclose())
            await asyncio.sleep(0)
            source.go.set()
            assert (await asking).sample_count == 1
            await closing
        with pytest.raises(SourceUnavailable):
            await idle.get_samples(DataIds(0, 0))


async def test_tcp_server_closing_gives_up_an_answer_that_does_not_end() -> None:
    source = Scripted()
    async with serving(source, limits=ServerLimits(shutdown_timeout_s=0.05)) as (server, address):
        client = await open_client(address)
        async with asyncio.TaskGroup() as group, asyncio.timeout(BOUND_S):
            asking = group.create_task(expect_unavailable(client))
            await source.asked.wait()
            await server.aclose()
            await asking


async def expect_unavailable(client: TcpDataProvider) -> None:
    with pytest.raises(SourceUnavailable):
        await client.get_samples(DataIds(0, 0))


async def test_tcp_connection_above_the_limit_is_told_to_come_again(source: LocalDataProvider) -> None:
    async with serving(source, limits=ServerLimits(ConnectionLimits(total=1))) as (_, address):
        first = await open_client(address)
        with pytest.raises(SourceUnavailable, match="closed the connection"):
            await open_client(address)
        assert (await first.get_samples(DataIds(0, 0))).sample_count == 1
        await first.aclose()


async def test_tcp_connections_above_a_clients_share_take_its_own_places(source: LocalDataProvider) -> None:
    limits = ServerLimits(ConnectionLimits(total=20, per_member=2), shutdown_timeout_s=0.2)
    async with serving(source, NamingGate(), limits) as (server, address), asyncio.timeout(BOUND_S):
        other = await open_client(address, "other")
        greedy = [await open_client(address, "greedy") for _ in range(5)]
        assert server.connections.shed_counts == {Shed.MEMBER: 3}
        for client in (other, greedy[-1]):
            assert (await client.get_samples(DataIds(0, 0))).sample_count == 1
        for client in (other, *greedy):
            await client.aclose()


def test_tcp_bound_on_a_clients_connections_has_room_for_its_mesh_twice() -> None:
    limits = ServerLimits().connections
    assert 2 * (MAX_PROCESSES + 1) <= limits.per_member <= limits.total // 4


async def test_tcp_idle_connection_is_closed(source: LocalDataProvider) -> None:
    async with serving(source, limits=ServerLimits(idle_timeout_s=0.02)) as (_, address):
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(json_frame(FrameKind.HELLO, 0, Hello("a-run", "good")))
        welcome = parse_header(await reader.readexactly(HEADER_BYTES))
        await reader.readexactly(welcome.length)
        assert await reader.read() == b""
        writer.close()
