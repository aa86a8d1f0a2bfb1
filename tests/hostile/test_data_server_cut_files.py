"""Answers that a data server sends from the system's memory: of files that are cut meanwhile, to clients that wait."""

import asyncio
import os
import socket
from pathlib import Path

import numpy as np
import pytest

import epochal.data_providers.providers.local
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.mapped_file import MAPS
from epochal.data_providers.tcp.frames import HEADER_BYTES, FrameKind, parse_header
from epochal.data_providers.tcp.sending import READ_BYTES, SEND_PIECE_BYTES
from epochal.data_providers.tcp.server import ConnectionShed, DataServer, DataServerEvent
from epochal.data_providers.tcp.server_limits import ServerLimits
from epochal.state.intervals import DataIds
from tests.support.bounds import BOUND_S
from tests.support.data.data_files import SEED
from tests.support.servers.data_server import ask_without_reading, open_client, serving

pytestmark = pytest.mark.skipif(not MAPS, reason="files are mapped on Linux alone")

SPEC = DatasetSpec(2, 2**19)
"""Samples of 1 MiB."""
COUNTS = {"a.bin": 8, "b.bin": 2}
A_BYTES = COUNTS["a.bin"] * SPEC.sequence_bytes
"""More than the system keeps for a connection."""
WHOLE = DataIds(0, sum(COUNTS.values()) - 1)
UNREAD_BYTES = 5 * SPEC.sequence_bytes
"""Bytes from here on are not sent before the client reads."""


@pytest.fixture
def tokens(tmp_path: Path) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """All tokens of the folder, none of them 0."""
    generator = np.random.default_rng(0)
    drawn = {
        name: generator.integers(1, 2**16, count * SPEC.sequence_length, np.uint16) for name, count in COUNTS.items()
    }
    for name, of_file in drawn.items():
        of_file.astype("<u2").tofile(tmp_path / name)
    return np.concatenate(list(drawn.values()))


async def received(connection: socket.socket) -> bytearray:
    """Return all that comes until the server closes the connection."""
    loop, found = asyncio.get_running_loop(), bytearray()
    try:
        while part := await loop.sock_recv(connection, 2**20):
            found += part
    except ConnectionResetError:
        pass
    return found


async def begun(connection: socket.socket) -> int:
    """Return the length of an answer once it has begun."""
    header = parse_header(await asyncio.get_running_loop().sock_recv(connection, HEADER_BYTES))
    assert header.kind is FrameKind.SAMPLES
    return header.length


@pytest.mark.parametrize(
    ("wanted", "left_bytes"),
    [
        (DataIds(0, 7), UNREAD_BYTES),
        (DataIds(0, 7), UNREAD_BYTES + 100),
        (DataIds(0, 7), A_BYTES - READ_BYTES - 100),
        (DataIds(0, 7), A_BYTES - 100),
        (WHOLE, A_BYTES - 100),
    ],
    ids=["at a page's end", "inside a page", "before the last bytes", "in the last bytes", "of the first of two files"],
)
async def test_file_cut_while_it_is_sent_gives_no_whole_answer(
    wanted: DataIds, left_bytes: int, tokens: np.ndarray, tmp_path: Path
) -> None:
    source = LocalDataProvider.open(tmp_path, SPEC)
    async with asyncio.timeout(BOUND_S), serving(source, spec=SPEC) as (_, address):
        client = await open_client(address)
        await client.get_samples(WHOLE)  # so that the files are open, and mapped
        with await ask_without_reading(address, "good", wanted) as connection:
            size_bytes = await begun(connection)
            os.truncate(tmp_path / "a.bin", left_bytes)
            answer = await received(connection)
        assert UNREAD_BYTES // 8 < len(answer) < size_bytes
        sound = (await client.get_samples(DataIds(0, 3))).input_ids
        assert np.array_equal(sound, tokens[: 4 * SPEC.sequence_length])
        await client.aclose()


