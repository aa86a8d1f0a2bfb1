"""Newcomers whose trainer takes long to open: they join first, and train in the first round that they can be in."""

import asyncio
import random
from dataclasses import replace

import pytest

from epochal.data_providers.protocol import DatasetSpec, SourceUnavailable, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.agent import EndReason
from epochal.run_manager.events import BecameReady, Event, RoundTrained, TrainerOpened
from epochal.run_manager.readiness import READY_AHEAD_ROUNDS
from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput
from epochal.state.intervals import DataIds
from epochal.state.phase_names import RunState
from epochal.trainers.architectures import open_model
from epochal.trainers.protocol import Trainer
from tests.simulation.test_adversaries import PacedTrainer
from tests.support.simulate.simulated_client import ClientSpec, FaultyData, SimulatedClient, with_data
from tests.support.simulate.simulated_run import BOUND_S, SimulatedRun, prove, simulated_run, small_state
from tests.support.simulate.virtual_time import in_virtual_time

BATCHES = 12
PACE_KNOWN_AT = 7
"""Round from which on the run document says how long rounds usually take."""
ROUND_S = 6.0
"""Longest time that it can say: each of two clients trains six batches, each of which takes at most a second."""
OPENING_S = 6.0


class Opening:
    """A trainer's opening that takes `takes_s`, is said to take as much, or `said_s`, and may fail then."""

    def __init__(self, takes_s: float = OPENING_S, said_s: float | None = None, error: Exception | None = None) -> None:
        self._takes_s = takes_s
        self._said_s = said_s
        self._error = error
        self._begun_s = 0.0

    async def __call__(self) -> None:
        self._begun_s = asyncio.get_running_loop().time()
        await asyncio.sleep(self._takes_s)
        if self._error is not None:
            raise self._error

    def left_s(self) -> float:
        ends_s = self._begun_s + (self._takes_s if self._said_s is None else self._said_s)
        return max(0.0, ends_s - asyncio.get_running_loop().time())


def open_paced(state: StateFile, worker: Worker) -> Trainer:
    trainer = PacedTrainer(open_model(state.model.LLM.spec))
    trainer.chance = random.Random(1)
    return trainer


def newcomer(opening: Opening, *, is_estimated: bool = True) -> ClientSpec:
    return ClientSpec(open_trainer=open_paced, opening=opening, opens_in_s=opening.left_s if is_estimated else None)


def state(steps: int) -> StateFile:
    return small_state(
        BATCHES, config__total_steps=steps, config__epoch_time=600, config__init_min_clients=2, config__min_clients=1
    )


async def begun(run: SimulatedRun) -> list[SimulatedClient]:
    """Start two clients, and return them when the run has a pace."""
    clients = [run.start(run.client(number, ClientSpec(open_trainer=open_paced))) for number in (1, 2)]
    await run.coordinator.reached(RunState.ROUND_TRAIN, PACE_KNOWN_AT)
    return clients


class Course:
    """A newcomer's first round, and when it became ready and its trainer was open."""

    def __init__(self) -> None:
        self.step = 0
        self.times_s: dict[type, float] = {}

    def saw(self, event: Event) -> None:
        self.times_s.setdefault(type(event), asyncio.get_running_loop().time())
        if isinstance(event, RoundTrained):
            self.step = self.step or event.step

    @property
    def early_s(self) -> float:
        """By how much it was ready before its trainer was open."""
        return self.times_s[TrainerOpened] - self.times_s[BecameReady]


