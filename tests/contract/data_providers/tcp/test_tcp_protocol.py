"""The TCP data protocol against peers that break it."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import epochal.data_providers.tcp.client_connection
from epochal.data_providers.protocol import Rejected, SourceUnavailable
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.tcp.client_connection import DataServerAddress
from epochal.data_providers.tcp.data_client import ANSWER_TIMEOUT_S, TcpDataProvider
from epochal.data_providers.tcp.frames import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    DataFailure,
    FrameKind,
    Hello,
    frame_header,
    get_frame,
    json_frame,
    parse_header,
)
from epochal.data_providers.tcp.payloads import welcome_of
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.state.intervals import DataIds
from epochal.state.messages.requests import MAX_MESSAGE_CHARS
from tests.support.bounds import BOUND_S
from tests.support.data.data_files import SPEC, write_dataset
from tests.support.servers.data_server import HOST, open_client, serving


@pytest.fixture
def source(tmp_path: Path) -> LocalDataProvider:
    return LocalDataProvider.open(write_dataset(tmp_path), SPEC)


async def test_tcp_silent_listener_is_given_up_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.data_providers.tcp.client_connection, "CONNECT_TIMEOUT_S", 0.05)
    async with listening(b"") as address:
        with pytest.raises(SourceUnavailable, match="no answer in time"):
            await open_client(address)


async def exchange(address: DataServerAddress, *sent: bytes) -> bytes:
    """All that the server says to these bytes until it closes."""
    reader, writer = await asyncio.open_connection(HOST, address.port)
    try:
        for data in sent:
            writer.write(data)
        async with asyncio.timeout(BOUND_S):
            return await reader.read()
    finally:
        writer.close()


DOUBLED = b'{"run_id":"another","run_id":"a-run","ticket":"good"}'
HELLO = json_frame(FrameKind.HELLO, 0, Hello("a-run", "good"))

NONSENSE = {
    "another protocol": [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    "another version": [b"EP\x01" + HELLO[3:]],
    "unknown kind": [frame_header(FrameKind.HELLO, 0, 0)[:3] + b"\xff" + bytes(8)],
    "huge hello": [frame_header(FrameKind.HELLO, 0, 2**31)],
    "get before hello": [get_frame(1, DataIds(0, 0))],
    "hello of nonsense": [frame_header(FrameKind.HELLO, 0, 4) + b"\xff{}x"],
    "hello with a doubled key": [frame_header(FrameKind.HELLO, 0, len(DOUBLED)) + DOUBLED],
    "hello twice": [HELLO, HELLO],
    "short get": [HELLO, frame_header(FrameKind.GET, 1, 3) + b"abc"],
    "get with request 0": [HELLO, get_frame(0, DataIds(0, 0))],
    "hello with a request": [json_frame(FrameKind.HELLO, 5, Hello("a-run", "good"))],
    "get backwards": [HELLO, frame_header(FrameKind.GET, 1, 24) + struct.pack("<QQQ", 0, 9, 8)],
    "get of 2**64": [HELLO, frame_header(FrameKind.GET, 1, 24) + struct.pack("<QQQ", 0, 0, 2**64 - 1)],
}


@pytest.mark.parametrize("sent", NONSENSE.values(), ids=NONSENSE)
async def test_tcp_nonsense_is_answered_with_an_error_and_ends_the_connection(
    sent: list[bytes], source: LocalDataProvider
) -> None:
    async with serving(source) as (_, address):
        answer = await exchange(address, *sent)
        assert b'"kind":"rejected"' in answer
        client = await open_client(address)
        assert (await client.get_samples(DataIds(0, 0))).sample_count == 1
        await client.aclose()


async def test_tcp_request_for_more_than_a_frame_keeps_the_connection(source: LocalDataProvider) -> None:
    async with serving(source) as (_, address):
        reader, writer = await asyncio.open_connection(HOST, address.port)
        writer.write(HELLO + get_frame(8, DataIds(0, 2**40)) + get_frame(9, DataIds(0, 0)))
        kinds = []
        for _ in range(3):
            header = parse_header(await reader.readexactly(HEADER_BYTES))
            await reader.readexactly(header.length)
            kinds.append((header.kind, header.request))
        assert kinds == [(FrameKind.WELCOME, 0), (FrameKind.ERROR, 8), (FrameKind.SAMPLES, 9)]
        writer.close()


async def test_tcp_client_that_says_nothing_is_turned_away(source: LocalDataProvider) -> None:
    async with serving(source, limits=ServerLimits(handshake_timeout_s=0.02)) as (_, address):
        assert await exchange(address, HELLO[:5]) == b""


@asynccontextmanager
async def listening(*answers: bytes) -> AsyncIterator[DataServerAddress]:
    """A server that answers each thing it hears with the next of these bytes."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for answer in answers:
                await reader.read(2**16)
                writer.write(answer)
            await reader.read()
        writer.close()
        done.set()

    server = await asyncio.start_server(serve, HOST, 0)
    try:
        yield DataServerAddress(HOST, server.sockets[0].getsockname()[1], "a-run")
        await done.wait()
    finally:
        server.close()


