"""The journal in PostgreSQL when another server takes over: a real primary and its standby, which is promoted."""

import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

import epochal.coordinator.store.postgres.database
import epochal.coordinator.store.sql.journal
from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.store.sql.database import STATEMENT_S
from epochal.coordinator.store.store import Store
from epochal.state.errors import StoreBlocked, StoreConflict
from tests.support.data.database_store import database_store
from tests.support.servers.postgres_server import PostgresServer, hosts_url, postgres_server, standby_of

FIRST, SECOND, THIRD = (JournalRecord(number, b"record %d" % number) for number in (1, 2, 3))
OTHER_SECOND = JournalRecord(2, b"another second")


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@contextlib.asynccontextmanager
async def opened(url: str, count: int = 2) -> AsyncIterator[list[Store]]:
    """Yield stores of one run; the first has begun it, with one record, and all know that."""
    stores = [await database_store(url, "run") for _ in range(count)]
    try:
        for store in stores:
            if await store.journal.load() is None:
                await store.journal.open_segment(Snapshot(0, b"start"))
                await store.journal.append(FIRST)
        yield stores
    finally:
        for store in stores:
            await store.aclose()


@pytest.mark.nightly
async def test_failover_to_a_synchronous_standby_lacks_nothing(
    primary: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.coordinator.store.sql.journal, "PASSING_S", 0.0)
    name = primary.new_database().rpartition("/")[2]
    with standby_of(primary, is_synchronous=True) as standby:
        async with opened(hosts_url([primary, standby], name)) as (one, other):
            await one.journal.append(SECOND)
            primary.kill()
            with pytest.raises(StoreBlocked):
                await one.journal.append(THIRD)
            standby.promote()
            with pytest.raises(StoreConflict, match="taken over"):
                await one.journal.append(THIRD)
            for store, known in ((one, 2), (other, 1)):
                assert await store.journal.tail(known) is None
                segment = await store.journal.load()
                assert segment is not None
                assert (segment.records, segment.may_lack_last, segment.lacks_known) == ((FIRST, SECOND), False, False)
            await one.journal.append(THIRD)
            tail = await other.journal.tail(2)
            assert tail is not None
            assert tail.records == (THIRD,)


@pytest.mark.nightly
async def test_failover_that_loses_records_is_noticed_also_by_others(primary: PostgresServer) -> None:
    name = primary.new_database().rpartition("/")[2]
    with standby_of(primary, is_synchronous=False) as standby:
        url = hosts_url([primary, standby], name)
        async with opened(url) as (one, other):
            standby.until("SELECT pg_last_wal_replay_lsn() = pg_last_wal_receive_lsn()")
            standby.stop_following()
            await one.journal.append(SECOND)
            primary.kill()
            standby.promote()
            for store, known, is_known in ((one, 2, False), (other, 1, True)):
                assert await store.journal.tail(known) is None
                segment = await store.journal.load()
                assert segment is not None
                assert (segment.records, segment.may_lack_last) == ((FIRST,), True)
                assert segment.lacks_known is not is_known
            newcomer = await database_store(url, "run")
            loaded = await newcomer.journal.load()
            await newcomer.aclose()
            assert loaded is not None
            assert (loaded.may_lack_last, loaded.lacks_known) == (True, False)
            await one.journal.append(OTHER_SECOND)
            segment = await other.journal.load()
            assert segment is not None
            assert (segment.may_lack_last, segment.lacks_known) == (False, False), "the first record notes the server"
            primary.start()  # nobody has told it that it is a primary no more
            standby.kill()
            with pytest.raises(StoreBlocked, match=r"former primary answers .* kept on timeline 2"):
                await one.journal.append(THIRD)


@pytest.mark.nightly
async def test_record_that_no_standby_takes_is_not_told_as_kept(
    primary: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.coordinator.store.sql.journal, "PASSING_S", 0.0)
    monkeypatch.setattr(epochal.coordinator.store.postgres.database, "GRACE_S", 1.0 - STATEMENT_S)
    async with opened(primary.new_database(), 1) as (store,):
        primary.wait_for_standby("absent")
        with pytest.raises(StoreBlocked, match="does not answer"):
            await store.journal.append(SECOND)
        primary.wait_for_standby("")
        with pytest.raises(StoreConflict):
            await store.journal.append(OTHER_SECOND)
        tail = await store.journal.tail(1)
        assert tail is not None
        assert tail.records == (SECOND,)
