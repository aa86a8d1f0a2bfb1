"""Room is made by a sweep that is due, then by uploads that wait for their rest, and only where that suffices."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.coordinator.blobs.resumable_uploads import ResumableUploads
from epochal.coordinator.blobs.transfers import Transfer
from epochal.coordinator.machine.run import new_run
from epochal.coordinator.machine.views import ExpectedBlob, ExpectedPart
from epochal.coordinator.run.maintenance import Maintenance
from epochal.coordinator.store.files.opening import open_folder_store
from epochal.coordinator.store.store import Store
from epochal.state.errors import Refused, StoreBlocked, StoreFailed
from epochal.state.messages.requests import CheckpointReport
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, sha256_hex
from tests.support.data.recording_disk import FailingDisk
from tests.support.data.states import state_file
from tests.support.servers.cutting_relay import until

MAX_BLOB_BYTES = 10_000
"""At 8000 bytes an epoch ends."""
PAUSED_BYTES = 1000
BOUND_S = 20.0


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    for piece in data:
        yield piece


async def broken(data: bytes) -> AsyncIterator[bytes]:
    yield data
    raise Refused(Refusal.BODY_INCOMPLETE, "the connection ended")


class Room:
    """The blobs of a run on a disk, with uploads that wait for their rest."""

    def __init__(self, store: Store, disk: FailingDisk) -> None:
        self.disk = disk
        state = state_file(blobs__max_total_bytes=MAX_BLOB_BYTES)
        self.run = new_run(state, lineage="ab" * 16, coordinator_key="cd" * 32, now_s=1.0)
        self.blobs = store.blobs
        self.failures: list[StoreFailed] = []
        self.maintenance = Maintenance(store, lambda: self.run, self.failures.append)
        self.uploads = ResumableUploads(self._keep, self.failures.append)
        self.maintenance.paused = self.uploads

    async def _keep(self, expected: ExpectedBlob, body: AsyncIterator[bytes]) -> None:
        await self.blobs.receive(expected.sha256, expected.size_bytes, body)

    async def hold(self, size_bytes: int) -> None:
        """Hold a blob that nobody needs; only a sweep deletes it."""
        data = os.urandom(size_bytes)
        await self.blobs.receive(sha256_hex(data), len(data), pieces(data))

    async def pause(self, *clients: int) -> None:
        """Have an upload of each of these clients wait for its rest."""
        for client in clients:
            claim = CheckpointReport(1, sha256_hex(b""), sha256_hex(b""), PAUSED_BYTES + 1)
            expected = ExpectedPart(ClientId(f"{client:032x}"), sha256_hex(b""), PAUSED_BYTES + 1, claim)
            transfer = Transfer(expected.client_id, asyncio.get_running_loop().time, 1.0)
            with pytest.raises(Refused, match="the connection ended"):
                await self.uploads.receive(expected, transfer, broken(bytes(PAUSED_BYTES)), None)

    def paused(self) -> list[int]:
        """Whose uploads wait."""
        return [int(client, 16) for client, _ in self.uploads.under_way()]


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    disk = FailingDisk()
    store = await open_folder_store(tmp_path, MAX_BLOB_BYTES, disk=disk.disk)
    found = Room(store, disk)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(found.maintenance.run())
        yield found
        await found.uploads.aclose()
        running.cancel()
    await store.aclose()


async def test_due_sweep_makes_room_before_any_upload_gives_way(room: Room) -> None:
    await room.hold(5000)
    await room.pause(1, 2, 3)
    room.maintenance.sweep()
    assert await room.maintenance.make_room(4000)
    assert (room.blobs.total_bytes, room.paused()) == (3 * PAUSED_BYTES, [1, 2, 3])


async def test_oldest_uploads_give_way_where_no_sweep_is_due(room: Room) -> None:
    await room.hold(5000)
    await room.pause(1, 2, 3)
    assert await room.maintenance.make_room(3500)
    assert (room.blobs.total_bytes, room.paused()) == (6000, [3])


async def test_uploads_give_way_after_a_sweep_that_does_not_suffice(room: Room) -> None:
    await room.hold(5000)
    await room.pause(1, 2, 3)
    room.maintenance.sweep()
    assert await room.maintenance.make_room(7500)
    assert (room.blobs.total_bytes, room.paused()) == (2000, [2, 3])


async def test_no_upload_gives_way_where_all_of_them_do_not_suffice(room: Room) -> None:
    await room.hold(5000)
    await room.pause(1, 2, 3)
    assert not await room.maintenance.make_room(6000)
    assert room.paused() == [1, 2, 3]


async def test_waiting_uploads_end_no_epoch_where_they_can_give_way(room: Room) -> None:
    await room.hold(6000)
    await room.pause(1, 2)
    assert await room.maintenance.stays_below_bound()
    assert room.paused() == [1, 2]
    await room.pause(3)
    assert await room.maintenance.stays_below_bound()
    assert room.paused() == [2, 3]
    await room.hold(2000)
    assert await room.maintenance.stays_below_bound()
    assert room.paused() == []
    await room.hold(1)
    assert not await room.maintenance.stays_below_bound()


async def test_no_upload_gives_way_to_an_epoch_that_ends_all_the_same(room: Room) -> None:
    await room.hold(8500)
    await room.pause(1)
    assert not await room.maintenance.stays_below_bound()
    assert room.paused() == [1]


@pytest.mark.parametrize("phase", [RunState.COOLDOWN, RunState.ROUND_TRAIN])
async def test_checkpoint_that_waits_for_its_rest_does_not_give_way_to_itself(room: Room, phase: RunState) -> None:
    await room.hold(7500)
    await room.pause(1)
    near_bound = phase is not RunState.COOLDOWN
    models = replace(room.run.models, blobs_near_bound=near_bound)
    room.run = room.run.with_parts(replace(room.run.clock, phase=phase), models)
    assert not await room.maintenance.stays_below_bound()
    assert room.paused() == [1]


async def test_uploads_give_way_to_one_that_runs_out_of_room_on_its_way(room: Room) -> None:
    await room.hold(5000)
    begins, goes_on, data = asyncio.Event(), asyncio.Event(), os.urandom(4000)

    async def body() -> AsyncIterator[bytes]:
        yield data[:1000]
        begins.set()
        await goes_on.wait()
        yield data[1000:2000]
        yield data[2000:]

    whole = room.maintenance.with_room(body(), len(data), 500)
    receiving = asyncio.create_task(room.blobs.receive(sha256_hex(data), len(data), whole, 500))
    await begins.wait()
    await room.pause(1, 2, 3)
    goes_on.set()
    await receiving
    assert (room.blobs.total_bytes, room.paused()) == (9000, [])


async def test_full_disk_ends_one_waiting_upload_at_a_time(room: Room) -> None:
    await room.pause(1, 2)
    await room.maintenance.make_room_on_disk()
    assert room.paused() == [2]
    await room.hold(100)
    room.maintenance.sweep()
    await room.maintenance.make_room_on_disk()
    async with asyncio.timeout(BOUND_S):
        await until(lambda: room.blobs.total_bytes == PAUSED_BYTES)
    assert room.paused() == [2]


async def test_sweep_is_done_also_while_the_disk_is_full(room: Room) -> None:
    """The state file cannot be kept then, and the sweep may be what helps."""
    await room.hold(5000)
    room.disk.write_errno = errno.ENOSPC
    room.maintenance.state_file_changed()
    room.maintenance.sweep()
    async with asyncio.timeout(BOUND_S):
        await until(lambda: room.blobs.total_bytes == 0)
    assert [type(failure) for failure in room.failures] == [StoreBlocked]
