"""Sweeps: what they delete, and how long they wait for somebody who copies the run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from epochal.coordinator.machine.run import new_run
from epochal.coordinator.run.maintenance import MAX_SWEEP_DELAY_S, STATE_FILE_S, Maintenance
from epochal.state.documents import CheckpointRef
from epochal.state.errors import StoreFailed
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.states import state_file
from tests.support.data.stored_blobs import one_piece
from tests.support.simulate.memory_store import MemoryStore
from tests.support.simulate.virtual_time import in_virtual_time

MAX_BLOB_BYTES = 1_000
SMALL, LARGE = b"x" * 10, b"x" * 900
"""Blobs that nobody needs: one that leaves room, and one that takes nearly all."""


@asynccontextmanager
async def maintained(blob: bytes) -> AsyncIterator[tuple[MemoryStore, Maintenance]]:
    """Yield a store that holds this blob, and the maintenance of its run."""
    state = state_file(blobs__max_total_bytes=MAX_BLOB_BYTES)
    run = new_run(state, lineage="ab" * 16, coordinator_key="cd" * 32, now_s=1.0)
    store = MemoryStore(MAX_BLOB_BYTES)
    await store.blobs.receive(sha256_hex(blob), len(blob), one_piece(blob))

    def fail(error: StoreFailed) -> None:
        raise error

    maintenance = Maintenance(store, lambda: run, fail)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(maintenance.run())
        yield store, maintenance
        running.cancel()


@in_virtual_time
async def test_state_file_is_written_once_for_the_rounds_of_a_second() -> None:
    async with maintained(SMALL) as (store, maintenance):
        maintenance.phase_changed(RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
        await asyncio.sleep(STATE_FILE_S / 2)
        maintenance.phase_changed(RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
        assert store.place.state_files == []
        await asyncio.sleep(STATE_FILE_S)
        assert len(store.place.state_files) == 1


@in_virtual_time
async def test_state_file_of_another_phase_is_written_at_once() -> None:
    async with maintained(SMALL) as (store, maintenance):
        maintenance.phase_changed(RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
        maintenance.phase_changed(RunState.ROUND_WITNESS, RunState.COOLDOWN)
        await asyncio.sleep(0.01)
        assert len(store.place.state_files) == 1


@in_virtual_time
async def test_sweep_waits_until_nobody_copies_the_run() -> None:
    async with maintained(SMALL) as (store, maintenance):
        async with store.place.copying():
            maintenance.sweep()
            await asyncio.sleep(MAX_SWEEP_DELAY_S / 2)
            assert store.blobs.total_bytes == len(SMALL)
        await asyncio.sleep(5)
        assert store.blobs.total_bytes == 0


@in_virtual_time
async def test_sweep_waits_for_a_bounded_time_however_often_it_is_due() -> None:
    async with maintained(SMALL) as (store, maintenance), store.place.copying():
        for _ in range(10):
            assert store.blobs.total_bytes == len(SMALL)
            maintenance.sweep()
            await asyncio.sleep(MAX_SWEEP_DELAY_S / 10)
        await asyncio.sleep(5)
        assert store.blobs.total_bytes == 0


@in_virtual_time
async def test_sweep_does_not_wait_where_blobs_are_near_their_bound() -> None:
    async with maintained(LARGE) as (store, maintenance), store.place.copying():
        maintenance.sweep()
        await asyncio.sleep(5)
        assert store.blobs.total_bytes == 0


@in_virtual_time
async def test_blob_that_was_announced_to_another_coordinator_is_not_swept() -> None:
    state = state_file(blobs__max_total_bytes=MAX_BLOB_BYTES)
    runs = [new_run(state, lineage="ab" * 16, coordinator_key="cd" * 32, now_s=1.0)]
    store = MemoryStore(MAX_BLOB_BYTES)
    for blob in (SMALL, LARGE):
        await store.blobs.receive(sha256_hex(blob), len(blob), one_piece(blob))

    async def catch_up() -> None:
        reference = CheckpointRef(0, sha256_hex(LARGE), len(LARGE), Sha256("ef" * 32))
        runs.append(runs[0].with_parts(replace(runs[0].models, checkpoints=(reference,))))

    maintenance = Maintenance(store, lambda: runs[-1], lambda _: None, catch_up)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(maintenance.run())
        maintenance.sweep()
        await asyncio.sleep(5)
        running.cancel()
    assert await store.blobs.held() == {sha256_hex(LARGE)}
