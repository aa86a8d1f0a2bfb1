"""Packs: small blobs that arrive together share a file and a sync, and survive what a crash or a full disk does."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

import epochal.coordinator.store.directory.failures
from epochal.coordinator.store.directory import packs
from epochal.coordinator.store.directory.blobs import BLOBS_FOLDER, DirectoryBlobs
from epochal.runtime.files.durable_files import REAL_DISK, Disk
from epochal.state.errors import Refused, StoreBlocked, StoreFailed
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.recording_disk import FailingDisk
from tests.support.data.stored_blobs import blob_bytes

LIMIT = 10_000_000


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochal.coordinator.store.directory.failures, "PASSING_S", 0.0)


def small(number: int) -> bytes:
    return b"result %d " % number * 50


async def keep(blobs: DirectoryBlobs, *numbers: int) -> list[Sha256]:
    digests = [sha256_hex(small(number)) for number in numbers]
    async with asyncio.TaskGroup() as tasks:
        for digest, number in zip(digests, numbers, strict=True):
            tasks.create_task(blobs.keep(digest, small(number)))
    return digests


def pack_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / BLOBS_FOLDER / packs.PACKS_FOLDER).glob("*.pack"))


async def test_blobs_that_arrive_together_share_a_file_and_few_syncs(tmp_path: Path) -> None:
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        synced.append(descriptor)
        os.fsync(descriptor)

    blobs = await DirectoryBlobs.open(tmp_path, LIMIT, Disk(sync_data=sync))
    digests = await keep(blobs, *range(200))
    assert len(pack_files(tmp_path)) == 1
    assert 1 <= len(synced) <= 2
    assert [await blob_bytes(blobs, digest) for digest in digests] == [small(number) for number in range(200)]
    assert blobs.total_bytes == sum(len(small(number)) for number in range(200))


async def test_packed_blobs_are_there_after_a_restart_and_for_other_processes(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT)
    reader = DirectoryBlobs.for_reading(tmp_path)
    digests = await keep(blobs, 1, 2, 3)
    for other in (await DirectoryBlobs.open(tmp_path, LIMIT), reader):
        assert await other.held() == set(digests)
        assert await blob_bytes(other, digests[1]) == small(2)
        assert await other.size(digests[2]) == len(small(3))
    (later,) = await keep(blobs, 4)
    assert await reader.size(later) == len(small(4))


async def test_a_restart_counts_every_packed_blob_once(tmp_path: Path) -> None:
    digests = await keep(await DirectoryBlobs.open(tmp_path, LIMIT), 1, 2)
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT)
    await keep(blobs, 2, 3)
    assert blobs.total_bytes == sum(len(small(number)) for number in (1, 2, 3))
    assert len(pack_files(tmp_path)) == 2
    assert await blob_bytes(blobs, digests[0]) == small(1)


@pytest.mark.parametrize("lost_bytes", [1, 300, 700])
async def test_what_a_crash_left_of_the_last_write_is_ignored(tmp_path: Path, lost_bytes: int) -> None:
    digests = await keep(await DirectoryBlobs.open(tmp_path, LIMIT), 1, 2, 3)
    (pack,) = pack_files(tmp_path)
    content = pack.read_bytes()
    pack.write_bytes(content[:-lost_bytes])
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT)
    whole = {digest for digest in digests if await blobs.size(digest) is not None}
    assert digests[0] in whole
    assert digests[2] not in whole
    assert await keep(blobs, 3) == digests[2:]
    assert await blob_bytes(blobs, digests[2]) == small(3)


async def test_bytes_that_are_not_what_an_entry_says_are_not_held(tmp_path: Path) -> None:
    digests = await keep(await DirectoryBlobs.open(tmp_path, LIMIT), 1, 2)
    (pack,) = pack_files(tmp_path)
    content = bytearray(pack.read_bytes())
    content[-1] ^= 1
    pack.write_bytes(content)
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT)
    assert await blobs.held() == {digests[0]}


async def test_a_pack_goes_once_none_of_its_blobs_is_held(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT)
    first, second = await keep(blobs, 1, 2)
    await blobs.delete(first)
    await blobs.swept()
    assert await blobs.held() == {second}
    with pytest.raises(Refused):
        await blob_bytes(blobs, first)
    assert len(pack_files(tmp_path)) == 1
    await blobs.delete(second)
    assert pack_files(tmp_path) == []
    assert blobs.total_bytes == 0


async def test_a_pack_that_is_appended_to_stays(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT)
    other = await DirectoryBlobs.open(tmp_path, LIMIT)
    (first,) = await keep(blobs, 1)
    sweeper = DirectoryBlobs.for_reading(tmp_path)
    assert await sweeper.held() == {first}
    await sweeper.delete(first)
    assert len(pack_files(tmp_path)) == 1
    (second,) = await keep(blobs, 2)
    assert await blob_bytes(DirectoryBlobs.for_reading(tmp_path), second) == small(2)
    assert other.total_bytes == 0


async def test_a_sweep_begins_another_pack(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT)
    await keep(blobs, 1)
    await blobs.swept()
    await keep(blobs, 2)
    assert len(pack_files(tmp_path)) == 2


async def test_a_full_pack_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_PACK_BYTES", 1000)
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT)
    for number in range(4):
        await keep(blobs, number)
    assert len(pack_files(tmp_path)) == 2


async def test_writes_are_bounded_in_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_WRITE_BYTES", 1000)
    sizes: list[int] = []

    def write(file: object, data: bytes) -> None:
        sizes.append(len(data))
        REAL_DISK.write(file, data)  # type: ignore[arg-type]

    blobs = await DirectoryBlobs.open(tmp_path, LIMIT, Disk(write=write))  # type: ignore[arg-type]
    await keep(blobs, *range(8))
    assert len(sizes) >= 4
    assert max(sizes) <= 1000 + packs.HEAD_BYTES


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_blobs_of_a_write_that_fails_are_not_held_and_may_follow(tmp_path: Path, code: int) -> None:
    failing = FailingDisk()
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT, failing.disk)
    (first,) = await keep(blobs, 1)
    failing.write_errno = code
    with pytest.raises(ExceptionGroup) as caught:
        await keep(blobs, 2, 3)
    blocked = code == errno.ENOSPC
    assert caught.group_contains(StoreBlocked if blocked else StoreFailed)
    assert await blobs.held() == {first}
    assert blobs.total_bytes == len(small(1))
    failing.write_errno = 0
    later = await keep(blobs, 2, 3)
    reopened = await DirectoryBlobs.open(tmp_path, LIMIT)
    assert await reopened.held() == {first, *later}


async def test_a_recount_counts_packed_blobs_too(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT)
    digests = await keep(blobs, 1, 2)
    await blobs.recount()
    assert blobs.total_bytes == len(small(1)) + len(small(2))
    for digest in digests:
        await blobs.delete(digest)
    await blobs.swept()
    await blobs.recount()
    assert blobs.total_bytes == 0


async def test_a_blob_that_finds_no_room_is_refused(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path, len(small(1)) + 10)
    await keep(blobs, 1)
    with pytest.raises(Refused, match="max_total_bytes"):
        await blobs.keep(sha256_hex(small(2)), small(2))
    assert blobs.total_bytes == len(small(1))


async def test_a_blob_too_large_for_a_pack_is_a_file(tmp_path: Path) -> None:
    blobs = await DirectoryBlobs.open(tmp_path, LIMIT)
    data = b"x" * (packs.MAX_PACKED_BYTES + 1)
    await blobs.keep(sha256_hex(data), data)
    assert pack_files(tmp_path) == []
    assert await blob_bytes(blobs, sha256_hex(data)) == data
