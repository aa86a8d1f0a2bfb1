"""A client's download of a blob over real sockets that break."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from epochal.coordinator_client.blob_bodies import MAX_BLOB_ANSWERS
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.files.spool import MAX_IN_MEMORY_BYTES, Spool
from epochal.runtime.http.http_client import open_client
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, Refused, SpoolFull
from epochal.state.wire import sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.data.spooled import fetched, spooled
from tests.support.servers.data_http import Answer, HttpReply, HttpRequest, http_server
from tests.support.servers.plain_http import PLAIN
from tests.support.servers.raw_http import Speak, raw_server

BLOB = bytes(range(256)) * 40
SHA256 = sha256_hex(BLOB)
SMALL = BLOB[:400]
LARGE = BLOB * (4 * MAX_IN_MEMORY_BYTES // len(BLOB))


class BlobServer:
    """Serves the blob with ranges; each answer breaks off after `bytes_each`, or the first only."""

    def __init__(self, bytes_each: int, blob: bytes = BLOB, *, ranges: bool = True, breaks_once: bool = False) -> None:
        self.asked: list[str | None] = []
        self._blob = blob
        self.bytes_each = bytes_each
        self._ranges = ranges
        self._breaks_once = breaks_once

    async def __call__(self, request: HttpRequest) -> HttpReply:
        wanted = request.headers.get("range")
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self._ranges else 0
        rest = self._blob[start:]
        headers = {"Content-Range": f"bytes {start}-{len(self._blob) - 1}/{len(self._blob)}"} if start else {}
        is_whole = self._breaks_once and len(self.asked) > 1
        sent = rest if is_whole else rest[: self.bytes_each]
        return HttpReply(206 if start else 200, sent, headers, announced_bytes=len(rest))


@asynccontextmanager
async def client_of(server: Answer) -> AsyncIterator[CoordinatorClient]:
    async with (
        http_server(server) as url,
        open_client(url, "coordinator", PLAIN, follow_redirects=True) as http,
        CoordinatorClient(http, "run") as client,
    ):
        yield client


async def download(server: Answer) -> bytes:
    async with client_of(server) as client:
        return await fetched(client, SHA256)


async def test_blob_whose_body_breaks_is_continued_where_it_broke() -> None:
    server = BlobServer(3000)
    assert await download(server) == BLOB
    assert server.asked == [None, "bytes=3000-", "bytes=6000-", "bytes=9000-"]


async def test_blob_that_breaks_early_or_late_arrives_whole() -> None:
    server = BlobServer(0, SMALL, breaks_once=True)
    async with client_of(server) as client:
        for broken_at in (1, 2, 99, 200, len(SMALL) - 1):
            server.bytes_each, server.asked = broken_at, []
            assert await fetched(client, SHA256) == SMALL
            assert server.asked == [None, f"bytes={broken_at}-"]


async def test_large_blob_that_breaks_is_continued_on_disk() -> None:
    server = BlobServer(len(LARGE) // 3, LARGE)
    assert await download(server) == LARGE
    assert len(server.asked) == 4


async def test_blob_from_a_server_without_ranges_begins_again() -> None:
    server = BlobServer(len(BLOB), ranges=False)
    assert await download(server) == BLOB
    broken = BlobServer(3000, ranges=False)
    with pytest.raises(CoordinatorUnreachable):
        await download(broken)
    recovering = BlobServer(3000, ranges=False, breaks_once=True)
    assert await download(recovering) == BLOB


async def test_blob_of_which_nothing_comes_is_unreachable_at_once() -> None:
    server = BlobServer(0)
    with pytest.raises(CoordinatorUnreachable):
        await download(server)
    assert server.asked == [None]


async def test_blob_that_breaks_again_and_again_is_given_up() -> None:
    server = BlobServer(10)
    with pytest.raises(CoordinatorUnreachable):
        await download(server)
    assert len(server.asked) == MAX_BLOB_ANSWERS


async def test_blob_that_is_refused_or_answered_wrongly_is_said() -> None:
    async def refuse(request: HttpRequest) -> HttpReply:
        body = b'{"type": "urn:epochal:problem:not-found", "title": "x", "status": 404, "detail": "no blob"}'
        return HttpReply(404, body, {"Content-Type": "application/problem+json"})

    async def mislead(request: HttpRequest) -> HttpReply:
        if "range" not in request.headers:
            return HttpReply(200, BLOB[:10], announced_bytes=len(BLOB))
        return HttpReply(206, BLOB[:10], {"Content-Range": f"bytes 0-9/{len(BLOB)}"})

    with pytest.raises(Refused, match="no blob"):
        await download(refuse)
    with pytest.raises(InvalidDocument, match="another range"):
        await download(mislead)


async def test_blob_that_lies_elsewhere_is_fetched_from_there() -> None:
    async def elsewhere(request: HttpRequest) -> HttpReply:
        if request.path == "/there":
            return HttpReply(200, BLOB)
        return HttpReply(307, b"", {"Location": "/there"})

    assert await download(elsewhere) == BLOB


async def test_blob_is_asked_for_with_the_token() -> None:
    async def guarded(request: HttpRequest) -> HttpReply:
        return HttpReply(200, request.headers.get("authorization", "").encode())

    async with client_of(guarded) as client:
        client.use_token("secret")
        assert await fetched(client, SHA256) == b"Bearer secret"


@asynccontextmanager
async def client_of_raw(serve: Speak) -> AsyncIterator[CoordinatorClient]:
    async with raw_server(serve) as port, open_client(f"http://127.0.0.1:{port}", "coordinator", PLAIN) as http:
        yield CoordinatorClient(http, "run")


async def test_connection_that_the_server_closed_is_opened_again() -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        asked += 1
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(BLOB)}\r\n\r\n".encode() + BLOB)
        writer.close()  # although it did not say so

    async with client_of_raw(serve) as client:
        for _ in range(3):
            assert await fetched(client, SHA256) == BLOB
    assert asked == 3


async def test_upload_is_not_lost_on_a_connection_that_the_server_closed() -> None:
    bodies = list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        bodies.append(await reader.readexactly(len(BLOB)))
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
        writer.close()  # although it did not say so

    async with client_of_raw(serve) as client:
        for _ in range(3):
            await client._send("/blob", {}, spooled(BLOB))
    assert bodies == [BLOB] * 3


async def test_cancelled_download_has_ended_and_leaves_what_arrived(tmp_path: Path) -> None:
    sent = asyncio.Event()

    async def hang(request: HttpRequest) -> HttpReply:
        asyncio.get_running_loop().call_later(0.1, sent.set)
        return HttpReply(200, LARGE[: len(LARGE) // 2], announced_bytes=len(LARGE), hangs=True)

    async with client_of(hang) as client:
        file = Spool(tmp_path).file()
        task = asyncio.get_running_loop().create_task(client.get_blob(SHA256, file))
        await asyncio.wait_for(sent.wait(), BOUND_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held = file.to_bytes()
    assert LARGE.startswith(held)


@pytest.mark.nightly
async def test_spool_that_is_full_ends_the_download_by_name(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=len(LARGE) - 1)
    async with client_of(BlobServer(len(LARGE), LARGE)) as client:
        file = spool.file()
        with pytest.raises(SpoolFull, match="spool_bytes"):
            await client.get_blob(SHA256, file)
    del file
    gc.collect()
    assert spool.used_bytes == 0
