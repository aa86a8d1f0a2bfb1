"""A bucket's blobs beyond what every blob store does: uploads under way, left-overs, a store that is silent."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from epochal.coordinator.store.object_store import blobs as object_blobs
from epochal.coordinator.store.object_store import objects as bucket_objects
from epochal.coordinator.store.object_store.blobs import ObjectBlobs
from epochal.coordinator.store.object_store.granted_puts import MAX_PUTS_PER_CLIENT
from epochal.coordinator.store.object_store.objects import Objects
from epochal.state.errors import Refused, StoreBlocked
from epochal.state.wire import ClientId, Sha256, sha256_hex
from tests.support.data.object_blobs import PREFIX, RUN_ID, s3_place
from tests.support.servers.data_http import HttpReply
from tests.support.servers.s3_door import DoorRequest, S3Door

LIMIT = 1000
SENDER, OTHER = ClientId("a" * 32), ClientId("b" * 32)
DATA = b"a result"
SHA256 = sha256_hex(DATA)


@pytest.fixture
async def blobs(door: S3Door) -> ObjectBlobs:
    return await ObjectBlobs.open(Objects(s3_place(door.url), RUN_ID), LIMIT)


async def keep(bucket: Any, place: str, data: bytes = DATA) -> None:
    import obstore

    await obstore.put_async(bucket, f"{PREFIX}/{place}", data)


async def keys(bucket: Any, folder: str) -> list[str]:
    import obstore

    listed = await obstore.list(bucket, f"{PREFIX}/{folder}").collect_async()
    return sorted(meta["path"].rpartition("/")[2] for meta in listed)


def number(count: int) -> Sha256:
    """A digest of nothing in particular."""
    return sha256_hex(b"%d" % count)


async def test_granted_uploads_take_room_a_few_for_each_client(blobs: ObjectBlobs) -> None:
    for count in range(2 * MAX_PUTS_PER_CLIENT):
        await blobs.signed_put(number(count), 100, SENDER)
    assert blobs.total_bytes == 100 * MAX_PUTS_PER_CLIENT
    await blobs.signed_put(number(0), 600, OTHER)
    with pytest.raises(Refused, match="max_total_bytes") as refused:
        await blobs.signed_put(number(1), 1, OTHER)
    assert refused.value.kind == "blobs-full"
    assert blobs.total_bytes == LIMIT


async def test_sweep_deletes_what_nobody_takes_in(
    blobs: ObjectBlobs, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await blobs.signed_put(SHA256, len(DATA), SENDER)
    for sender in (SENDER, OTHER):
        await keep(bucket, f"incoming/{SHA256}.{sender}")
    await blobs.drop_unfinished()
    assert len(await keys(bucket, "incoming")) == 2  # another process may have granted the younger one
    monkeypatch.setattr(object_blobs, "FORGOTTEN_AFTER_S", -60.0)
    await blobs.drop_unfinished()
    assert await keys(bucket, "incoming") == [f"{SHA256}.{SENDER}"]
    blobs.end_put(SHA256, SENDER)
    await blobs.drop_unfinished()
    assert await keys(bucket, "incoming") == []
    assert blobs.total_bytes == 0


async def test_sweep_goes_through_any_number_of_left_overs(
    blobs: ObjectBlobs, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_blobs, "FORGOTTEN_AFTER_S", -60.0)
    monkeypatch.setattr(bucket_objects, "PAGE_OBJECTS", 2)
    monkeypatch.setattr(bucket_objects, "MAX_OBJECTS", 3)
    for count in range(7):
        await keep(bucket, f"incoming/{number(count)}.{SENDER}")
    await blobs.drop_unfinished()
    assert await keys(bucket, "incoming") == []


async def test_object_overwritten_while_it_is_read_is_named(door: S3Door, bucket: Any) -> None:
    large = bytes(9 * 1024 * 1024)
    sha256 = sha256_hex(large)
    await keep(bucket, f"blobs/{sha256}", large)
    opened = await ObjectBlobs.open(Objects(s3_place(door.url), RUN_ID), len(large))
    async with opened.opened(sha256) as data:
        assert await asyncio.to_thread(lambda: data[:3]) == bytes(3)
        await keep(bucket, f"blobs/{sha256}", bytes(len(large) - 1) + b"x")
        with pytest.raises(Refused, match="was overwritten while it was read"):
            await asyncio.to_thread(lambda: data[-3:])


OTHER_BYTES = b"no resul"
assert len(OTHER_BYTES) == len(DATA)


async def held_object(blobs: ObjectBlobs, bucket: Any) -> None:
    """Puts `DATA` into the store as a client does, and has it taken in."""
    await blobs.signed_put(SHA256, len(DATA), SENDER)
    await keep(bucket, f"incoming/{SHA256}.{SENDER}")
    data = await blobs.take_in(SHA256, len(DATA), SENDER)
    assert data is not None
    await blobs.settle(SHA256, len(DATA), SENDER, await asyncio.to_thread(data.sha256))


async def test_object_is_read_once_for_each_version_however_often_it_is_doubted(
    blobs: ObjectBlobs, bucket: Any, door: S3Door
) -> None:
    await held_object(blobs, bucket)

    def reads() -> int:
        return sum(request.method == "GET" and request.path.endswith(f"blobs/{SHA256}") for request in door.requests)

    assert reads() == 1
    for _ in range(3):
        await blobs.look(SHA256, reads=True)
    assert reads() == 1, "these bytes were read when they were taken in"
    opened = await ObjectBlobs.open(Objects(s3_place(door.url), RUN_ID), LIMIT)
    for _ in range(3):
        await opened.look(SHA256, reads=True)
    assert reads() == 2, "another process has not read them yet"


async def test_bytes_put_by_hand_are_not_lost_to_other_bytes_that_arrive(blobs: ObjectBlobs, bucket: Any) -> None:
    import obstore

    async def body() -> AsyncIterator[bytes]:
        yield DATA

    await blobs.signed_put(SHA256, len(DATA), SENDER)
    await keep(bucket, f"incoming/{SHA256}.{SENDER}", OTHER_BYTES)
    data = await blobs.take_in(SHA256, len(DATA), SENDER)
    assert data is not None
    async with asyncio.TaskGroup() as tasks:
        receiving = tasks.create_task(received(blobs, body()))
        while bytes(await (await obstore.get_async(bucket, f"{PREFIX}/blobs/{SHA256}")).bytes_async()) != DATA:
            continue
        assert await blobs.size(SHA256) is None, "they lie where the check reads"
        with pytest.raises(Refused, match=f"hashes to {sha256_hex(OTHER_BYTES)}"):
            await blobs.settle(SHA256, len(DATA), SENDER, sha256_hex(OTHER_BYTES))
        assert await receiving == "body-incomplete"
    assert await blobs.size(SHA256) is None
    assert await received(blobs, body()) == ""
    await blobs.look(SHA256, reads=True)


async def received(blobs: ObjectBlobs, body: AsyncIterator[bytes]) -> str:
    """Receives `DATA` as the coordinator does; returns why it is refused."""
    try:
        await blobs.receive(SHA256, len(DATA), body)
    except Refused as refusal:
        return refusal.kind
    return ""


@pytest.mark.nightly
async def test_store_that_hangs_while_it_is_read_is_named_within_a_bound(
    door: S3Door, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_objects, "REQUEST_TIMEOUT", "6s")  # enough for those before, also on a busy machine
    monkeypatch.setattr(bucket_objects, "REPEATED_FOR_S", 0.1)
    blobs = await ObjectBlobs.open(Objects(s3_place(door.url), RUN_ID), LIMIT)
    await keep(bucket, f"incoming/{SHA256}.{SENDER}")
    data = await blobs.take_in(SHA256, len(DATA), SENDER)
    assert data is not None
    hangs = HttpReply(200, b"", announced_bytes=10, hangs=True)
    door.fault = lambda request: hangs if request.method == "GET" else None
    before_count = len(door.requests)
    with pytest.raises(StoreBlocked, match=f"s3://tokens/{PREFIX}/blobs/{SHA256}"):
        await asyncio.to_thread(data.sha256)
    assert len(door.requests) == before_count + 1, "a request that took all the time is not repeated"


async def test_store_that_hangs_is_named_within_a_bound(
    blobs: ObjectBlobs, door: S3Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_: DoorRequest) -> HttpReply:
        return HttpReply(200, b"", announced_bytes=10, hangs=True)

    door.fault = silent
    with monkeypatch.context() as patch:
        patch.setattr(bucket_objects, "ANSWER_WITHIN_S", 0.3)
        with pytest.raises(StoreBlocked, match=f"s3://tokens/{PREFIX}/owner"):
            await blobs.check_answers()
    door.fault = lambda _: None
    await blobs.check_answers()
