"""Three coordinators of one run in virtual time: what one knows the others learn, and one of them ticks."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from epochal.coordinator.insight.run_history import RunHistory
from epochal.coordinator.machine.stimuli import ClientBecameReady, ClientsFellSilent
from epochal.coordinator.run.liveness import GONE_AFTER_S
from epochal.coordinator.run.opening import ServiceOptions
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.store.replication import LEASE_S, MEETING_S
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.state_file import StateFile
from epochal.state.errors import Refused, StoreBlocked
from epochal.state.messages.requests import ReadyReport
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256
from tests.simulation.test_two_coordinators import id_of, join_of
from tests.support.data.states import state_file
from tests.support.simulate.memory_store import MemoryDatabase, MemoryJournal, MemoryMeetings, MemoryStore
from tests.support.simulate.poor_replication import PoorReplication
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time

TIMEOUT_S = 5.0
READY = ReadyReport(0, Sha256("0" * 64), "data")


async def opened_replica(
    database: MemoryDatabase, meetings: MemoryMeetings, state: StateFile
) -> tuple[CoordinatorService, PoorReplication]:
    """Return another coordinator of the run, which does not serve it yet."""
    store = MemoryStore(state.blobs.max_total_bytes, MemoryJournal(database))
    store.replication = found = PoorReplication(meetings, database)
    options = ServiceOptions(store, VirtualClock(), "ab" * 32, RunHistory(store.journal, InlineWorker()))
    return await CoordinatorService.open(options, state), found


@contextlib.asynccontextmanager
async def replicas(count: int = 3, **overrides: Any) -> AsyncIterator[list[tuple[CoordinatorService, PoorReplication]]]:
    """Yield coordinators of one run, which learn of records in their meetings only."""
    database, meetings = MemoryDatabase(), MemoryMeetings()
    state = state_file(config__init_min_clients=200, config__client_timeout_s=TIMEOUT_S, **overrides)
    async with asyncio.TaskGroup() as tasks:
        opened, serving = [], []
        for _ in range(count):
            service, found = await opened_replica(database, meetings, state)
            serving.append(tasks.create_task(service.serve()))
            await service.started.wait()
            opened.append((service, found))
        await asyncio.sleep(2 * MEETING_S)
        yield opened
        for task in serving:
            task.cancel()


@in_virtual_time
async def test_refusal_holds_for_the_run_as_it_is_kept() -> None:
    async with replicas() as ((one, _), (other, _), _):
        await one.submit(join_of(1))
        assert id_of(1) not in other.run.members, "it was not told"
        for number, said in ((2, "not a member"), (1, "no client can become ready")):
            with pytest.raises(Refused, match=said):
                await other.submit(ClientBecameReady(id_of(number), READY))
            assert id_of(1) in other.run.members


@in_virtual_time
async def test_request_waits_until_what_was_kept_before_is_known() -> None:
    async with replicas() as ((one, _), (other, _), _):
        await one.submit(join_of(1))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(other.replicas.fresh())
        assert id_of(1) in other.run.members


@in_virtual_time
async def test_coordinator_stopped_while_another_starts_is_not_alone_after_that() -> None:
    async with replicas(count=1) as ((stopped, replication),), asyncio.TaskGroup() as tasks:
        store = stopped._options.store
        await asyncio.sleep(LEASE_S + MEETING_S / 2)
        assert stopped.replicas.is_alone
        assert isinstance(store, MemoryStore)
        replication.goes_on.clear()
        newcomer, _ = await opened_replica(store.journal.database, replication.meetings, stopped.run.state_file)
        serving = tasks.create_task(newcomer.serve())
        await newcomer.started.wait()
        assert not stopped.replicas.is_alone
        serving.cancel()


@in_virtual_time
async def test_coordinator_that_meets_nobody_after_a_failover_is_not_alone() -> None:
    async with replicas(count=2) as ((one, replication), (other, away)):
        away.goes_on.clear()
        replication.meetings.present.clear()  # the tables of meetings are not kept by a standby
        await asyncio.sleep(2 * MEETING_S)
        assert one.replicas.other_count == 0
        await other.submit(join_of(1))
        await one.replicas.fresh()
        assert id_of(1) in one.run.members
        await asyncio.sleep(LEASE_S)
        assert one.replicas.is_alone


@in_virtual_time
async def test_member_ahead_of_one_that_feels_alone_is_believed_after_a_look() -> None:
    async with replicas(count=2) as ((one, _), (other, away)):
        away.goes_on.clear()
        await asyncio.sleep(2 * LEASE_S + 2 * MEETING_S)
        assert one.replicas.is_alone
        await other.submit(join_of(1))
        document = one.published.document
        await one.older_copy.asked(id_of(1), document.version + 1, document.lineage)
        assert id_of(1) in one.run.members


@in_virtual_time
async def test_coordinator_that_starts_beside_others_moves_no_deadline() -> None:
    async with replicas() as ((one, _), *_):
        assert one.replicas.other_count == 2
        journal = one._options.store.journal
        assert isinstance(journal, MemoryJournal)
        starts = [record for segment in journal.segments for record in segment.records]
        assert sum(b"coordinator_started" in record.body for record in starts) == 1


@in_virtual_time
async def test_one_coordinator_ticks_and_another_goes_on_in_its_place() -> None:
    async with replicas() as found:
        assert [service.replicas.is_ticking for service, _ in found] == [True, False, False]
        found[0][1].goes_on.clear()
        await asyncio.sleep(LEASE_S + 2 * MEETING_S)
        assert [service.replicas.is_ticking for service, _ in found].count(True) == 1
        assert not found[0][0].replicas.is_ticking
        found[0][1].goes_on.set()
        await asyncio.sleep(LEASE_S)
        assert [service.replicas.is_ticking for service, _ in found].count(True) == 1


@in_virtual_time
async def test_member_that_one_coordinator_hears_is_dropped_by_none() -> None:
    async with replicas() as ((ticking, _), (other, _), _):
        for number in (1, 2):
            await ticking.submit(join_of(number))
        for _ in range(round(3 * TIMEOUT_S / MEETING_S)):
            other.heard(id_of(1))
            await asyncio.sleep(MEETING_S)
        assert ticking.run.members.by_id.keys() == {id_of(1)}


@in_virtual_time
async def test_member_that_joins_by_another_coordinator_is_not_dropped_at_once() -> None:
    async with replicas() as ((ticking, _), (other, _), _):
        await asyncio.sleep(2 * TIMEOUT_S)
        await other.submit(join_of(1))
        await ticking.catch_up()
        for _ in range(round(TIMEOUT_S / MEETING_S)):
            await asyncio.sleep(MEETING_S)
            assert ticking.run.members.by_id.keys() == {id_of(1)}
        await asyncio.sleep(2 * MEETING_S)
        assert not ticking.run.members.by_id


@in_virtual_time
async def test_verdict_of_a_coordinator_that_was_stopped_drops_nobody() -> None:
    async with replicas() as ((stopped, replication), (other, _), _):
        await stopped.submit(join_of(1))
        stopped.heard(id_of(1))
        await asyncio.sleep(MEETING_S)
        replication.goes_on.clear()
        for _ in range(round(3 * TIMEOUT_S / MEETING_S)):
            other.heard(id_of(1))
            await asyncio.sleep(MEETING_S)
        await stopped.submit(ClientsFellSilent((id_of(1),)))
        replication.goes_on.set()
        await asyncio.sleep(GONE_AFTER_S)
        for service in (stopped, other):
            assert service.run.members.by_id.keys() == {id_of(1)}


@in_virtual_time
async def test_coordinator_that_cannot_meet_the_others_refuses_until_it_can() -> None:
    async with replicas() as ((one, replication), *_):
        replication.problem = StoreBlocked("the database does not answer", is_full=False)
        await asyncio.sleep(LEASE_S + 2 * MEETING_S)
        assert not one.accepting
        with pytest.raises(Refused) as refused:
            await one.submit(join_of(1))
        assert refused.value.kind is Refusal.STORE_FAILED
        with pytest.raises(StoreBlocked):
            await one.replicas.fresh()
        replication.problem = None
        await asyncio.sleep(2 * LEASE_S)
        await one.submit(join_of(1))
        assert one.accepting


@in_virtual_time
async def test_coordinator_stopped_for_longer_than_its_lease_takes_all_as_heard() -> None:
    async with replicas(count=1) as ((stopped, replication),):
        await stopped.submit(join_of(1))
        replication.goes_on.clear()
        await asyncio.sleep(3 * TIMEOUT_S)
        replication.goes_on.set()
        await asyncio.sleep(TIMEOUT_S - MEETING_S)
        assert stopped.replicas.is_ticking
        assert stopped.run.members.by_id.keys() == {id_of(1)}, "it may have sent what nobody took"
        await asyncio.sleep(3 * MEETING_S)
        assert not stopped.run.members.by_id


@in_virtual_time
async def test_coordinator_that_begins_to_tick_takes_all_as_heard() -> None:
    async with replicas(count=2) as ((stopped, replication), (other, _)):
        await stopped.submit(join_of(1))
        await asyncio.sleep(2 * MEETING_S)
        replication.goes_on.clear()
        await asyncio.sleep(LEASE_S + MEETING_S)
        assert other.replicas.is_ticking
        await asyncio.sleep(TIMEOUT_S - LEASE_S)
        assert other.run.members.by_id.keys() == {id_of(1)}, "it may have been heard by the one that is stopped"
        await asyncio.sleep(LEASE_S + 3 * MEETING_S)
        assert not other.run.members.by_id