WELCOME = json_frame(FrameKind.WELCOME, 0, welcome_of(SPEC, "0" * 64, 10))

BROKEN_ANSWERS = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "too many samples": frame_header(FrameKind.SAMPLES, 1, 64) + bytes(64),
    "too few samples": frame_header(FrameKind.SAMPLES, 1, 30) + bytes(30),
    "no samples": frame_header(FrameKind.SAMPLES, 1, 0),
    "above the bound": frame_header(FrameKind.SAMPLES, 1, MAX_PAYLOAD_BYTES[FrameKind.SAMPLES] + 1),
    "samples nobody asked for": frame_header(FrameKind.SAMPLES, 77, 32) + bytes(32),
    "an error of nothing": frame_header(FrameKind.ERROR, 77, 34) + b'{"kind":"corrupt","reason":"late"}',
    "an empty error": frame_header(FrameKind.ERROR, 1, 0),
    "a second welcome": WELCOME,
    "a request": get_frame(1, DataIds(0, 0)),
    "an error of nonsense": frame_header(FrameKind.ERROR, 1, 2) + b"{}",
    "a welcome with a request": b"EP\x03\x02" + bytes([1, 0, 0, 0]) + WELCOME[8:],
    "samples with request 0": frame_header(FrameKind.SAMPLES, 0, 32) + bytes(32),
    "an unknown error": frame_header(FrameKind.ERROR, 1, 26) + b'{"kind":"odd","reason":""}',
}


@pytest.mark.parametrize("answer", BROKEN_ANSWERS.values(), ids=BROKEN_ANSWERS)
async def test_tcp_server_that_breaks_the_protocol_is_unavailable(answer: bytes) -> None:
    async with listening(WELCOME, answer) as address, asyncio.timeout(ANSWER_TIMEOUT_S / 2):
        client = await open_client(address)
        with pytest.raises(SourceUnavailable, match=r"breaks the protocol|closed the connection"):
            await client.get_samples(DataIds(0, 0))
        await client.aclose()


LONG = json_frame(FrameKind.ERROR, 1, DataFailure("corrupt", "x" * (MAX_MESSAGE_CHARS + 1)))
CONTROLLING = "red \x1b[31m\nline two \u202e\u2028 \x00é"
SHOWN = r"red \x1b[31m\nline two \u202e\u2028 \x00é"


async def ask_once(address: DataServerAddress) -> None:
    """Connect, and ask for one sample."""
    client = await open_client(address)
    try:
        await client.get_samples(DataIds(0, 0))
    finally:
        await client.aclose()


async def test_tcp_server_whose_reason_is_too_long_breaks_the_protocol() -> None:
    async with listening(WELCOME, LONG) as address:
        with pytest.raises(SourceUnavailable, match=f"^{address} breaks the protocol: .*{MAX_MESSAGE_CHARS}"):
            await ask_once(address)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([json_frame(FrameKind.ERROR, 0, DataFailure("rejected", CONTROLLING))], f"says: {SHOWN}"),
        ([WELCOME, json_frame(FrameKind.ERROR, 1, DataFailure("rejected", CONTROLLING))], f"says: {SHOWN}"),
        ([WELCOME, json_frame(FrameKind.ERROR, 0, DataFailure("rejected", CONTROLLING))], f"says: {SHOWN}"),
    ],
    ids=["instead of a welcome", "of a request", "of the connection"],
)
async def test_tcp_reason_names_its_server_and_controls_no_terminal(answers: list[bytes], expected: str) -> None:
    async with listening(*answers) as address:
        with pytest.raises((Rejected, SourceUnavailable)) as raised:
            await ask_once(address)
        assert raised.value.message == f"{address} {expected}"


async def test_tcp_servers_that_all_refuse_are_named_each_with_its_reason() -> None:
    refusals = [json_frame(FrameKind.ERROR, 0, DataFailure("rejected", reason)) for reason in ("no room", "not yet")]
    async with listening(refusals[0]) as first, listening(refusals[1]) as second:
        with pytest.raises(Rejected) as raised:
            await TcpDataProvider.open([first, second], lambda: "good", spread=0.0)
    for named in (f"{first} says: no room", f"{second} says: not yet"):
        assert named in raised.value.message
