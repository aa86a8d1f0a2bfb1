"""Uploads that send a byte and then nothing: they end, promise nothing, and keep nobody from delivering."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from epochal.coordinator.blobs import transfers, uploads
from epochal.state.wire import sha256_hex
from tests.support.bounds import BOUND_S
from tests.support.drive.run_place import RunPlace
from tests.support.drive.served import DIFFERENCE, REPLICA, Served, WireClient, served_over_sockets, training

UPLOADS_EACH = uploads.MAX_UPLOADS_PER_CLIENT
SYBILS = 2


@contextlib.asynccontextmanager
async def attacked(place: RunPlace, **overrides: Any) -> AsyncIterator[Served]:
    """Serve a run over real sockets, with as many places for uploads as the Sybils may hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uploads, "MAX_UPLOADS", SYBILS * UPLOADS_EACH)
        async with asyncio.timeout(BOUND_S), served_over_sockets(place, **overrides) as run:
            yield run


class Drip:
    """An upload over a member's connection that sends the first byte of a result, and no more."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def begin(cls, run: Served, client: WireClient, data: bytes) -> "Drip":
        url = run.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        headers = f"Host: {url.host}:{url.port}\r\nAuthorization: Bearer {client.token}\r\n"
        drip = cls(reader, writer)
        writer.write(f"GET {run.run_url}/clients/me HTTP/1.1\r\n{headers}\r\n".encode())
        assert (await drip._answer())[0] == 200
        head = f"PUT /v1/blobs/{sha256_hex(data)} HTTP/1.1\r\n{headers}Content-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data[:1])
        return drip

    async def answer(self) -> tuple[int, str]:
        """Return the status and the kind of the problem that answers it, and close the connection."""
        found = await self._answer()
        self.close()
        return found

    async def _answer(self) -> tuple[int, str]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        body = (await self._reader.readuntil(b"}")).decode()
        return int(head.split()[1]), body.partition("urn:epochal:problem:")[2].partition('"')[0]

    def close(self) -> None:
        self._writer.close()


async def begun(run: Served, sybils: list[WireClient]) -> list[Drip]:
    """Let each member commit to a result, and begin as many uploads of it as it may; the first may have ended."""
    results = [(sybil, sybil.result(REPLICA, DIFFERENCE)) for sybil in sybils]
    for sybil, data in results:
        assert (await sybil.commit(data)).status_code == 200
    return [await Drip.begin(run, sybil, data) for sybil, data in results for _ in range(UPLOADS_EACH)]


async def dripping(run: Served, sybils: list[WireClient]) -> list[Drip]:
    """Return uploads as `begun`, when all of them run."""
    drips = await begun(run, sybils)
    while run.handlers.uploads.running_count < len(drips):
        await run.http.get("/healthz")
    return drips


async def deliver(client: WireClient) -> int:
    """Let a member commit to a result and deliver it; return the status."""
    data = client.result(REPLICA, DIFFERENCE)
    assert (await client.commit(data)).status_code == 200
    return (await client.put_blob(data)).status_code


async def test_uploads_of_members_that_withdraw_end_at_once(place: RunPlace) -> None:
    async with attacked(place) as run:
        *sybils, honest = await training(run, SYBILS + 1)
        drips = await dripping(run, sybils)
        for sybil in sybils:
            assert (await sybil.send("DELETE", "/clients/me")).status_code == 204
        assert [await drip.answer() for drip in drips] == [(401, "unauthorized")] * len(drips)
        assert await deliver(honest) == 201


@pytest.mark.nightly
async def test_uploads_end_with_their_round(place: RunPlace) -> None:
    async with attacked(place, config__max_round_train_time=3) as run:
        *sybils, _ = await training(run, SYBILS + 1)
        drips = await begun(run, sybils)
        assert {await drip.answer() for drip in drips} <= {(409, "late-result"), (409, "not-committed")}


async def test_uploads_that_drip_give_way_to_one_that_does_not(
    place: RunPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "GIVE_WAY_S", 0.2)
    async with attacked(place) as run:
        *sybils, honest = await training(run, SYBILS + 1)
        drips = await dripping(run, sybils)
        assert await deliver(honest) == 201
        answers = [asyncio.create_task(drip.answer()) for drip in drips]
        done, others = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert {answer.result() for answer in done} == {(503, "overloaded")}
        for answer in others:
            answer.cancel()
        for drip in drips:
            drip.close()


async def test_uploads_that_drip_end_and_promise_nothing(place: RunPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "GRACE_S", 0.5)
    async with attacked(place) as run:
        *sybils, _ = await training(run, SYBILS + 1)
        held_bytes = run.service.blobs.total_bytes
        drips = await begun(run, sybils)
        assert run.service.blobs.total_bytes <= held_bytes + len(drips)
        assert [await drip.answer() for drip in drips] == [(408, "body-timeout")] * len(drips)
        assert run.service.blobs.total_bytes <= held_bytes + SYBILS, "one upload of each waits for its rest"
