"""Every journal keeps records alike: one suite, run on each."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.store.files.opening import open_folder_store
from epochal.coordinator.store.sql.history import StoredProof
from epochal.coordinator.store.sql.journal import Journal, Tail
from epochal.coordinator.store.store import Store
from epochal.state.errors import StoreConflict
from tests.support.data.database_store import database_store


@pytest.fixture(params=("directory", "postgres"))
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    opened: Store
    if request.param == "directory":
        opened = await open_folder_store(tmp_path, max_blob_bytes=0)
    else:
        opened = await database_store(request.getfixturevalue("database_server").url())
    yield opened.journal
    await opened.aclose()


def record(sequence: int) -> JournalRecord:
    return JournalRecord(sequence, b"record %d" % sequence)


async def begin(journal: Journal, records: int = 0) -> None:
    await journal.open_segment(Snapshot(0, b"start"))
    for sequence in range(1, records + 1):
        await journal.append(record(sequence))


async def newest(journal: Journal) -> Segment:
    segment = await journal.load()
    assert segment is not None
    return segment


async def test_journal_of_a_run_never_started_loads_nothing(journal: Journal) -> None:
    assert await journal.load() is None


async def test_journal_gives_back_snapshot_and_records_in_order(journal: Journal) -> None:
    await begin(journal, records=3)
    assert await newest(journal) == Segment(0, Snapshot(0, b"start"), (record(1), record(2), record(3)))


async def test_journal_loads_the_newest_segment_and_keeps_all_in_its_history(journal: Journal) -> None:
    await begin(journal, records=1)
    await journal.open_segment(Snapshot(1, b"later"))
    await journal.append(record(2))
    later = Segment(1, Snapshot(1, b"later"), (record(2),))
    assert await newest(journal) == later
    assert await journal.newest_segment() == 1
    assert [found async for found in journal.history()] == [Segment(0, Snapshot(0, b"start"), (record(1),)), later]


@pytest.mark.parametrize("sequence", [0, 1, 3])
async def test_journal_refuses_a_record_that_does_not_follow(journal: Journal, sequence: int) -> None:
    await begin(journal, records=1)
    with pytest.raises(StoreConflict, match=str(sequence)):
        await journal.append(record(sequence))


@pytest.mark.parametrize("sequence", [0, 5], ids=["no new record", "a jump"])
async def test_journal_refuses_a_snapshot_that_does_not_follow(journal: Journal, sequence: int) -> None:
    await begin(journal)
    with pytest.raises(StoreConflict):
        await journal.open_segment(Snapshot(sequence, b"snapshot"))


async def test_journal_after_a_conflict_keeps_what_follows(journal: Journal) -> None:
    await begin(journal)
    with pytest.raises(StoreConflict):
        await journal.append(record(2))
    await journal.append(record(1))
    assert (await newest(journal)).records == (record(1),)


async def test_journal_tells_what_follows_a_known_record(journal: Journal) -> None:
    await begin(journal)
    assert await journal.tail(0) == Tail((), 0)
    for sequence in (1, 2):
        await journal.append(record(sequence))
    assert await journal.tail(2) == Tail((), 2)


async def test_proof_takes_the_place_of_the_segments_that_it_covers(journal: Journal) -> None:
    await begin(journal, records=1)
    for sequence in (1, 2):
        await journal.open_segment(Snapshot(sequence, b"later"))
        await journal.append(record(sequence + 1))
    size_bytes = journal.size_bytes
    for count in (1, 1, 2):
        await journal.keep_proof(StoredProof(count, b"proof %d" % count))
    assert journal.size_bytes == size_bytes + 2 * len(b"proof 1")
    assert [found.segment_count for found in await journal.proofs()] == [1, 2]
    assert [found.number async for found in journal.history()] == [2]
    assert [found.number async for found in journal.history(1)] == [1, 2]
    for _ in range(2):
        await journal.drop_covered(2)
    assert await journal.proofs() == (StoredProof(2, b"proof 2"),)
    assert journal.size_bytes < size_bytes
    assert await newest(journal) == Segment(2, Snapshot(2, b"later"), (record(3),))
    await journal.open_segment(Snapshot(3, b"goes on"))
    assert [found.number async for found in journal.history()] == [2, 3]
