"""Clients of the data server that ask for much and read slowly, or not at all."""

import asyncio
import contextlib
import socket

import pytest

from epochal.data_providers.protocol import DatasetSpec, SourceUnavailable
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.tcp.client_connection import DataServerAddress
from epochal.data_providers.tcp.frames import (
    HEADER_BYTES,
    MAX_SAMPLES_BYTES,
    FrameKind,
    Hello,
    get_frame,
    json_frame,
    parse_header,
)
from epochal.data_providers.tcp.sending import SEND_PIECE_BYTES
from epochal.data_providers.tcp.server import DataServer
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.runtime.connections.shedding import Shed
from epochal.state.intervals import DataIds
from tests.support.bounds import BOUND_S
from tests.support.servers.data_server import HOST, NamingGate, ask_without_reading, open_client, serving

SPEC = DatasetSpec(2, 2**20)
"""Samples of 2 MiB."""
ANSWER_BYTES = 8 * SPEC.sequence_bytes
PIECES = DataIds(0, 7)
"""An answer of 16 MiB, more than the system keeps for a connection."""
ROOM_FOR_TWO = 2 * (ANSWER_BYTES + SEND_PIECE_BYTES)
READERS = 8


async def asking(address: DataServerAddress, name: str) -> socket.socket:
    """Return a connection on which answers were asked for and of which nothing more will be read."""
    return await ask_without_reading(address, name, *[PIECES] * 4)


async def until_none(server: DataServer) -> None:
    while len(server.connections):  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)


@pytest.mark.nightly
async def test_answers_that_nobody_reads_hold_bounded_memory_and_end() -> None:
    limits = ServerLimits(
        max_answer_bytes=ROOM_FOR_TWO, slow_after_s=0.1, least_bytes_per_s=2**40, shutdown_timeout_s=0.2
    )
    async with (
        asyncio.timeout(BOUND_S),
        serving(DummyDataProvider(SPEC), NamingGate(), limits, SPEC) as (server, address),
    ):
        with contextlib.ExitStack() as open_sockets:
            for number in range(READERS):
                open_sockets.enter_context(await asking(address, f"{number:032x}"))
                assert server.memory.held_bytes <= ROOM_FOR_TWO
            await until_none(server)
        assert server.memory.held_bytes == 0
        assert server.connections.shed_counts[Shed.UNREAD], "closed although the peer neither reads nor closes"


async def test_answer_that_is_not_received_in_its_time_ends() -> None:
    limits = ServerLimits(send_timeout_s=0.3, slow_after_s=10 * BOUND_S, shutdown_timeout_s=0.2)
    async with (
        asyncio.timeout(BOUND_S),
        serving(DummyDataProvider(SPEC), NamingGate(), limits, SPEC) as (server, address),
    ):
        with await asking(address, "1" * 32):
            await until_none(server)
    assert server.connections.shed_counts[Shed.UNREAD]


async def test_request_that_does_not_arrive_whole_ends_the_connection() -> None:
    limits = ServerLimits(handshake_timeout_s=0.3, idle_timeout_s=10 * BOUND_S, shutdown_timeout_s=0.2)
    async with asyncio.timeout(BOUND_S), serving(DummyDataProvider(SPEC), NamingGate(), limits, SPEC) as (_, address):
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(json_frame(FrameKind.HELLO, 0, Hello("a-run", "1" * 32)) + get_frame(1, DataIds(0, 0))[:-1])
        await reader.read()
        writer.close()


async def test_request_for_more_than_an_answer_holds_is_refused() -> None:
    async with (
        asyncio.timeout(BOUND_S),
        serving(DummyDataProvider(SPEC), NamingGate(), ServerLimits(), SPEC) as (_, address),
    ):
        reader, writer = await asyncio.open_connection(HOST, address.port)
        over = DataIds(0, MAX_SAMPLES_BYTES // SPEC.sequence_bytes)
        writer.write(json_frame(FrameKind.HELLO, 0, Hello("a-run", "1" * 32)) + get_frame(1, over))
        kinds = []
        for _ in range(2):
            header = parse_header(await reader.readexactly(HEADER_BYTES))
            payload = await reader.readexactly(header.length)
            kinds.append(header.kind)
        writer.close()
    assert kinds == [FrameKind.WELCOME, FrameKind.ERROR]
    assert f"are {over.count * SPEC.sequence_bytes} bytes; at most {MAX_SAMPLES_BYTES} a request".encode() in payload


async def test_slow_readers_give_way_to_a_client_that_waits_for_memory() -> None:
    limits = ServerLimits(
        max_answer_bytes=ROOM_FOR_TWO,
        slow_after_s=60,
        slow_after_when_full_s=0.1,
        least_bytes_per_s=2**40,
        shutdown_timeout_s=0.2,
    )
    async with (
        asyncio.timeout(BOUND_S),
        serving(DummyDataProvider(SPEC), NamingGate(), limits, SPEC) as (server, address),
    ):
        with await asking(address, "1" * 32), await asking(address, "2" * 32):
            while server.memory.held_bytes < ROOM_FOR_TWO:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
            client = await open_client(address, "f" * 32)
            assert (await client.get_samples(PIECES)).sample_count == PIECES.count
            await client.aclose()


async def test_request_that_finds_no_memory_is_told_to_come_again() -> None:
    limits = ServerLimits(
        max_answer_bytes=ANSWER_BYTES, slow_after_when_full_s=60, answer_wait_s=0.05, shutdown_timeout_s=0.2
    )
    async with (
        asyncio.timeout(BOUND_S),
        serving(DummyDataProvider(SPEC), NamingGate(), limits, SPEC) as (server, address),
    ):
        with await asking(address, "a" * 32):
            while not server.memory.held_bytes:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
            client = await open_client(address, "f" * 32)
            with pytest.raises(SourceUnavailable, match="the data server is busy"):
                await client.get_samples(DataIds(0, 0))
            await client.aclose()
