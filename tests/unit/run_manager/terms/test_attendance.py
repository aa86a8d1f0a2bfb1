"""Clients by their owner's terms, on the real coordinator in virtual time: they leave cleanly and come back."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from epochal.data_providers.protocol import DatasetSpec, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.agent import ClientEnd, EndReason
from epochal.run_manager.events import RoundTrained
from epochal.run_manager.terms.attendance import LOOK_S, Leave, Terms, TermsWatch, attended
from epochal.run_manager.terms.hours import Hours
from epochal.run_manager.terms.idle_policy import BUSY_FOR_S, IDLE_FOR_S, Observation
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.errors import CoordinatorUnreachable
from epochal.state.intervals import DataIds
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec, key_of, with_data
from tests.support.simulate.simulated_run import BOUND_S, SimulatedRun, simulated_run
from tests.support.simulate.virtual_time import VirtualClock, in_virtual_time

IDLE, USED = Observation(others_cores=0.0, cores=4), Observation(others_cores=4.0, cores=4)
LONG = {"config__total_steps": 100_000, "config__init_min_clients": 2, "config__min_clients": 1}
DATA_S = 5.0


class SlowData(DummyDataProvider):
    """Made-up data that take a while, so that rounds do."""

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        await asyncio.sleep(DATA_S)
        return await super().get_samples(data_ids)


def slow() -> ClientSpec:
    return with_data(SlowData(DatasetSpec(2, 16)))


@dataclass
class Machine:
    """A machine of which the test says by whom it is used."""

    seen: Observation = IDLE
    sentences: Sequence[str] = ()

    def observe(self) -> Observation:
        return self.seen

    def unknown(self, seen: Observation) -> Sequence[str]:
        return self.sentences


class Volunteer:
    """Client 1 of a run, by its owner's terms."""

    def __init__(self, run: SimulatedRun, terms: Terms, machine: Machine | None = None) -> None:
        self.run, self.machine = run, machine or Machine()
        self.watch = TermsWatch(terms, self.machine, VirtualClock(), InlineWorker())
        self.parts = 0
        self.is_over = False

    async def attend(self, begun: Callable[[Leave], None]) -> ClientEnd:
        self.parts += 1
        client = self.run.client(1, slow())
        begun(client.agent.finish_and_withdraw)
        return await client.agent.run()

    def start(self) -> asyncio.Task[ClientEnd]:
        return self.run.tasks.create_task(attended(self.watch, self.attend, lambda: self.is_over))

    @property
    def is_member(self) -> bool:
        return key_of(1).client_id in self.run.coordinator.run.members

    async def until_member(self, is_member: bool) -> None:
        await self.run.coordinator.wait_for(lambda: self.is_member is is_member)

    def misses(self) -> int:
        members, client_id = self.run.coordinator.run.members, key_of(1).client_id
        member = members.by_id.get(client_id)
        conduct = members.departed.get(client_id) if member is None else member.conduct
        return 0 if conduct is None else conduct.misses


async def rounds_later(run: SimulatedRun) -> None:
    """Return some rounds later."""
    step = run.coordinator.document.step
    await run.coordinator.wait_for(lambda: run.coordinator.document.step > step + 2)


@pytest.mark.nightly
@in_virtual_time
async def test_used_machine_is_left_after_the_round_and_taken_again() -> None:
    async with simulated_run(state_file(**LONG), seed=0) as run:
        volunteer = Volunteer(run, Terms(when_idle=True))
        task = volunteer.start()
        run.start(run.client(2, slow()))
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 4)
        for part in (1, 2, 3):
            assert volunteer.parts == part
            volunteer.machine.seen = USED
            used_s = asyncio.get_running_loop().time()
            await volunteer.until_member(False)
            assert asyncio.get_running_loop().time() - used_s < BUSY_FOR_S + 2 * LOOK_S + 60
            await rounds_later(run)
            trained = [event.step for client in run.clients if client.number == 1 for event in client.of(RoundTrained)]
            (last,) = (outcome for outcome in run.coordinator.outcomes if outcome.step == trained[-1])
            assert key_of(1).client_id in {entry.client_id for entry in last.entries}, "its last result counts"
            assert volunteer.misses() == 0
            volunteer.machine.seen = IDLE
            idle_s = asyncio.get_running_loop().time()
            await volunteer.until_member(True)
            assert asyncio.get_running_loop().time() - idle_s >= IDLE_FOR_S - LOOK_S
            await rounds_later(run)
        task.cancel()


@pytest.mark.nightly
@in_virtual_time
async def test_client_comes_as_its_hours_begin_and_leaves_as_they_end() -> None:
    async with simulated_run(state_file(**LONG), seed=0) as run:
        clock = VirtualClock()
        local = datetime.fromtimestamp(clock.wall_s(), UTC).astimezone().replace(second=0)
        first, last = local + timedelta(minutes=10), local + timedelta(minutes=15)
        volunteer = Volunteer(run, Terms(Hours.parse("--hours", f"{first:%H:%M}-{last:%H:%M}")))
        task = volunteer.start()
        run.start(run.client(2, slow()))
        await volunteer.until_member(True)
        assert 0 <= clock.wall_s() - first.timestamp() < 2 * LOOK_S
        await volunteer.until_member(False)
        assert 0 <= clock.wall_s() - last.timestamp() < 2 * LOOK_S + 60
        assert volunteer.misses() == 0
        task.cancel()


@in_virtual_time
async def test_run_that_ends_ends_the_client_and_another_error_passes() -> None:
    async with simulated_run(state_file(config__total_steps=4, config__init_min_clients=2), seed=0) as run:
        volunteer = Volunteer(run, Terms(when_idle=True))
        task = volunteer.start()
        other = run.start(run.client(2, slow()))
        await run.ends([other], BOUND_S)
        assert (await task).reason is EndReason.FINISHED

        async def unreachable(begun: Callable[[Leave], None]) -> ClientEnd:
            begun(lambda: None)
            raise CoordinatorUnreachable("no answer")

        with pytest.raises(CoordinatorUnreachable):
            await attended(volunteer.watch, unreachable, lambda: False)


@in_virtual_time
async def test_owner_who_wants_the_client_to_end_is_obeyed_while_it_leaves() -> None:
    async with simulated_run(state_file(**LONG), seed=0) as run:
        volunteer = Volunteer(run, Terms(when_idle=True))
        task = volunteer.start()
        run.start(run.client(2, slow()))
        await run.coordinator.wait_for(lambda: run.coordinator.document.step == 4)
        volunteer.machine.seen, volunteer.is_over = USED, True
        assert (await task).reason is EndReason.WITHDREW
        assert volunteer.parts == 1


@in_virtual_time
async def test_what_is_not_known_and_why_it_is_absent_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "epochal.run_manager.terms.attendance")
    machine = Machine(USED, ("nothing here says whether others compute on a GPU (nvidia-smi)",))
    watch = TermsWatch(Terms(when_idle=True), machine, VirtualClock(), InlineWorker())
    waiting = asyncio.get_running_loop().create_task(watch.until_present())
    await asyncio.sleep(20 * LOOK_S)
    machine.seen = IDLE
    await waiting
    said = [record.message for record in caplog.records]
    assert said == ["use_of_machine_not_known", "takes_no_part_for_now", "takes_part_again"]
