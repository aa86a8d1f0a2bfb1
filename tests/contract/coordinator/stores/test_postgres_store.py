"""The store in PostgreSQL when its server, the network or another coordinator is in the way: a real server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import epochal.coordinator.store.sql.journal
from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.run.opening import signing_key_of
from epochal.coordinator.store.open import open_store_reader, runs_in
from epochal.coordinator.store.postgres.address import parse_address
from epochal.coordinator.store.replication import Heartbeats, Replication
from epochal.coordinator.store.sql.schema import SCHEMA_NUMBER, hash_of_record, hash_of_snapshot
from epochal.coordinator.store.store import Store
from epochal.state.errors import InvalidInput, StoreBlocked, StoreConflict, StoreFailed
from tests.support.bounds import BOUND_S
from tests.support.data.database_store import database_store
from tests.support.servers.database_relay import DatabaseRelay, database_relay
from tests.support.servers.postgres_server import PostgresServer

FIRST, SECOND = JournalRecord(1, b"first"), JournalRecord(2, b"second")


@pytest.fixture
def url(database_server: PostgresServer) -> str:
    return database_server.new_database()


@asynccontextmanager
async def opened(*urls: str) -> AsyncIterator[list[Store]]:
    """Yield the stores of one run at these URLs."""
    stores = [await database_store(url, "run") for url in urls]
    try:
        yield stores
    finally:
        for store in stores:
            await store.aclose()


@asynccontextmanager
async def relayed(url: str, server: PostgresServer) -> AsyncIterator[tuple[DatabaseRelay, Store]]:
    """Yield a relay before the server, and the store of a run by way of it."""
    async with database_relay(server) as relay, opened(relay.url(server, url.rpartition("/")[2])) as (store,):
        yield relay, store


def meetings_of(store: Store) -> Replication:
    assert store.replication is not None
    return store.replication


async def bodies(url: str) -> list[bytes]:
    """Return the records that the database holds."""
    reader = open_store_reader(url)
    return [record.body async for segment in reader.journal.history() for record in segment.records]


# Answers that are lost


async def test_record_whose_answer_is_lost_is_found_and_not_kept_twice(
    url: str, database_server: PostgresServer
) -> None:
    async with relayed(url, database_server) as (relay, store):
        await store.journal.open_segment(Snapshot(0, b"start"))
        relay.lost_answers = 1
        await store.journal.append(FIRST)
        assert relay.arrived.is_set()
        await store.journal.append(SECOND)
    assert await bodies(url) == [b"first", b"second"]


async def test_record_that_arrives_late_after_its_repetition_changes_nothing(
    url: str, database_server: PostgresServer
) -> None:
    async with relayed(url, database_server) as (relay, store):
        await store.journal.open_segment(Snapshot(0, b"start"))
        relay.delayed = 1
        await store.journal.append(FIRST)
        relay.arrive.set()
        async with asyncio.timeout(BOUND_S):
            await relay.arrived.wait()
        await store.journal.append(SECOND)
    assert await bodies(url) == [b"first", b"second"]


async def test_record_in_doubt_for_long_is_blocked_and_found_by_who_reads(
    url: str, database_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.coordinator.store.sql.journal, "PASSING_S", 0.0)
    async with relayed(url, database_server) as (relay, store):
        await store.journal.open_segment(Snapshot(0, b"start"))
        relay.lost_answers = 1
        with pytest.raises(StoreBlocked):
            await store.journal.append(FIRST)
        with pytest.raises(StoreConflict):
            await store.journal.append(JournalRecord(1, b"another"))
        tail = await store.journal.tail(0)
        assert tail is not None
        assert tail.records == (FIRST,)
        await store.journal.append(SECOND)
    assert await bodies(url) == [b"first", b"second"]


# Several coordinators


async def test_journal_of_two_coordinators_takes_the_record_of_the_first(url: str) -> None:
    async with opened(url, url) as (one, other):
        await one.journal.open_segment(Snapshot(0, b"start"))
        assert await other.journal.load() is not None
        await one.journal.append(FIRST)
        with pytest.raises(StoreConflict, match="appended first"):
            await other.journal.append(JournalRecord(1, b"late"))
        tail = await other.journal.tail(0)
        assert tail is not None
        assert (tail.records, tail.segment_records) == ((FIRST,), 1)
        await other.journal.append(SECOND)
        with pytest.raises(StoreConflict):
            await one.journal.open_segment(Snapshot(1, b"too early"))
    assert await bodies(url) == [b"first", b"second"]


async def test_two_coordinators_that_begin_a_run_at_once_begin_it_once(url: str) -> None:
    async with opened(url, url) as stores:

        async def begin(store: Store, body: bytes) -> bool:
            try:
                await store.journal.open_segment(Snapshot(0, body))
            except StoreConflict:
                return False
            return True

        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(begin(store, b"%d" % number)) for number, store in enumerate(stores)]
        assert sorted(task.result() for task in begun) == [False, True]


async def test_journal_of_a_database_that_was_taken_back_is_not_appended_to(
    url: str, database_server: PostgresServer
) -> None:
    async with opened(url) as (store,):
        await store.journal.open_segment(Snapshot(0, b"start"))
        await store.journal.append(FIRST)
        before = hash_of_snapshot(b"", 0, b"start")
        other = hash_of_record(before, 1, 0, b"other").hex()
        database_server.execute(f"UPDATE epochal_records SET body = 'other', hash = '\\x{other}'", url)
        database_server.execute(f"UPDATE epochal_runs SET head = '\\x{other}'", url)
        with pytest.raises(StoreConflict):
            await store.journal.append(SECOND)
        assert await store.journal.tail(1) is None
        loaded = await store.journal.load()
        assert loaded is not None
        assert loaded.records == (JournalRecord(1, b"other"),)


async def test_record_that_was_changed_in_the_database_is_named(url: str, database_server: PostgresServer) -> None:
    async with opened(url) as (store,):
        await store.journal.open_segment(Snapshot(0, b"start"))
        await store.journal.append(FIRST)
        database_server.execute("UPDATE epochal_records SET body = 'other'", url)
        with pytest.raises(StoreFailed, match="record 1 of run is damaged"):
            await store.journal.load()
        database_server.execute("DELETE FROM epochal_records", url)
        with pytest.raises(StoreFailed, match="lacks record 1"):
            await store.journal.load()


async def test_clock_of_a_store_is_the_databases(url: str, database_server: PostgresServer) -> None:
    class Wrong:
        def wall_s(self) -> float:
            return 1.0

        def monotonic_s(self) -> float:
            return 7.0

    async with opened(url) as (store,):
        ((now_s,),) = database_server.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        assert abs(store.place.clock(Wrong()).wall_s() - now_s) < BOUND_S
        assert store.place.clock(Wrong()).monotonic_s() == 7.0


# A server in the way


async def test_database_that_only_reads_blocks_and_later_takes_the_record(
    url: str, database_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.coordinator.store.sql.journal, "PASSING_S", 0.0)
    name = url.rpartition("/")[2]
    async with opened(url) as (store,):
        await store.journal.open_segment(Snapshot(0, b"start"))
        database_server.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        database_server.disconnect(name)
        with pytest.raises(StoreBlocked):  # this only finds the connection gone
            await store.journal.append(FIRST)
        with pytest.raises(StoreBlocked, match="read-only"):
            await store.journal.append(FIRST)
        with pytest.raises(StoreBlocked):
            await store.check_room(1)
        database_server.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await store.check_room(1)
        await store.journal.append(FIRST)


async def test_lost_connections_are_replaced_without_a_word(url: str, database_server: PostgresServer) -> None:
    async with opened(url) as (store,):
        await store.journal.open_segment(Snapshot(0, b"start"))
        for record in (FIRST, SECOND):
            database_server.disconnect(url.rpartition("/")[2])
            await store.journal.append(record)
            await store.place.save_state_file("state")
            await meetings_of(store).meet(Heartbeats())
    assert await bodies(url) == [b"first", b"second"]


async def test_role_without_privileges_serves_and_waits_for_connections(
    url: str, database_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochal.coordinator.store.sql.journal, "PASSING_S", 0.0)
    name = url.rpartition("/")[2]
    role = name.replace("runs", "role")
    database_server.execute(f"CREATE ROLE {role} LOGIN")
    database_server.execute(f"CREATE SCHEMA AUTHORIZATION {role}", url)
    async with opened(url.replace("//postgres@", f"//{role}@")) as (store,):
        await store.journal.open_segment(Snapshot(0, b"start"))
        await store.note_served()
        async with store.place.sweeping() as is_allowed:
            assert is_allowed
        database_server.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
        async with store.place.sweeping() as is_allowed:
            assert not is_allowed, "there is no connection for its lock"
        await store.journal.append(FIRST)
        database_server.disconnect(name)
        with pytest.raises(StoreBlocked):  # this only finds the connection gone
            await store.journal.append(SECOND)
        with pytest.raises(StoreBlocked, match="too many connections"):
            await store.journal.append(SECOND)
        database_server.execute(f"ALTER ROLE {role} CONNECTION LIMIT 5")
        await store.journal.append(SECOND)


@pytest.mark.nightly
async def test_statement_that_waits_for_a_lock_ends_in_time(url: str, database_server: PostgresServer) -> None:
    import psycopg

    async with opened(url) as (store,):
        await store.journal.open_segment(Snapshot(0, b"start"))
        with psycopg.connect(url) as connection:
            connection.execute("SELECT FROM epochal_runs FOR UPDATE")
            with pytest.raises(StoreBlocked, match="timeout"):
                await store.journal.append(FIRST)
        await store.journal.append(FIRST)


async def test_password_of_a_database_is_in_no_message() -> None:
    with pytest.raises(StoreBlocked) as failed:
        await database_store("postgresql://user:secret@127.0.0.1:1/runs?connect_timeout=2", "run")
    assert "secret" not in str(failed.value)
    assert "postgresql://user@127.0.0.1:1/runs" in str(failed.value)


# Tables


def applied(url: str, server: PostgresServer) -> list[int]:
    """Return the versions of the tables."""
    return [number for (number,) in server.execute("SELECT number FROM epochal_schema ORDER BY number", url)]


async def test_key_of_a_run_that_others_serve_is_not_replaced(url: str) -> None:
    serving, starting = await database_store(url, "run"), await database_store(url, "run")
    key = await serving.keys.create_private_key()
    await meetings_of(serving).meet(Heartbeats())
    with pytest.raises(InvalidInput, match="--new-coordinator-key: other coordinators serve the run"):
        await signing_key_of(starting, anew=True)
    assert await starting.keys.private_key() == key
    await meetings_of(serving).leave()
    await signing_key_of(starting, anew=True)
    assert await starting.keys.private_key() != key
    for store in (serving, starting):
        await store.aclose()


async def test_coordinators_that_start_at_once_make_the_tables_once(url: str, database_server: PostgresServer) -> None:
    async with asyncio.TaskGroup() as tasks:
        opening = [tasks.create_task(database_store(url, "run")) for _ in range(4)]
    for task in opening:
        await task.result().aclose()
    assert applied(url, database_server) == [SCHEMA_NUMBER]


async def test_tables_of_another_version_are_refused(url: str, database_server: PostgresServer) -> None:
    async with opened(url):
        pass
    database_server.execute(f"UPDATE epochal_schema SET number = {SCHEMA_NUMBER + 1}", url)
    with pytest.raises(InvalidInput, match=f"version {SCHEMA_NUMBER + 1}, made by another version of Epochal"):
        await database_store(url, "run")
    with pytest.raises(InvalidInput, match="another version"):
        open_store_reader(url)


async def test_reader_of_a_database_wants_one_run_named(url: str) -> None:
    with pytest.raises(InvalidInput, match="holds no run"):
        open_store_reader(url)
    for run_id in ("one", "two"):
        store = await database_store(url, run_id)
        await store.journal.open_segment(Snapshot(0, run_id.encode()))
        await store.aclose()
    for wrong, said in ((url, "names no run"), (f"{url}?run=three", "names run 'three'")):
        with pytest.raises(InvalidInput, match=f"{said}.*'one', 'two'"):
            open_store_reader(wrong)
    assert [segment.snapshot.body async for segment in open_store_reader(f"{url}?run=two").journal.history()] == [
        b"two"
    ]
    assert [run.run_id for run in runs_in(url)] == ["one", "two"]


@pytest.mark.parametrize("query", ["run=", "run=a&run=b", "unheard=of", "blobs="])
def test_url_of_a_database_with_a_wrong_parameter_is_refused(query: str) -> None:
    with pytest.raises(InvalidInput, match="allowed: postgresql://"):
        parse_address(f"postgresql://user:secret@host/runs?{query}")


async def test_restored_tables_are_known_to_be_a_backup(url: str, database_server: PostgresServer) -> None:
    async with opened(url) as (store,):
        await store.journal.open_segment(Snapshot(0, b"start"))
        await store.note_served()
    async with opened(url) as (store,):
        assert not store.is_backup
    restored = database_server.new_database()
    database_server.copy(url, restored)
    async with opened(restored) as (store,):
        assert store.is_backup
        assert await store.journal.load() is not None
        await store.note_served()
    async with opened(restored) as (store,):
        assert not store.is_backup
