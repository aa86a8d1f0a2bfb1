"""Every blob store keeps bytes alike: one suite, run on each."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from epochal.coordinator.store.blobs import BlobStore
from epochal.coordinator.store.files.arriving import MAX_PIECE_BYTES
from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.coordinator.store.object_store.blobs import ObjectBlobs, SharedObjectBlobs
from epochal.coordinator.store.run_blobs import RunBlobs
from epochal.state.errors import Refused
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.object_blobs import object_blobs
from tests.support.data.stored_blobs import blob_bytes
from tests.support.simulate.memory_store import MemoryBlobs, MemoryStore

LIMIT = 5 * MAX_PIECE_BYTES


@pytest.fixture(params=("directory", "memory", "objects", "layers", "shared directory", "shared objects"))
async def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param in ("objects", "shared objects"):
        request.getfixturevalue("bucket")
        kind = ObjectBlobs if request.param == "objects" else SharedObjectBlobs
        return await object_blobs(request.getfixturevalue("s3_url"), LIMIT, kind)
    if request.param == "shared directory":
        return await DirectoryBlobs.shared(tmp_path, "run", b"owner", LIMIT)
    if request.param == "layers":
        return RunBlobs(MemoryStore(0).recorded_blobs, await DirectoryBlobs.open(tmp_path, LIMIT))
    return await DirectoryBlobs.open(tmp_path, LIMIT) if request.param == "directory" else MemoryBlobs(LIMIT)


async def pieces(data: bytes, size: int = 70_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def put(blobs: BlobStore, data: bytes) -> Sha256:
    digest = sha256_hex(data)
    await blobs.receive(digest, len(data), pieces(data))
    return digest


@pytest.mark.parametrize("size", [1, 70_000, MAX_PIECE_BYTES, 2 * MAX_PIECE_BYTES + 3])
async def test_blob_is_given_back_whole_and_in_ranges(blobs: BlobStore, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    digest = await put(blobs, data)
    assert await blob_bytes(blobs, digest) == data
    assert await blobs.size(digest) == size
    assert b"".join([piece async for piece in blobs.stream(digest, size // 3, size)]) == data[size // 3 :]
    assert blobs.total_bytes == size
    assert await blobs.held() == {digest}


async def test_opened_blob_is_read_in_parts_and_its_view_outlives_it(blobs: BlobStore) -> None:
    data = bytes(range(256)) * 1000
    async with blobs.opened(await put(blobs, data)) as blob:
        assert len(blob) == len(data)
        assert (blob[:3], blob[-3:], blob[1000:70_000]) == (data[:3], data[-3:], data[1000:70_000])
        view = blob.view()
    assert bytes(view) == data
    assert view.readonly
    with pytest.raises(Refused) as refused:
        async with blobs.opened(sha256_hex(b"unknown")):
            pass
    assert refused.value.kind == "not-found"


async def test_blob_received_again_changes_nothing(blobs: BlobStore) -> None:
    digest = await put(blobs, b"same")
    assert await put(blobs, b"same") == digest
    await blobs.receive(digest, 4, pieces(b""))  # a body that is not read once more
    assert blobs.total_bytes == 4


async def test_blob_is_added_under_the_digest_that_its_bytes_have(blobs: BlobStore) -> None:
    data = b"z" * 200_000
    assert [await blobs.add(len(data), pieces(data)) for _ in range(2)] == [sha256_hex(data)] * 2
    assert await blob_bytes(blobs, sha256_hex(data)) == data
    assert blobs.total_bytes == len(data)
    with pytest.raises(Refused) as refused:
        await blobs.add(4, pieces(b"12345"))
    assert refused.value.kind == "blob-too-large"
    assert await blobs.held() == {sha256_hex(data)}


async def test_blob_received_at_once_by_many_is_counted_once(blobs: BlobStore) -> None:
    data = b"y" * 100_000
    async with asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(put(blobs, data))
    assert blobs.total_bytes == len(data)
    assert await blob_bytes(blobs, sha256_hex(data)) == data


@pytest.mark.parametrize(
    ("announced_size", "kind"), [(3, "blob-too-large"), (5, "blob-mismatch"), (4, "blob-mismatch")]
)
async def test_blob_that_is_not_what_was_announced_is_not_kept(
    blobs: BlobStore, announced_size: int, kind: str
) -> None:
    with pytest.raises(Refused) as refused:
        await blobs.receive(sha256_hex(b"else"[:3]), announced_size, pieces(b"data"))
    assert refused.value.kind == kind
    assert blobs.total_bytes == 0
    assert await blobs.held() == frozenset()


async def test_blob_beyond_the_maximum_is_refused_and_one_that_fits_is_not(blobs: BlobStore) -> None:
    await put(blobs, b"a" * (LIMIT - 10))
    with pytest.raises(Refused) as refused:
        await put(blobs, b"b" * 11)
    assert refused.value.kind == "blobs-full"
    await put(blobs, b"c" * 10)


async def test_blob_that_leaves_too_little_room_is_refused(blobs: BlobStore) -> None:
    data = b"a" * (LIMIT - 10)
    with pytest.raises(Refused) as refused:
        await blobs.receive(sha256_hex(data), len(data), pieces(data), spare_bytes=11)
    assert refused.value.kind == "blobs-full"
    assert blobs.total_bytes == 0
    await blobs.receive(sha256_hex(data), len(data), pieces(data), spare_bytes=10)


async def test_blob_that_was_only_promised_takes_no_room(blobs: BlobStore) -> None:
    promised, other = b"a" * (LIMIT - 10), b"b" * (LIMIT - 10)
    begun, given_up = asyncio.Event(), asyncio.Event()

    async def dripping() -> AsyncIterator[bytes]:
        yield promised[:5]
        begun.set()
        await given_up.wait()
        raise ConnectionResetError

    async with asyncio.TaskGroup() as tasks:
        upload = tasks.create_task(expect_reset(blobs.receive(sha256_hex(promised), len(promised), dripping())))
        await begun.wait()
        assert blobs.total_bytes <= 5
        assert await blob_bytes(blobs, await put(blobs, other)) == other
        given_up.set()
        await upload
    assert blobs.total_bytes == len(other)


async def expect_reset(receiving: Awaitable[None]) -> None:
    with pytest.raises(ConnectionResetError):
        await receiving


async def test_blob_for_which_the_room_was_taken_meanwhile_is_refused(blobs: BlobStore) -> None:
    large = b"a" * (LIMIT - 10)

    async def overtaken() -> AsyncIterator[bytes]:
        yield large[:5]
        await put(blobs, b"b" * 20)
        yield large[5:]

    with pytest.raises(Refused) as refused:
        await blobs.receive(sha256_hex(large), len(large), overtaken())
    assert refused.value.kind == "blobs-full"
    assert blobs.total_bytes == 20


async def test_blob_whose_upload_breaks_off_leaves_nothing(blobs: BlobStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"z" * (2 * MAX_PIECE_BYTES)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await blobs.receive(sha256_hex(b"z"), 3 * MAX_PIECE_BYTES, broken())
    assert blobs.total_bytes == 0
    assert await blobs.held() == frozenset()


async def test_blob_deleted_frees_its_bytes_and_may_be_deleted_again(blobs: BlobStore) -> None:
    digest = await put(blobs, b"gone")
    await blobs.delete(digest)
    await blobs.delete(digest)
    assert blobs.total_bytes == 0
    assert await blobs.size(digest) is None
    with pytest.raises(Refused) as refused:
        await blob_bytes(blobs, digest)
    assert refused.value.kind == "not-found"


@pytest.mark.nightly
async def test_blobs_deleted_while_others_arrive_are_counted(blobs: BlobStore) -> None:
    old = [await put(blobs, b"old %d" % number) for number in range(50)]
    new = [b"a newer one %d" % number for number in range(50)]
    async with asyncio.TaskGroup() as tasks:
        for digest, data in zip(old, new, strict=True):
            tasks.create_task(blobs.delete(digest))
            tasks.create_task(put(blobs, data))
    assert blobs.total_bytes == sum(map(len, new))


async def test_blob_folder_opened_again_deletes_interrupted_uploads(tmp_path: Path) -> None:
    first = await DirectoryBlobs.open(tmp_path, LIMIT)
    digest = await put(first, b"kept")
    stale = tmp_path / "blobs" / "partial" / "left.0"
    stale.write_bytes(b"half")
    second = await DirectoryBlobs.open(tmp_path, LIMIT)
    assert second.total_bytes == 4
    assert await second.held() == {digest}
    assert not stale.exists()
