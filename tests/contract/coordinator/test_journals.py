"""Every store keeps a run alike: one suite, run on each."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.store.directory.journal import RunDirectory
from coordinator.store.memory import MemoryStore
from coordinator.store.protocol import JournalRecord, Snapshot, Store
from state.errors import StoreConflict

KINDS = ("directory", "memory")


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store = RunDirectory.open(tmp_path / "run") if request.param == "directory" else MemoryStore()
    yield opened
    await opened.aclose()


def record(sequence: int) -> JournalRecord:
    return JournalRecord(sequence, b"record %d" % sequence)


async def test_store_of_a_run_never_started_loads_nothing(store: Store) -> None:
    assert await store.load() is None


async def test_store_gives_back_snapshot_and_records_in_order(store: Store) -> None:
    await store.open_segment(Snapshot(0, b"start"))
    for sequence in (1, 2, 3):
        await store.append(record(sequence))
    segment = await store.load()
    assert segment is not None
    assert segment.snapshot == Snapshot(0, b"start")
    assert segment.records == (record(1), record(2), record(3))
    assert segment.torn_bytes == 0


async def test_store_loads_the_newest_segment_and_keeps_all_in_its_history(store: Store) -> None:
    await store.open_segment(Snapshot(0, b"start"))
    await store.append(record(1))
    await store.open_segment(Snapshot(1, b"later"))
    await store.append(record(2))
    segment = await store.load()
    assert segment is not None
    assert segment.snapshot == Snapshot(1, b"later")
    assert segment.records == (record(2),)
    history = [found async for found in store.history()]
    assert [found.snapshot.sequence for found in history] == [0, 1]
    assert [found.number for found in history] == [0, 1]


@pytest.mark.parametrize("sequence", [0, 1, 3])
async def test_store_refuses_a_record_that_does_not_follow(store: Store, sequence: int) -> None:
    await store.open_segment(Snapshot(0, b"start"))
    await store.append(record(1))
    with pytest.raises(StoreConflict, match=str(sequence)):
        await store.append(record(sequence))


async def test_store_refuses_a_snapshot_that_does_not_follow(store: Store) -> None:
    await store.open_segment(Snapshot(0, b"start"))
    with pytest.raises(StoreConflict):
        await store.open_segment(Snapshot(5, b"jump"))


async def test_store_wakes_who_watches_once_something_is_appended(store: Store) -> None:
    await store.open_segment(Snapshot(0, b"start"))
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(store.watch(0))
        await store.append(record(1))
        assert await watching == 1
        assert await store.watch(0) == 1


async def test_store_counts_the_journals_bytes(store: Store) -> None:
    await store.open_segment(Snapshot(0, b"start"))
    before = store.journal_bytes
    await store.append(record(1))
    assert store.journal_bytes >= before + len(record(1).body)


async def test_store_closed_twice_is_closed(store: Store) -> None:
    await store.aclose()
    await store.aclose()
