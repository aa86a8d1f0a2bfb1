"""Answers of a coordinator that are small on the wire and large in memory."""

import asyncio
import contextlib
import gzip
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.files.spool_part import ReceivedFile
from epochal.runtime.http import http_client
from epochal.runtime.http.http_client import open_client
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument
from epochal.state.wire import Sha256
from tests.support.bounds import BOUND_S
from tests.support.data.spooled import spooled
from tests.support.servers.plain_http import PLAIN
from tests.support.servers.ports import free_port

DIGEST = Sha256("ab" * 32)

LONGEST_BYTES = 1024 * 1024
"""The bound of answers in these tests."""
BOMB = gzip.compress(bytes(32 * LONGEST_BYTES))


@contextlib.asynccontextmanager
async def _answering(head: str, body: bytes) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(65536)
            fields = f"Content-Length: {len(body)}\r\nConnection: close"
            writer.write(f"HTTP/1.1 {head}\r\n{fields}\r\n\r\n".encode() + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("status", ["200 OK", "500 Error", "307 Redirect\r\nLocation: /v1/runs"])
async def test_compressed_answer_takes_no_more_than_its_bound(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_ANSWER_BYTES", LONGEST_BYTES)
    async with _answering(f"{status}\r\nContent-Type: application/json\r\nContent-Encoding: gzip", BOMB) as url:
        tracemalloc.start()
        try:
            with pytest.raises(CoordinatorUnreachable):
                await CoordinatorClient.connect(url, RetryPolicy(attempts=1), PLAIN)
            assert tracemalloc.get_traced_memory()[1] < 6 * LONGEST_BYTES
        finally:
            tracemalloc.stop()


def test_bound_of_an_answer_is_that_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "volunteer-safety.md").read_text(encoding="utf-8")
    assert f"given up at {http_client.MAX_ANSWER_BYTES / 1024**2:.0f} MiB" in page


@pytest.mark.parametrize("announces", [True, False])
async def test_blob_is_given_up_at_its_announced_size(announces: bool) -> None:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        head = "Content-Length: 1000000" if announces else "Connection: close"
        with contextlib.suppress(ConnectionError):
            writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + bytes(100_000))
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(send, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with open_client(url, "coordinator", PLAIN) as http:
            file = spooled(b"")
            with pytest.raises(InvalidDocument, match="followed by"):
                await CoordinatorClient(http, "run").get_blob(DIGEST, ReceivedFile(file, 1000))
            assert file.size_bytes <= 1000


async def test_coordinator_that_is_silent_is_given_up_in_time() -> None:
    started_s = asyncio.get_running_loop().time()
    with pytest.raises(CoordinatorUnreachable):
        await CoordinatorClient.connect(f"http://127.0.0.1:{free_port()}", RetryPolicy(bound_s=0.2), PLAIN)
    assert asyncio.get_running_loop().time() - started_s < BOUND_S
