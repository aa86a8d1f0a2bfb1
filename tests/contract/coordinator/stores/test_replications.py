"""Coordinators of one run meet alike in every store that they can share: one suite, run on each."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from epochal.coordinator.machine.journal_records import JournalRecord, Snapshot
from epochal.coordinator.store.replication import Heartbeats, Replication
from epochal.coordinator.store.store import Store
from epochal.state.wire import ClientId
from tests.support.bounds import BOUND_S
from tests.support.data.database_store import database_store
from tests.support.simulate.memory_store import (
    MemoryDatabase,
    MemoryJournal,
    MemoryMeetings,
    MemoryReplication,
    MemoryStore,
)

ONE, OTHER = ClientId("one"), ClientId("other")


@pytest.fixture(params=("memory", "postgres"))
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[list[Store]]:
    """Two stores of one run."""
    opened: list[Store] = []
    if request.param == "postgres":
        url = request.getfixturevalue("database_server").url()
        run_id = request.node.name
        opened += [await database_store(url, run_id) for _ in range(2)]
    else:
        database, meetings = MemoryDatabase(), MemoryMeetings()
        for _ in range(2):
            in_memory = MemoryStore(0, MemoryJournal(database))
            in_memory.replication = MemoryReplication(meetings, database)
            opened.append(in_memory)
    await opened[0].journal.open_segment(Snapshot(0, b"start"))
    yield opened
    for store in opened:
        await store.aclose()


def replication_of(store: Store) -> Replication:
    assert store.replication is not None
    return store.replication


async def test_coordinators_that_meet_hear_of_each_others_members(stores: list[Store]) -> None:
    one, other = map(replication_of, stores)
    told = Heartbeats({ONE: 5.125}, {OTHER: 4.0}, 5.25)
    assert (await one.meet(told)).others == ()
    (found,) = (await other.meet(Heartbeats())).others
    assert (found, found.now_s) == (told, told.now_s)
    assert (await one.meet(Heartbeats())).others == (Heartbeats(),)


async def test_one_coordinator_ticks_until_it_leaves(stores: list[Store]) -> None:
    one, other = map(replication_of, stores)
    for _ in range(2):
        assert (await one.meet(Heartbeats())).is_ticking
        assert not (await other.meet(Heartbeats())).is_ticking
    await one.leave()
    met = await other.meet(Heartbeats())
    assert (met.is_ticking, met.others) == (True, ())


async def test_meeting_tells_the_number_of_the_last_record(stores: list[Store]) -> None:
    for sequence in (1, 2):
        await stores[0].journal.append(JournalRecord(sequence, b"record"))
        assert (await replication_of(stores[1]).meet(Heartbeats())).sequence == sequence


async def test_coordinator_is_told_of_a_record_that_another_appends(stores: list[Store]) -> None:
    news = replication_of(stores[1]).news()
    assert await anext(news) is None
    await stores[0].journal.append(JournalRecord(1, b"first"))
    async with asyncio.timeout(BOUND_S):
        assert await anext(news) in (1, None)
    await news.aclose()
