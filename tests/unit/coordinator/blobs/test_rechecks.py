"""Looks at objects that readers doubt: one read for all who ask, few at a time, and an answer in bounded time."""

import asyncio

import pytest

from epochal.coordinator.blobs.from_object_store import LOOK_WAIT_S, MAX_LOOKS, ObjectLooks
from epochal.coordinator.store.run_blobs import RunBlobs
from epochal.coordinator_client.stored_blobs import BLOB_TIMEOUT_S
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256, sha256_hex
from tests.support.simulate.memory_store import MemoryBlobs, MemoryStore
from tests.support.simulate.virtual_time import in_virtual_time

SHA256 = sha256_hex(b"doubted")


class SlowBlobs(RunBlobs):
    """Blobs of which each look takes as long as the test says, and finds what it says."""

    def __init__(self, look_s: float, *, lost: bool = False) -> None:
        super().__init__(MemoryStore(0).recorded_blobs, MemoryBlobs(100))
        self.look_s = look_s
        self.lost = lost
        self.looked: list[Sha256] = []
        self.at_a_time = self.most = 0

    async def look(self, sha256: Sha256, *, reads: bool) -> None:
        self.looked.append(sha256)
        self.at_a_time += 1
        self.most = max(self.most, self.at_a_time)
        await asyncio.sleep(self.look_s)
        self.at_a_time -= 1
        if self.lost:
            raise Refused(Refusal.NOT_FOUND, "s3://bucket/blob was overwritten")


@pytest.mark.parametrize("reads", [False, True])
@in_virtual_time
async def test_readers_that_doubt_one_blob_wait_for_one_look(reads: bool) -> None:
    blobs = SlowBlobs(1.0, lost=True)
    looks = ObjectLooks(blobs)
    found = await asyncio.gather(*(looks.look(SHA256, reads=reads) for _ in range(8)), return_exceptions=True)
    assert [getattr(error, "kind", None) for error in found] == ["not-found"] * 8
    assert blobs.looked == [SHA256]


@in_virtual_time
async def test_read_that_takes_long_is_answered_meanwhile_and_goes_on() -> None:
    blobs = SlowBlobs(1.5 * LOOK_WAIT_S, lost=True)
    looks = ObjectLooks(blobs)
    with pytest.raises(Refused) as first:
        await looks.look(SHA256, reads=True)
    with pytest.raises(Refused) as second:
        await looks.look(SHA256, reads=True)
    assert (first.value.kind, second.value.kind, len(blobs.looked)) == ("overloaded", "not-found", 1)
    assert LOOK_WAIT_S < BLOB_TIMEOUT_S, "a client waits for the answer"


@in_virtual_time
async def test_few_blobs_are_read_at_a_time_and_not_too_many_wait() -> None:
    blobs = SlowBlobs(0.1)
    looks = ObjectLooks(blobs)
    async with asyncio.TaskGroup() as tasks:
        for number in range(MAX_LOOKS):
            tasks.create_task(looks.look(sha256_hex(b"%d" % number), reads=True))
        await asyncio.sleep(0)
        with pytest.raises(Refused) as refused:
            await looks.look(SHA256, reads=True)
    assert (refused.value.kind, blobs.most, len(blobs.looked)) == ("overloaded", 1, MAX_LOOKS)
    await looks.look(SHA256, reads=True)
    await looks.aclose()
