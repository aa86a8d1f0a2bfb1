"""Two coordinators of one journal, in virtual time: the second to append reads it, and handles its group again."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from epochal.coordinator.insight.run_history import RunHistory
from epochal.coordinator.machine.records import replay
from epochal.coordinator.machine.stimuli import ClientJoined, KeyAdmitted, KeyRemoved, PauseRequested, ResumeRequested
from epochal.coordinator.run.opening import ServiceOptions
from epochal.coordinator.run.service import MAX_COMMIT_ATTEMPTS, CoordinatorService
from epochal.coordinator.store.sql.database import Row, Statement
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.config.state_file import StateFile
from epochal.state.errors import Refused, StoreConflict
from epochal.state.messages.requests import Capabilities
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256, client_id_of, sha256_hex
from tests.support.data.states import state_file
from tests.support.simulate.memory_store import MemoryDatabase, MemoryJournal, MemoryStore
from tests.support.simulate.simulated_coordinator import SlowJournal
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time

INVITATION = sha256_hex(b"an invitation")


def id_of(number: int) -> ClientId:
    return client_id_of(bytes([number]) * 32)


def join_of(number: int, invitation: Sha256 | None = None) -> ClientJoined:
    return ClientJoined(
        client_id=id_of(number),
        public_key=(bytes([number]) * 32).hex(),
        capabilities=Capabilities(codecs=SPOKEN),
        nonce=f"nonce {number}",
        nonce_expires_s=2e9,
        invitation_sha256=invitation,
    )


@contextlib.asynccontextmanager
async def coordinators(
    database: MemoryDatabase, chance: random.Random, state: StateFile, count: int = 2
) -> AsyncIterator[list[CoordinatorService]]:
    """Open `count` coordinators of one run at once, and yield them."""

    async def opened() -> CoordinatorService:
        store = MemoryStore(state.blobs.max_total_bytes, SlowJournal(chance, database))
        history, new_seed = RunHistory(store.journal, InlineWorker()), lambda: chance.randbytes(32).hex()
        parts = ServiceOptions(store, VirtualClock(), "ab" * 32, history, new_seed=new_seed)
        return await CoordinatorService.open(parts, state)

    async with asyncio.TaskGroup() as tasks:
        opening = [tasks.create_task(opened()) for _ in range(count)]
        services = [await service for service in opening]
        serving = [tasks.create_task(service.serve()) for service in services]
        for service in services:
            await service.started.wait()
        yield services
        for task in serving:
            task.cancel()


async def check_agrees(service: CoordinatorService, database: MemoryDatabase) -> None:
    """Check that the service that appended last shows the run to which the journal replays."""
    segment = await MemoryJournal(database).load()
    assert segment is not None
    replayed = replay(segment)
    assert service.run == replayed.run
    assert service.published.document == replayed.document


@pytest.mark.parametrize("seed", range(2))
@in_virtual_time
async def test_invitation_that_two_clients_use_at_two_coordinators_admits_one(seed: int) -> None:
    chance = random.Random(seed)
    access = {"mode": "invitations", "invitations": [INVITATION]}
    state = state_file(access=access)
    async with coordinators(MemoryDatabase(), chance, state) as services:

        async def join(number: int) -> Refusal | None:
            try:
                await services[number].submit(join_of(number, INVITATION))
            except Refused as refused:
                return refused.kind
            return None

        async with asyncio.TaskGroup() as tasks:
            joins = [tasks.create_task(join(number)) for number in range(2)]
        assert {task.result() for task in joins} == {None, Refusal.ACCESS_DENIED}


class ContendedDatabase(MemoryDatabase):
    """A database in which the next `conflicts` records lose to another coordinator's."""

    conflicts = 0

    def _transact(self, statements: Sequence[Statement]) -> list[list[Row]]:
        if self.conflicts and any("INTO epochal_records" in statement.sql for statement in statements):
            self.conflicts -= 1
            raise StoreConflict("another coordinator was first")
        return super()._transact(statements)


@pytest.mark.parametrize("conflicts", [MAX_COMMIT_ATTEMPTS - 1, MAX_COMMIT_ATTEMPTS])
@in_virtual_time
async def test_coordinator_that_others_always_overtake_refuses_one_group_alone(conflicts: int) -> None:
    database = ContendedDatabase()
    async with coordinators(database, random.Random(0), state_file(), count=1) as (service,):
        database.conflicts = conflicts
        refused = conflicts == MAX_COMMIT_ATTEMPTS
        with pytest.raises(Refused, match="appended first each time") if refused else contextlib.nullcontext():
            await service.submit(join_of(1))
        assert service.health.problem is None
        await service.submit(join_of(2))
        assert service.run.members.by_id.keys() == ({id_of(2)} if refused else {id_of(1), id_of(2)})


@in_virtual_time
async def test_access_that_one_coordinator_gives_holds_at_the_other() -> None:
    chance = random.Random(1)
    database = MemoryDatabase()
    async with coordinators(database, chance, state_file(access__mode="keys")) as (first, second):
        with pytest.raises(Refused, match="is not among this run's"):
            await second.submit(join_of(1))
        await first.submit(KeyAdmitted(join_of(1).public_key))
        await second.submit(PauseRequested())  # and so it reads what the other has written
        await second.submit(join_of(1))
        await second.submit(KeyRemoved(join_of(1).public_key))
        await first.submit(ResumeRequested())
        with pytest.raises(Refused, match="is not among this run's"):
            await first.submit(replace(join_of(1), nonce="another"))
        await check_agrees(first, database)
