"""Uploads that are given up half-way, by their sender or by a store that fails: they end in order, and in silence."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator

import pytest

from epochal.coordinator.store.files import arriving
from epochal.state.errors import StoreLost
from epochal.state.wire import sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.drive.run_place import RunPlace
from tests.support.drive.served import DIFFERENCE, REPLICA, Served, WireClient, served_over_sockets, training

PIECE_BYTES = 64


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small blob be written in several pieces."""
    for name in ("MIN_PIECE_BYTES", "MAX_PIECE_BYTES"):
        monkeypatch.setattr(arriving, name, PIECE_BYTES)


@contextlib.asynccontextmanager
async def half_sent(
    run: Served, client: WireClient
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]]:
    """Hold an upload of which half has arrived."""
    data = client.result(REPLICA, DIFFERENCE)
    half = data[: len(data) // 2]
    assert len(half) > PIECE_BYTES
    assert (await client.commit(data)).status_code == 200
    url = run.http.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    headers = f"Host: {url.host}:{url.port}\r\nAuthorization: Bearer {client.token}\r\n"
    writer.write(f"GET {run.run_url}/clients/me HTTP/1.1\r\n{headers}\r\n".encode())  # it is a member's connection
    assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
    held_bytes = run.service.blobs.total_bytes
    head = f"PUT /v1/blobs/{sha256_hex(data)} HTTP/1.1\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + half)
    while run.service.blobs.total_bytes < held_bytes + len(half):
        await run.http.get("/healthz")
    with contextlib.closing(writer):
        yield reader, writer, data[len(half) :]


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged as more than news, once nothing is left that could complain later."""
    gc.collect()
    return [record.message for record in caplog.records if record.levelno > logging.INFO or record.exc_info]


@pytest.mark.parametrize("resets", [False, True], ids=["leaves", "resets"])
async def test_upload_of_a_sender_that_leaves_waits_in_silence(
    place: RunPlace, caplog: pytest.LogCaptureFixture, resets: bool
) -> None:
    async with asyncio.timeout(BOUND_S), served_over_sockets(place) as run:
        client, _ = await training(run)
        async with half_sent(run, client) as (_, writer, _):
            if resets:
                writer.transport.abort()
        while run.handlers.uploads.running_count:
            await run.http.get("/healthz")
    assert complaints(caplog) == []
    assert [path for folder in place.folder.rglob("partial") for path in folder.iterdir()] == []


async def test_upload_under_way_as_the_coordinator_ends_leaves_nothing(
    place: RunPlace, caplog: pytest.LogCaptureFixture
) -> None:
    async with contextlib.AsyncExitStack() as sending:
        async with asyncio.timeout(BOUND_S), served_over_sockets(place) as run:
            client, _ = await training(run)
            reader, _, _ = await sending.enter_async_context(half_sent(run, client))
        assert b"body-incomplete" in await reader.readuntil(b"}")
    assert complaints(caplog) == []
    assert [path for folder in place.folder.rglob("partial") for path in folder.iterdir()] == []


async def test_upload_whose_store_fails_ends_with_one_complaint(
    place: RunPlace, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.suppress(StoreLost):
        async with asyncio.timeout(BOUND_S), served_over_sockets(place) as run:
            client, _ = await training(run)
            async with half_sent(run, client) as (reader, writer, rest):
                for folder in list(place.folder.rglob("partial")):
                    folder.rename(folder.with_name("lost"))  # in one step: a piece may be written meanwhile
                writer.write(rest)
                assert b"store-failed" in await reader.readuntil(b"}")
    assert complaints(caplog) == ["store_failed"]


async def test_upload_that_outlives_the_databases_connection_is_kept(
    place: RunPlace, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(BOUND_S), served_over_sockets(place) as run:
        client, _ = await training(run)
        async with half_sent(run, client) as (reader, writer, rest):
            if place.server is not None:
                place.server.disconnect(place.database.rpartition("/")[2])
            writer.write(rest)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
    assert complaints(caplog) == []
