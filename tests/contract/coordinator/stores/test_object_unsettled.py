"""Objects that nobody has checked yet, or whose check ends in a failure: never believed, and swept."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import obstore
import pytest

from epochal.coordinator.store.object_store import blobs as object_blobs
from epochal.coordinator.store.object_store.blobs import ObjectBlobs
from epochal.coordinator.store.object_store.objects import Objects
from epochal.state.errors import Refused, StoreBlocked
from epochal.state.wire import ClientId, sha256_hex
from tests.support.data.object_blobs import PREFIX, RUN_ID, s3_place
from tests.support.servers.data_http import HttpReply
from tests.support.servers.s3_door import DoorRequest, S3Door, s3_error

LIMIT = 100_000
SENDER, OTHER = ClientId("a" * 32), ClientId("b" * 32)
DATA = b"a result"
WRONG = b"no resul"
SHA256 = sha256_hex(DATA)
INCOMING, BLOB = f"{PREFIX}/incoming/{SHA256}.{SENDER}", f"{PREFIX}/blobs/{SHA256}"
REFUSED = s3_error(403, "AccessDenied")


async def opened(door: S3Door) -> ObjectBlobs:
    return await ObjectBlobs.open(Objects(s3_place(door.url), RUN_ID), LIMIT)


@pytest.fixture
async def blobs(door: S3Door) -> ObjectBlobs:
    return await opened(door)


async def put(blobs: ObjectBlobs, bucket: Any, data: bytes) -> None:
    """Puts an object into the store as a client does that was told to."""
    await blobs.signed_put(SHA256, len(DATA), SENDER)
    await obstore.put_async(bucket, INCOMING, data)


async def taken(blobs: ObjectBlobs) -> None:
    """Takes it in, checks it, and settles it."""
    data = await blobs.take_in(SHA256, len(DATA), SENDER)
    assert data is not None
    await blobs.settle(SHA256, len(DATA), SENDER, await asyncio.to_thread(data.sha256))


async def paths(bucket: Any) -> list[str]:
    return sorted(meta["path"] for meta in await obstore.list(bucket, PREFIX).collect_async())


def is_delete(request: DoorRequest, folder: str = "") -> bool:
    return request.method == "POST" and "delete" in request.query and folder.encode() in request.body


def is_copy(request: DoorRequest) -> bool:
    return "x-amz-copy-source" in request.headers


async def test_object_that_grows_before_it_is_copied_is_refused_and_deleted(
    blobs: ObjectBlobs, bucket: Any, door: S3Door
) -> None:
    def grows(request: DoorRequest) -> None:
        if is_copy(request):
            obstore.put(bucket, INCOMING, DATA + bytes(9000))

    await put(blobs, bucket, DATA)
    door.fault = grows
    with pytest.raises(Refused, match="has 9008 bytes; 8 were announced") as refused:
        await taken(blobs)
    assert refused.value.kind == "blob-too-large"
    assert (await paths(bucket), await blobs.held(), blobs.total_bytes) == ([], frozenset(), 0)


async def test_only_the_copy_whose_size_was_compared_is_read(blobs: ObjectBlobs, bucket: Any) -> None:
    await put(blobs, bucket, DATA)
    data = await blobs.take_in(SHA256, len(DATA), SENDER)
    assert data is not None
    await obstore.put_async(bucket, BLOB, DATA + bytes(9000))
    with pytest.raises(Refused, match="was overwritten"):
        await asyncio.to_thread(data.sha256)


def copies_but_fails(bucket: Any, door: S3Door) -> None:
    """The store copies objects, and its answer gets lost."""

    def lost(request: DoorRequest) -> HttpReply | None:
        if not is_copy(request):
            return None
        obstore.copy(bucket, INCOMING, BLOB)
        return REFUSED

    door.fault = lost


def refuses_to_delete(door: S3Door) -> None:
    door.fault = lambda request: REFUSED if is_delete(request) else None


async def swept(blobs: ObjectBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps when what clients have put is old."""
    with monkeypatch.context() as patch:
        patch.setattr(object_blobs, "FORGOTTEN_AFTER_S", -60.0)
        await blobs.drop_unfinished()


@pytest.mark.parametrize("fails", ["copy", "delete"])
async def test_unchecked_object_is_not_held_and_swept_before_its_mark(
    blobs: ObjectBlobs, bucket: Any, door: S3Door, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    await put(blobs, bucket, WRONG)
    if fails == "copy":
        copies_but_fails(bucket, door)
    else:
        refuses_to_delete(door)
    with pytest.raises(StoreBlocked):
        await taken(blobs)
    assert (await paths(bucket), await blobs.held()) == ([BLOB, INCOMING], frozenset())
    blobs.end_put(SHA256, SENDER)
    refuses_to_delete(door)
    with pytest.raises(StoreBlocked):
        await swept(blobs, monkeypatch)
    assert await paths(bucket) == [BLOB, INCOMING]
    door.fault = lambda _: None
    assert await (await opened(door)).held() == frozenset(), "as long as there is a mark, it is read"
    await obstore.put_async(bucket, BLOB, WRONG)
    await swept(blobs, monkeypatch)
    assert (await paths(bucket), blobs.total_bytes) == ([], 0)


async def test_object_whose_copy_seemed_to_fail_is_taken_in_again(
    blobs: ObjectBlobs, bucket: Any, door: S3Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(blobs, bucket, DATA)
    copies_but_fails(bucket, door)
    with pytest.raises(StoreBlocked):
        await taken(blobs)
    door.fault = lambda _: None
    await taken(blobs)
    await swept(blobs, monkeypatch)
    assert (await paths(bucket), blobs.total_bytes) == ([BLOB], len(DATA))
    await blobs.delete(SHA256)
    assert blobs.total_bytes == 0


async def test_mark_goes_no_earlier_than_what_was_copied_from_it(blobs: ObjectBlobs, bucket: Any, door: S3Door) -> None:
    await put(blobs, bucket, WRONG)
    copies_but_fails(bucket, door)
    with pytest.raises(StoreBlocked):
        await taken(blobs)
    door.fault = lambda request: REFUSED if is_delete(request, "/blobs/") else None
    await obstore.put_async(bucket, INCOMING, WRONG[:-1])
    with pytest.raises(Refused, match="has 7 bytes"):
        await taken(blobs)
    assert await paths(bucket) == [BLOB, INCOMING]


async def test_mark_of_an_object_under_check_is_kept(
    blobs: ObjectBlobs, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await obstore.put_async(bucket, INCOMING, DATA)
    data = await blobs.take_in(SHA256, len(DATA), SENDER)
    assert data is not None
    await swept(blobs, monkeypatch)
    assert await paths(bucket) == [BLOB, INCOMING]
    await blobs.settle(SHA256, len(DATA), SENDER, SHA256)
    assert await paths(bucket) == [BLOB]


async def body() -> AsyncIterator[bytes]:
    yield DATA


async def test_received_blob_is_counted_until_it_is_held(blobs: ObjectBlobs, door: S3Door) -> None:
    counted = []

    def looked(request: DoorRequest) -> None:
        if request.method == "HEAD":
            counted.append(blobs.total_bytes)

    door.fault = looked
    await blobs.receive(SHA256, len(DATA), body())
    assert (counted, blobs.total_bytes) == ([len(DATA)], len(DATA))