async def course_of(opening: Opening, *, is_estimated: bool = True) -> Course:
    """Return what a newcomer did in a run that has a pace; its replicas and the audit are as they should be."""
    course = Course()
    async with simulated_run(state(16), seed=0) as run:
        clients = await begun(run)
        spec = replace(newcomer(opening, is_estimated=is_estimated), saw=course.saw)
        ends = await run.ends([*clients, run.start(run.client(3, spec))], BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        await prove(run)
        return course


@in_virtual_time
async def test_newcomer_is_ready_before_its_trainer_and_trains_one_round_earlier() -> None:
    course, course_if_unknown = await course_of(Opening()), await course_of(Opening(), is_estimated=False)
    assert course.early_s > 0 > course_if_unknown.early_s
    assert course.step == course_if_unknown.step - 1


@in_virtual_time
async def test_newcomer_is_ready_only_when_its_trainer_opens_in_time() -> None:
    course = await course_of(Opening(takes_s=30.0))
    assert 0 < course.early_s <= READY_AHEAD_ROUNDS * ROUND_S


@in_virtual_time
async def test_trainer_that_fails_after_its_client_was_ready_ends_that_client() -> None:
    async with simulated_run(state(16), seed=0) as run:
        clients = await begun(run)
        late = run.client(3, newcomer(Opening(error=InvalidInput("torch cannot be imported"))))
        with pytest.raises(InvalidInput, match="torch cannot be imported"):
            await late.agent.run()
        assert late.of(BecameReady)
        assert late.client_id not in run.coordinator.run.members
        step, left_s = run.coordinator.document.step, asyncio.get_running_loop().time()
        await run.coordinator.reached(RunState.ROUND_TRAIN, step + 1)
        assert asyncio.get_running_loop().time() - left_s < 2 * OPENING_S, "nobody waits for it"
        ends = await run.ends(clients, BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        await prove(run)


@in_virtual_time
async def test_run_that_ends_while_a_trainer_opens_ends_its_client() -> None:
    async with simulated_run(state(9), seed=0) as run:
        clients = await begun(run)
        late = run.start(run.client(3, newcomer(Opening(takes_s=BOUND_S))))
        ends = await run.ends([*clients, late], BOUND_S / 2)
        assert [end.reason for end in ends] == [EndReason.FINISHED] * 3
        assert len({end.replica_digest for end in ends}) == 1
        assert not late.of(TrainerOpened)


@in_virtual_time
async def test_estimate_that_is_far_too_small_costs_a_bounded_wait() -> None:
    async with simulated_run(state(30), seed=0) as run:
        clients = await begun(run)
        joined_s = asyncio.get_running_loop().time()
        late = run.start(run.client(3, newcomer(Opening(takes_s=40.0, said_s=OPENING_S))))
        await run.coordinator.reached(RunState.ROUND_TRAIN, PACE_KNOWN_AT + 8)
        assert asyncio.get_running_loop().time() - joined_s < 60.0, "eight rounds, of which it has held up a few"
        ends = await run.ends([*clients, late], BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        assert late.of(RoundTrained), "it takes part in the end"
        await prove(run)


class LateData(DummyDataProvider):
    """Made-up data whose source does not answer before `from_s`."""

    def __init__(self, from_s: float) -> None:
        super().__init__(DatasetSpec(2, 16))
        self.from_s = from_s

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        if asyncio.get_running_loop().time() < self.from_s:
            raise SourceUnavailable("no answer yet")
        return await super().get_samples(data_ids)


@in_virtual_time
async def test_newcomer_is_not_ready_before_its_data_are_looked_at() -> None:
    course = Course()
    async with simulated_run(state(16), seed=0) as run:
        clients = await begun(run)
        data = LateData(asyncio.get_running_loop().time() + 3 * OPENING_S)
        spec = with_data(data, open_trainer=open_paced, opening=Opening(), opens_in_s=lambda: 1.0, saw=course.saw)
        ends = await run.ends([*clients, run.start(run.client(3, spec))], BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
    assert data.from_s <= course.times_s[BecameReady] < course.times_s[TrainerOpened]


@in_virtual_time
async def test_newcomer_whose_data_do_not_fit_is_never_ready() -> None:
    async with simulated_run(state(16), seed=0) as run:
        clients = await begun(run)
        data = FaultyData(frozenset(range(100_000)))
        late = run.client(3, with_data(data, open_trainer=open_paced, opening=Opening(), opens_in_s=lambda: 1.0))
        with pytest.raises(InvalidInput, match="cannot be trained on these data"):
            await late.agent.run()
        assert not late.of(BecameReady)
        ends = await run.ends(clients, BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
