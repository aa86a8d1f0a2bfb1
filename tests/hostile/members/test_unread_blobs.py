"""Blobs that a member asks for and does not read: bounded in number, and ended with its membership."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest

from epochal.coordinator.blobs import downloads, transfers
from epochal.coordinator.blobs.downloads import MAX_DOWNLOADS_PER_CLIENT
from epochal.state.wire import Sha256, sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.drive.run_place import RunPlace
from tests.support.drive.served import Served, WireClient, served_over_sockets

BLOB = bytes(range(256)) * 64 * 1024
"""16 MiB: more than the system's buffers between two sockets take."""


@contextlib.asynccontextmanager
async def held_blob(run: Served) -> AsyncIterator[Sha256]:
    """Keep the blob as if it had been delivered; no sweep deletes it."""

    async def body() -> AsyncIterator[bytes]:
        yield BLOB

    with run.service.maintenance.taking_in(sha256_hex(BLOB)):
        await run.service.blobs.receive(sha256_hex(BLOB), len(BLOB), body())
        yield sha256_hex(BLOB)


class Unread:
    """A download over a connection of its own of which only the head is read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def begin(cls, run: Served, client: WireClient, sha256: Sha256) -> "Unread":
        url = run.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
        headers = f"Host: {url.host}:{url.port}\r\nAuthorization: Bearer {client.token}\r\n"
        writer.write(f"GET /v1/blobs/{sha256} HTTP/1.1\r\n{headers}\r\n".encode())
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        return cls(reader, writer)

    async def rest_bytes(self) -> int:
        """Return the number of bytes that still arrive before the connection ends."""
        count = 0
        with contextlib.suppress(ConnectionError):
            while piece := await self._reader.read(1024 * 1024):
                count += len(piece)
        return count

    def close(self) -> None:
        self._writer.close()


async def get(run: Served, client: WireClient, sha256: Sha256) -> httpx.Response:
    return await client.send("GET", f"/v1/blobs/{sha256}")


async def test_member_that_reads_nothing_is_bounded_and_cut_when_it_leaves(place: RunPlace) -> None:
    async with asyncio.timeout(BOUND_S), served_over_sockets(place, config__init_min_clients=3) as run:
        greedy, honest = WireClient(run, 1), WireClient(run, 2)
        for client in (greedy, honest):
            await client.join()
        async with held_blob(run) as sha256:
            unread = [await Unread.begin(run, greedy, sha256) for _ in range(MAX_DOWNLOADS_PER_CLIENT)]
            assert run.handlers.downloads.running_count == MAX_DOWNLOADS_PER_CLIENT
            assert (await get(run, greedy, sha256)).status_code == 503
            assert (await get(run, honest, sha256)).content == BLOB
            assert (await greedy.send("DELETE", "/clients/me")).status_code == 204
            for download in unread:
                assert await download.rest_bytes() < len(BLOB)
                download.close()
            assert run.handlers.downloads.running_count == 0


async def test_downloads_that_stand_still_give_way_to_one_that_moves(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "MAX_DOWNLOADS", 2)
    monkeypatch.setattr(transfers, "GIVE_WAY_S", -1e9)  # what the system has buffered would count for minutes
    async with asyncio.timeout(BOUND_S), served_over_sockets(place, config__init_min_clients=3) as run:
        greedy, honest = WireClient(run, 1), WireClient(run, 2)
        for client in (greedy, honest):
            await client.join()
        async with held_blob(run) as sha256:
            unread = [await Unread.begin(run, greedy, sha256) for _ in range(2)]
            assert (await get(run, honest, sha256)).content == BLOB
            for download in unread:
                download.close()
