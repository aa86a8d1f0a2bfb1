"""How many uploads wait for their rest, for how long, and to whom they give way; over blobs on a real disk."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochal.coordinator.blobs import resumable_uploads
from epochal.coordinator.blobs.resumable_uploads import ResumableUploads
from epochal.coordinator.blobs.transfers import Transfer
from epochal.coordinator.machine.views import ExpectedBlob, ExpectedPart
from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.state.errors import Refused, StoreFailed
from epochal.state.messages.requests import CheckpointReport
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256, sha256_hex
from tests.support.data.stored_blobs import one_piece
from tests.support.servers.cutting_relay import until

BOUND_S = 20.0
HALF = os.urandom(1000)
WHOLE = HALF + os.urandom(1000)
BROKEN = Refused(Refusal.BODY_INCOMPLETE, "the connection ended")


def blob_of(number: int, data: bytes = WHOLE, client: int = 1) -> tuple[ExpectedBlob, bytes]:
    """An announced blob whose bytes end with a number."""
    data += bytes([number])
    sha256 = sha256_hex(data)
    claim = CheckpointReport(1, sha256, sha256, len(data))
    return ExpectedPart(ClientId(f"{client:032x}"), sha256, len(data), claim), data


async def broken(data: bytes, error: Refused = BROKEN) -> AsyncIterator[bytes]:
    yield data
    raise error


async def unended(data: bytes) -> AsyncIterator[bytes]:
    yield data
    await asyncio.Event().wait()


class Uploader:
    """Uploads to blobs on a disk."""

    def __init__(self, blobs: DirectoryBlobs) -> None:
        self.blobs = blobs
        self.failures: list[StoreFailed] = []
        self.uploads = ResumableUploads(self._keep, self.failures.append)
        self.may_check = asyncio.Event()
        self.may_check.set()

    async def _keep(self, expected: ExpectedBlob, pieces: AsyncIterator[bytes]) -> None:
        await self.blobs.receive(expected.sha256, expected.size_bytes, pieces)
        await self.may_check.wait()

    async def send(self, expected: ExpectedBlob, pieces: AsyncIterator[bytes], start: int | None = None) -> None:
        transfer = Transfer(expected.client_id, asyncio.get_running_loop().time, 1.0)

        async def moved() -> AsyncIterator[bytes]:
            while (piece := await transfer.move(lambda: anext(pieces, None))) is not None:
                yield piece

        async with asyncio.timeout(BOUND_S):
            await self.uploads.receive(expected, transfer, moved(), start)

    async def break_off(self, number: int, client: int = 1, error: Refused = BROKEN) -> ExpectedBlob:
        expected, _ = blob_of(number, client=client)
        with pytest.raises(Refused) as caught:
            await self.send(expected, broken(HALF, error))
        assert caught.value.kind is error.kind
        return expected

    def arrived(self, expected: ExpectedBlob) -> int:
        return self.uploads.received_bytes(expected.client_id, expected.sha256)

    async def held(self, sha256: Sha256) -> bool:
        return sha256 in await self.blobs.held()


@pytest.fixture
async def uploader(tmp_path: Path) -> Uploader:
    return Uploader(await DirectoryBlobs.open(tmp_path, 10**9))


async def test_upload_that_must_end_waits_for_nothing(uploader: Uploader) -> None:
    await uploader.break_off(1, error=Refused(Refusal.LATE_RESULT, "late"))
    assert (uploader.uploads.paused_count, uploader.blobs.total_bytes) == (0, 0)


async def test_two_requests_for_one_blob_do_not_disturb_each_other(uploader: Uploader) -> None:
    expected, data = blob_of(1)
    goes_on = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield HALF
        await goes_on.wait()
        yield data[len(HALF) :]

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(uploader.send(expected, slow()))
        await until(lambda: uploader.blobs.total_bytes == len(HALF))
        await uploader.send(expected, one_piece(data))
        goes_on.set()
    assert uploader.blobs.total_bytes == len(data)


async def test_upload_waits_no_longer_than_its_bound(uploader: Uploader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_uploads, "PAUSED_FOR_S", 0.01)
    expected = await uploader.break_off(1)
    await until(lambda: uploader.blobs.total_bytes == 0)
    assert uploader.arrived(expected) == 0


async def test_oldest_waiting_uploads_end_beyond_a_members_number(uploader: Uploader) -> None:
    most = resumable_uploads.MAX_PAUSED_PER_CLIENT
    other = await uploader.break_off(0, client=2)
    blobs = [await uploader.break_off(number) for number in range(most + 2)]
    await until(lambda: uploader.blobs.total_bytes == (most + 1) * len(HALF))
    assert [uploader.arrived(expected) for expected in (other, *blobs)] == [len(HALF), 0, 0, *[len(HALF)] * most]


async def test_oldest_waiting_uploads_end_beyond_the_number_of_all(
    uploader: Uploader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable_uploads, "MAX_PAUSED", 2)
    blobs = [await uploader.break_off(1, client=client) for client in range(3)]
    await until(lambda: uploader.blobs.total_bytes == 2 * len(HALF))
    assert [uploader.arrived(expected) for expected in blobs] == [0, len(HALF), len(HALF)]


async def test_waiting_uploads_give_way_to_who_needs_their_room(uploader: Uploader) -> None:
    blobs = [await uploader.break_off(1, client=client) for client in range(3)]
    assert (uploader.uploads.paused_count, uploader.uploads.paused_bytes) == (3, 3 * len(HALF))
    for _ in range(2):
        await uploader.uploads.end_oldest()
    assert [uploader.arrived(expected) for expected in blobs] == [0, 0, len(HALF)]
    assert (uploader.uploads.paused_count, uploader.blobs.total_bytes) == (1, len(HALF))


async def test_failure_of_the_store_is_told_also_where_no_request_waits(uploader: Uploader, tmp_path: Path) -> None:
    """As when a disk fails while the rest of an upload is awaited, and its end finds that out."""
    expected, data = blob_of(1)
    await uploader.break_off(1)
    shutil.rmtree(tmp_path / "blobs" / "partial")
    (tmp_path / "blobs" / "partial").write_bytes(b"")
    has_left = asyncio.create_task(uploader.send(expected, unended(data[len(HALF) :]), len(HALF)))
    await until(lambda: uploader.blobs.total_bytes == len(data))
    has_left.cancel()
    await asyncio.wait({has_left}, timeout=BOUND_S)
    await until(lambda: not uploader.uploads.under_way())
    assert len(uploader.failures) == 1


async def test_uploads_that_do_not_end_are_cancelled_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_uploads, "END_S", 0.01)
    cancelled, expected = [], [blob_of(number)[0] for number in range(3)]

    async def keep(expected: ExpectedBlob, _: AsyncIterator[bytes]) -> None:
        try:
            await asyncio.Event().wait()  # as in the wait for room
        finally:
            cancelled.append(expected)

    def fail(error: StoreFailed) -> None:
        raise error

    uploads = ResumableUploads(keep, fail)
    transfers = [Transfer(blob.client_id, asyncio.get_running_loop().time, 1.0) for blob in expected]
    requests = [
        asyncio.create_task(uploads.receive(blob, transfer, one_piece(HALF), None))
        for blob, transfer in zip(expected, transfers, strict=True)
    ]
    await until(lambda: len(uploads.under_way()) == 3)
    async with asyncio.timeout(BOUND_S):
        await uploads.aclose()
    await asyncio.wait(requests, timeout=BOUND_S)
    assert cancelled == expected


async def test_nothing_waits_after_the_end(uploader: Uploader, tmp_path: Path) -> None:
    for number in range(3):
        await uploader.break_off(number)
    await uploader.uploads.aclose()
    assert (uploader.uploads.paused_count, uploader.blobs.total_bytes) == (0, 0)
    assert list((tmp_path / "blobs" / "partial").iterdir()) == []
