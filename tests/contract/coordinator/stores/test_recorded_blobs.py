"""Small blobs that come with records: one suite, run on each store that several coordinators share."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeAlias

import pytest

from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.store.sql.recorded_blobs import RecordedBlobs
from epochal.coordinator.store.store import Store
from epochal.state.errors import Refused, StoreConflict
from epochal.state.wire import Sha256, sha256_hex
from tests.support.data.database_store import database_store
from tests.support.data.stored_blobs import blob_bytes, one_piece
from tests.support.simulate.memory_store import MemoryDatabase, MemoryJournal, MemoryStore

LIMIT = 1_000_000
DATA, OTHER = bytes(range(256)) * 12, b"another"
ONE, TWO = sha256_hex(DATA), sha256_hex(OTHER)
BOTH = {ONE: DATA, TWO: OTHER}
Opening: TypeAlias = Callable[[], Awaitable[Store]]


@pytest.fixture(params=("memory", "postgres"))
async def opening(request: pytest.FixtureRequest) -> AsyncIterator[Opening]:
    """Opens the store of one run, as another coordinator each time."""
    database = MemoryDatabase()
    url = request.getfixturevalue("database_server").new_database() if request.param == "postgres" else ""
    async with AsyncExitStack() as stack:

        async def opened() -> Store:
            if url:
                store: Store = await database_store(url, "run", LIMIT)
            else:
                store = MemoryStore(LIMIT, MemoryJournal(database))
            stack.push_async_callback(store.aclose)
            return store

        yield opened


async def begun(opening: Opening) -> Store:
    """Return a store of a run that has begun, with a record that keeps both blobs."""
    store = await opening()
    await store.journal.open_segment(Snapshot(0, b"start"))
    await store.journal.append(JournalRecord(1, b"first", blobs=BOTH))
    return store


def recorded(store: Store) -> RecordedBlobs:
    return store.recorded_blobs


async def test_blobs_of_a_record_are_held_by_all_coordinators(opening: Opening) -> None:
    await begun(opening)
    other = await opening()
    for digest, data in BOTH.items():
        assert await blob_bytes(other.blobs, digest) == data
        assert await other.blobs.size(digest) == len(data)
    assert b"".join([piece async for piece in other.blobs.stream(ONE, 5, 2000)]) == DATA[5:2000]
    assert await recorded(other).read([ONE, TWO, sha256_hex(b"unknown")]) == BOTH
    assert await other.blobs.held() == BOTH.keys()
    assert await other.blobs.signed_get(ONE) is None


async def test_blob_that_is_not_held_is_not_found(opening: Opening) -> None:
    store = await begun(opening)
    unknown = sha256_hex(b"unknown")
    assert await store.blobs.size(unknown) is None
    with pytest.raises(Refused):
        await blob_bytes(store.blobs, unknown)


async def test_record_that_does_not_follow_keeps_no_blob(opening: Opening) -> None:
    store = await begun(opening)
    late = b"late"
    with pytest.raises(StoreConflict):
        await store.journal.append(JournalRecord(1, b"again", blobs={sha256_hex(late): late}))
    other = await opening()
    await other.journal.load()
    await other.journal.append(JournalRecord(2, b"second"))
    with pytest.raises(StoreConflict):
        await store.journal.append(JournalRecord(2, b"late", blobs={sha256_hex(late): late}))
    assert await store.blobs.held() == BOTH.keys()


async def test_blobs_are_counted_once_and_with_those_that_arrive(opening: Opening) -> None:
    store = await begun(opening)
    await store.journal.append(JournalRecord(2, b"second", blobs={ONE: DATA}))
    both = len(DATA) + len(OTHER)
    other = await opening()
    for found in (store, other):
        assert found.blobs.total_bytes == both
    with recorded(store).arriving(100):
        assert store.blobs.total_bytes == both + 100
    await recorded(other).drop([ONE, sha256_hex(b"unknown")], await last(other))
    await store.blobs.recount()
    assert (store.blobs.total_bytes, other.blobs.total_bytes) == (len(OTHER),) * 2


async def last(store: Store) -> int:
    """Return the number of the last record, which the store has read."""
    segment = await store.journal.load()
    assert segment is not None
    return segment.records[-1].sequence


async def test_blobs_are_not_dropped_by_who_lacks_the_last_record(opening: Opening) -> None:
    store = await begun(opening)
    other = await opening()
    known = await last(other)
    await store.journal.append(JournalRecord(2, b"the run needs it again"))
    with pytest.raises(StoreConflict):
        await recorded(other).drop([ONE], known)
    assert await store.blobs.held() == BOTH.keys()
    await recorded(other).drop([ONE], await last(other))
    assert await store.blobs.held() == {TWO}


async def test_blob_that_was_read_stays_in_memory_until_it_is_dropped(opening: Opening) -> None:
    store = await begun(opening)
    assert recorded(store).recent(ONE) is None
    assert await recorded(store).read([ONE]) == {ONE: DATA}
    assert recorded(store).recent(ONE) == DATA
    async with store.blobs.opened(ONE) as blob:
        assert bytes(blob.view()) == DATA
    await recorded(store).drop([ONE, TWO], 1)
    assert store.blobs.recent(ONE) is None
    with pytest.raises(Refused):
        await blob_bytes(store.blobs, ONE)


async def test_blob_that_was_dropped_comes_again_with_a_record(opening: Opening) -> None:
    store = await begun(opening)
    await recorded(store).drop([ONE, TWO], 1)
    assert await store.blobs.held() == frozenset()
    await store.journal.append(JournalRecord(2, b"second", blobs={ONE: DATA}))
    assert await blob_bytes(store.blobs, ONE) == DATA


async def test_blob_that_is_held_is_received_and_not_kept_twice(opening: Opening) -> None:
    store = await begun(opening)
    before = store.blobs.total_bytes
    await store.blobs.receive(ONE, len(DATA), one_piece(DATA))
    with pytest.raises(Refused):
        await store.blobs.receive(TWO, len(OTHER), one_piece(OTHER + b"and more"))
    assert store.blobs.total_bytes == before


async def test_other_blobs_find_room_beside_those_of_records(opening: Opening) -> None:
    store = await begun(opening)
    large = bytes(LIMIT - store.blobs.total_bytes)
    with pytest.raises(Refused, match="max_total_bytes"):
        await store.blobs.receive(sha256_hex(large + b"x"), len(large) + 1, one_piece(large + b"x"))
    digest = Sha256(sha256_hex(large))
    await store.blobs.receive(digest, len(large), one_piece(large))
    assert await store.blobs.held() == {*BOTH, digest}
    await store.blobs.delete(digest)
    assert await store.blobs.held() == BOTH.keys()
