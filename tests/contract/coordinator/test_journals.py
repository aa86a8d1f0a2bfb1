"""Every journal keeps records alike: one suite, run on each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from coordinator.store.directory.run_directory import RunDirectory
from coordinator.store.journal import Journal, JournalRecord, Snapshot
from coordinator.store.memory import MemoryJournal
from state.errors import StoreConflict


@pytest.fixture(params=("directory", "memory"))
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    opened = await RunDirectory.open(tmp_path, max_blob_bytes=0)
    yield opened.journal
    await opened.aclose()


def record(sequence: int) -> JournalRecord:
    return JournalRecord(sequence, b"record %d" % sequence)


async def test_journal_of_a_run_never_started_loads_nothing(journal: Journal) -> None:
    assert await journal.load() is None


async def test_journal_gives_back_snapshot_and_records_in_order(journal: Journal) -> None:
    await journal.open_segment(Snapshot(0, b"start"))
    for sequence in (1, 2, 3):
        await journal.append(record(sequence))
    segment = await journal.load()
    assert segment is not None
    assert segment.snapshot == Snapshot(0, b"start")
    assert segment.records == (record(1), record(2), record(3))


async def test_journal_loads_the_newest_segment_and_keeps_all_in_its_history(journal: Journal) -> None:
    await journal.open_segment(Snapshot(0, b"start"))
    await journal.append(record(1))
    await journal.open_segment(Snapshot(1, b"later"))
    await journal.append(record(2))
    segment = await journal.load()
    assert segment is not None
    assert segment.snapshot == Snapshot(1, b"later")
    assert segment.records == (record(2),)
    history = [found async for found in journal.history()]
    assert [found.snapshot.sequence for found in history] == [0, 1]
    assert [found.number for found in history] == [0, 1]


@pytest.mark.parametrize("sequence", [0, 1, 3])
async def test_journal_refuses_a_record_that_does_not_follow(journal: Journal, sequence: int) -> None:
    await journal.open_segment(Snapshot(0, b"start"))
    await journal.append(record(1))
    with pytest.raises(StoreConflict, match=str(sequence)):
        await journal.append(record(sequence))


async def test_journal_refuses_a_snapshot_that_does_not_follow(journal: Journal) -> None:
    await journal.open_segment(Snapshot(0, b"start"))
    with pytest.raises(StoreConflict):
        await journal.open_segment(Snapshot(5, b"jump"))


async def test_journal_refuses_a_snapshot_that_covers_no_record(journal: Journal) -> None:
    await journal.open_segment(Snapshot(0, b"start"))
    with pytest.raises(StoreConflict):
        await journal.open_segment(Snapshot(0, b"another start"))


async def test_journal_after_a_conflict_keeps_what_follows(journal: Journal) -> None:
    await journal.open_segment(Snapshot(0, b"start"))
    with pytest.raises(StoreConflict):
        await journal.append(record(2))
    await journal.append(record(1))
    segment = await journal.load()
    assert segment is not None
    assert segment.records == (record(1),)