async def test_file_written_while_it_is_sent_gives_no_mixed_answer(tokens: np.ndarray, tmp_path: Path) -> None:
    source = LocalDataProvider.open(tmp_path, SPEC)
    async with asyncio.timeout(BOUND_S), serving(source, spec=SPEC) as (_, address):
        client = await open_client(address)
        await client.get_samples(WHOLE)
        with await ask_without_reading(address, "good", WHOLE) as connection:
            size_bytes = await begun(connection)
            with (tmp_path / "a.bin").open("r+b") as file:
                file.seek(UNREAD_BYTES)
                file.write(bytes(8))
            assert len(await received(connection)) < size_bytes
        again = (await client.get_samples(WHOLE)).input_ids
        assert np.array_equal(again.nonzero()[0], np.delete(np.arange(len(tokens)), np.arange(4) + UNREAD_BYTES // 2))
        await client.aclose()


@pytest.mark.parametrize("seed", [None, SEED], ids=["in order", "shuffled"])
async def test_answers_from_memory_are_the_files_bytes(seed: bytes | None, tokens: np.ndarray, tmp_path: Path) -> None:
    spec = DatasetSpec(2, 2**13, seed)
    source = LocalDataProvider.open(tmp_path, spec)
    wanted = DataIds(3, source.sequence_count - 4)
    expected = (await source.get_samples(wanted)).input_ids
    assert seed or np.array_equal(expected, tokens[3 * 2**13 : -3 * 2**13])
    async with asyncio.timeout(BOUND_S), serving(source, spec=spec) as (_, address):
        client = await open_client(address)
        for _ in range(2):
            assert np.array_equal((await client.get_samples(wanted)).input_ids, expected)
        await client.aclose()
    for number in range(len(COUNTS)):
        assert source.mapped(number) is not None


@pytest.mark.usefixtures("tokens")
async def test_files_are_mapped_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.data_providers.providers.local, "MAX_MAPPED_BYTES", A_BYTES + 1)
    source = LocalDataProvider.open(tmp_path, SPEC)
    await source.get_samples(WHOLE)
    assert source.mapped(0) is not None
    assert source.mapped(1) is None
    assert [len(view) for view in source.sample_bytes(WHOLE).at_hand(A_BYTES - 5, 100)] == [5]


def waiting_bytes(server: DataServer) -> int:
    """Return how many bytes wait in the server for its only client."""
    (connection,) = server.connections
    assert connection.writer is not None
    return connection.writer._transport.get_write_buffer_size()


@pytest.mark.usefixtures("tokens")
async def test_client_that_reads_nothing_holds_little_and_is_closed(tmp_path: Path) -> None:
    limits = ServerLimits(slow_after_s=0.3, least_bytes_per_s=2**40, shutdown_timeout_s=0.2)
    events: list[DataServerEvent] = []
    source = LocalDataProvider.open(tmp_path, SPEC)
    await source.get_samples(WHOLE)
    async with asyncio.timeout(BOUND_S), serving(source, limits=limits, spec=SPEC) as (server, address):
        server.watch(events.append)
        with await ask_without_reading(address, "good", WHOLE) as connection:
            await begun(connection)
            while not waiting_bytes(server):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
            assert waiting_bytes(server) <= READ_BYTES
            assert server.memory.held_bytes <= 2 * SEND_PIECE_BYTES
            while len(server.connections):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
    assert events == [ConnectionShed("slow")]


async def test_server_that_closes_ends_an_answer_from_memory(tokens: np.ndarray, tmp_path: Path) -> None:
    source = LocalDataProvider.open(tmp_path, SPEC)
    await source.get_samples(WHOLE)
    limits = ServerLimits(shutdown_timeout_s=BOUND_S)
    async with asyncio.timeout(BOUND_S), serving(source, limits=limits, spec=SPEC) as (server, address):
        with await ask_without_reading(address, "good", WHOLE) as connection:
            size_bytes = await begun(connection)
            async with asyncio.TaskGroup() as group:
                group.create_task(server.aclose())
                answer = await received(connection)
    assert answer[:size_bytes] == tokens.astype("<u2").tobytes()
    assert parse_header(answer[size_bytes : size_bytes + HEADER_BYTES]).kind is FrameKind.GOODBYE
