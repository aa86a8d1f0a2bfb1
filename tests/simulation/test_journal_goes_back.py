"""A journal that lacks records that it held: who notices gives the run a new lineage, and the others follow."""

import random

from epochal.coordinator.machine.journal_records import Segment
from tests.simulation.test_two_coordinators import check_agrees, coordinators, id_of, join_of
from tests.support.data.states import state_file
from tests.support.simulate.memory_store import MemoryDatabase
from tests.support.simulate.virtual_time import in_virtual_time


def lose_last(database: MemoryDatabase) -> None:
    """Take the journal's last record away."""
    *before, newest = database.segments
    database.segments = [*before, Segment(newest.number, newest.snapshot, newest.records[:-1])]


@in_virtual_time
async def test_records_that_are_lost_are_void_and_the_run_has_a_new_lineage() -> None:
    database = MemoryDatabase()
    state = state_file(config__init_min_clients=40)
    async with coordinators(database, random.Random(1), state) as (one, other):
        await one.submit(join_of(1))
        await one.submit(join_of(2))
        before = one.published.document
        lose_last(database)
        await one.submit(join_of(3))
        after = one.published.document
        assert set(one.run.members.by_id) == {id_of(1), id_of(3)}
        assert after.lineage != before.lineage
        await other.submit(join_of(4))
        assert other.published.document.lineage == after.lineage
        await check_agrees(other, database)
        await one.submit(join_of(5))
        assert one.published.document.lineage == after.lineage, "what was lost is disowned once"


@in_virtual_time
async def test_run_that_goes_back_behind_its_new_lineage_gets_another() -> None:
    database = MemoryDatabase()
    state = state_file(config__init_min_clients=40)
    async with coordinators(database, random.Random(2), state, 1) as (service,):
        await service.submit(join_of(1))
        lineages = [service.run.identity.lineage]
        for number, lost_count in ((2, 1), (3, 2)):
            for _ in range(lost_count):
                lose_last(database)
            await service.submit(join_of(number))
            lineages.append(service.run.identity.lineage)
        assert len(set(lineages)) == 3, "readers never return to a lineage that they have left"
        assert set(service.run.members.by_id) == {id_of(3)}
        await check_agrees(service, database)
