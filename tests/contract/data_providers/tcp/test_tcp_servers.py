"""Several TCP data servers with the same data: what one cannot deliver, another does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

import epochal.data_providers.tcp.data_client
from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.tcp.client_connection import DataServerAddress
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.data_providers.tcp.frames import (
    HEADER_BYTES,
    DataFailure,
    FrameKind,
    frame_header,
    json_frame,
    parse_get,
    parse_header,
)
from epochal.data_providers.tcp.payloads import welcome_of
from epochal.data_providers.tcp.server import DataServer
from epochal.state.intervals import DataIds
from tests.support.bounds import BOUND_S
from tests.support.data.data_files import SPEC, write_dataset
from tests.support.servers.data_server import HOST, HalfGate, serving

WANTED = DataIds(3, 12)
FIRST = 0.0
"""The server that is named first is asked first."""


@pytest.fixture
def source(tmp_path: Path) -> LocalDataProvider:
    return LocalDataProvider.open(write_dataset(tmp_path), SPEC)


@pytest.fixture(autouse=True)
def one_sample_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.data_providers.tcp.data_client, "PIECE_BYTES", 1)


async def open_both(*addresses: DataServerAddress) -> TcpDataProvider:
    return await TcpDataProvider.open(addresses, lambda: "good", spread=FIRST)


class BadServer:
    """A server of the right dataset that answers `answered` requests, writes `then`, and falls silent or ends."""

    def __init__(self, source: LocalDataProvider, answered: int, then: bytes, *, ends: bool = True) -> None:
        self._source = source
        self._answered = answered
        self._then = then
        self._ends = ends
        self.closing = asyncio.Event()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._frame(reader)
            welcome = welcome_of(SPEC, self._source.fingerprint, self._source.sequence_count)
            writer.write(json_frame(FrameKind.WELCOME, 0, welcome))
            for _ in range(self._answered):
                number, payload = await self._frame(reader)
                tokens = (await self._source.get_samples(parse_get(payload).data_ids)).input_ids.tobytes()
                writer.write(frame_header(FrameKind.SAMPLES, number, len(tokens)) + tokens)
            await self._frame(reader)
            for byte in self._then:
                writer.write(bytes([byte]))
                await writer.drain()
            if not self._ends:
                await self.closing.wait()
        writer.close()

    async def _frame(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        header = parse_header(await reader.readexactly(HEADER_BYTES))
        return header.request, await reader.readexactly(header.length)


@contextlib.asynccontextmanager
async def served_badly(bad: BadServer) -> AsyncIterator[DataServerAddress]:
    server = await asyncio.start_server(bad.converse, HOST, 0)
    try:
        yield DataServerAddress(HOST, server.sockets[0].getsockname()[1], "a-run")
    finally:
        bad.closing.set()
        server.close()


def counted(server: DataServer) -> list[int]:
    """Return a list that gets the number of samples of each answer of the server."""
    answers: list[int] = []
    server.watch(lambda ended: answers.append(ended.sample_count))
    return answers


HALF_A_SAMPLE = frame_header(FrameKind.SAMPLES, 4, SPEC.sequence_bytes) + bytes(SPEC.sequence_bytes // 2)
BAD_ENDS = {
    "dies mid-frame": HALF_A_SAMPLE,
    "dies mid-header": HALF_A_SAMPLE[:5],
    "dies between frames": b"",
    "sends garbage": b"\x99" * HEADER_BYTES,
    "promises too much": frame_header(FrameKind.SAMPLES, 4, 2**32 - 1),
    "says goodbye": json_frame(FrameKind.ERROR, 0, DataFailure("unavailable", "the machine is sold")),
}


@pytest.mark.parametrize("end", BAD_ENDS.values(), ids=BAD_ENDS)
async def test_pieces_that_a_broken_server_owes_are_asked_of_another(end: bytes, source: LocalDataProvider) -> None:
    expected = (await source.get_samples(WANTED)).input_ids
    async with served_badly(BadServer(source, 3, end)) as bad, serving(source) as (server, good):
        answers = counted(server)
        client = await open_both(bad, good)
        got = await client.get_samples(WANTED)
        assert np.array_equal(got.input_ids, expected)
        assert answers == [1] * (WANTED.count - 3), "only what was missing"
        await client.aclose()


@pytest.mark.parametrize("then", [b"", HALF_A_SAMPLE], ids=["silent", "dripping"])
async def test_silent_server_is_left_for_another(
    then: bytes, source: LocalDataProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.data_providers.tcp.data_client, "SILENCE_TIMEOUT_S", 0.05)
    expected = (await source.get_samples(WANTED)).input_ids
    async with served_badly(BadServer(source, 2, then, ends=False)) as bad, serving(source) as (_, good):
        client = await open_both(bad, good)
        async with asyncio.timeout(BOUND_S):
            assert np.array_equal((await client.get_samples(WANTED)).input_ids, expected)
        await client.aclose()


async def test_server_that_closes_hands_its_clients_to_another(source: LocalDataProvider) -> None:
    async with serving(source) as (leaving, first), serving(source) as (staying, second):
        client = await open_both(first, second)
        await client.get_samples(WANTED)
        answers = counted(staying)
        await leaving.aclose()
        assert (await client.get_samples(WANTED)).sample_count == WANTED.count
        assert sum(answers) == WANTED.count
        await client.aclose()


class Failing:
    """A provider whose disk fails."""

    def __init__(self, source: LocalDataProvider) -> None:
        self.sequence_count, self.fingerprint = source.sequence_count, source.fingerprint

    async def aclose(self) -> None:
        """Do nothing."""

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        raise CorruptData("a hole in the disk")


async def test_damaged_copy_of_one_server_is_read_from_another(source: LocalDataProvider) -> None:
    async with serving(Failing(source)) as (_, first), serving(source) as (_, second):
        client = await open_both(first, second)
        assert (await client.get_samples(WANTED)).sample_count == WANTED.count
        await client.aclose()


async def test_data_that_every_server_finds_damaged_are_corrupt(source: LocalDataProvider) -> None:
    async with serving(Failing(source)) as (_, first), serving(Failing(source)) as (_, second):
        client = await open_both(first, second)
        with pytest.raises(CorruptData, match="a hole in the disk"):
            await client.get_samples(WANTED)
        await client.aclose()


async def test_server_that_comes_back_with_other_data_is_not_used(source: LocalDataProvider) -> None:
    async with serving(source) as (_, first):
        async with serving(source) as (_, second):
            client = await open_both(first, second)
        async with serving(DummyDataProvider(SPEC), port=second.port):
            pass
        assert (await client.get_samples(WANTED)).sample_count == WANTED.count
    async with serving(DummyDataProvider(SPEC), port=second.port):
        with pytest.raises(SourceUnavailable, match="others"):
            await client.get_samples(WANTED)
    await client.aclose()


async def test_run_starts_while_one_of_its_servers_is_away(source: LocalDataProvider) -> None:
    async with serving(source) as (_, away):
        pass
    async with serving(source) as (_, there):
        client = await open_both(away, there)
        assert (await client.get_samples(WANTED)).sample_count == WANTED.count
        async with serving(source, port=away.port):
            pass
        await client.aclose()


async def test_dead_server_is_asked_again_when_no_other_is_left(source: LocalDataProvider) -> None:
    async with serving(source) as (_, first), serving(source) as (_, second):
        client = await open_both(first, second)
        await client.get_samples(WANTED)
    with pytest.raises(SourceUnavailable, match="no data server of 2 answers"):
        await client.get_samples(WANTED)
    for address in (first, second):
        async with serving(source, port=address.port):
            assert (await client.get_samples(WANTED)).sample_count == WANTED.count
    await client.aclose()


async def test_dead_server_is_avoided_while_another_answers(source: LocalDataProvider) -> None:
    async with serving(source) as (_, first):
        async with serving(source) as (_, second):
            client = await open_both(second, first)
            await client.get_samples(WANTED)
        await client.get_samples(WANTED)
        async with serving(source, port=second.port) as (restarted, _):
            answers = counted(restarted)
            await client.get_samples(WANTED)
            assert not answers, "the server that answers goes on being asked"
        await client.aclose()


async def test_refusal_of_data_is_not_asked_of_another_server(source: LocalDataProvider) -> None:
    async with serving(source, HalfGate()) as (_, first), serving(source) as (other, second):
        answers = counted(other)
        client = await open_both(first, second)
        with pytest.raises(Rejected, match="not yours"):
            await client.get_samples(DataIds(50, 50))
        assert not answers
        await client.aclose()
