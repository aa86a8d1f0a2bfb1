"""A client's download of a blob over real sockets that break."""

import httpx
import pytest

from coordinator_client.http import CoordinatorClient
from coordinator_client.plain_blobs import MAX_BLOB_ANSWERS
from state.errors import CoordinatorUnreachable, InvalidDocument, Refused
from state.wire import sha256_hex
from tests.support.data_http import HttpReply, HttpRequest, http_server
from tests.support.spooled import fetched

BLOB = bytes(range(256)) * 40
SHA256 = sha256_hex(BLOB)


class BlobServer:
    """Serves the blob with ranges; each answer breaks off after `bytes_each`."""

    def __init__(self, bytes_each: int, *, ranges: bool = True) -> None:
        self.asked: list[str | None] = []
        self._bytes_each = bytes_each
        self._ranges = ranges

    async def __call__(self, request: HttpRequest) -> HttpReply:
        wanted = request.headers.get("range")
        self.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self._ranges else 0
        rest = BLOB[start:]
        headers = {"Content-Range": f"bytes {start}-{len(BLOB) - 1}/{len(BLOB)}"} if start else {}
        return HttpReply(206 if start else 200, rest[: self._bytes_each], headers, announced_bytes=len(rest))


async def download(server: BlobServer) -> bytes:
    async with http_server(server) as url, httpx.AsyncClient(base_url=url) as http:
        return await fetched(CoordinatorClient(http, "run"), SHA256)


async def test_blob_whose_body_breaks_is_continued_where_it_broke() -> None:
    server = BlobServer(3000)
    assert await download(server) == BLOB
    assert server.asked == [None, "bytes=3000-", "bytes=6000-", "bytes=9000-"]


async def test_blob_from_a_server_without_ranges_begins_again() -> None:
    server = BlobServer(len(BLOB), ranges=False)
    assert await download(server) == BLOB
    broken = BlobServer(3000, ranges=False)
    with pytest.raises(CoordinatorUnreachable):
        await download(broken)


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

    async with http_server(refuse) as url, httpx.AsyncClient(base_url=url) as http:
        with pytest.raises(Refused, match="no blob"):
            await fetched(CoordinatorClient(http, "run"), SHA256)
    async with http_server(mislead) as url, httpx.AsyncClient(base_url=url) as http:
        with pytest.raises(InvalidDocument, match="another range"):
            await fetched(CoordinatorClient(http, "run"), SHA256)
