"""What agents owe a run however badly they are connected: equal replicas, a clean ledger, and an end.

Requests and answers are lost, the coordinator goes away, data sources stall and fail, clients are killed and join, all
from one seed per run. Time is virtual, so a seed that fails fails again.
"""

import asyncio
import random

import pytest

from data_providers.dummy import DummyDataProvider
from data_providers.protocol import DataProvider, DatasetSpec, SourceUnavailable, TokenBatch
from run_manager.agent import EndReason
from run_manager.context import RunAccess
from run_manager.events import ReplicaHeld
from state.errors import CoordinatorUnreachable
from state.intervals import DataIds
from tests.support.fake_clients import ClientSpec, FakeClient, fake_client
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.states import state_file
from tests.support.virtual_time import run_virtually

LOSS = 0.1
LASTING_CLIENTS = 4
TOTAL_STEPS = 10


class _StallingProvider(DummyDataProvider):
    def __init__(self, faults: random.Random) -> None:
        super().__init__(DatasetSpec(2, 16))
        self._faults = faults

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        await asyncio.sleep(self._faults.uniform(0, 6) ** 1.5)
        if self._faults.random() < LOSS:
            raise SourceUnavailable("the source stalls")
        return await super().get_samples(data_ids)


class _World:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.faults = random.Random(seed)
        state = state_file(config__total_steps=TOTAL_STEPS, config__epoch_time=90, config__init_min_clients=3)
        self.coordinator = FakeCoordinator(state)
        self.clients: list[FakeClient] = []

    def lose(self, name: str, leg: str) -> None:
        if self.faults.random() < LOSS:
            raise CoordinatorUnreachable(f"the {leg} of {name} is lost")

    async def open_provider(self, request: RunAccess) -> DataProvider:
        return _StallingProvider(self.faults)

    def client(self, number: int) -> FakeClient:
        trainer = self.faults.choice(["null", "numpy"])
        spec = ClientSpec(trainer=trainer, faults=self.lose, open_provider=self.open_provider)
        self.clients.append(fake_client(self.coordinator, number, spec))
        return self.clients[-1]

    async def go_away_and_come_back(self) -> None:
        while True:
            await asyncio.sleep(self.faults.uniform(5, 60))
            self.coordinator.away = True
            await asyncio.sleep(self.faults.uniform(0.1, 40))
            self.coordinator.away = False

    async def come_and_be_killed(self, number: int, group: asyncio.TaskGroup) -> None:
        while True:
            await asyncio.sleep(self.faults.uniform(1, 60))
            task = group.create_task(self.client(number).agent.run())
            await asyncio.sleep(self.faults.uniform(1, 90))
            task.cancel()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self.coordinator.serve()),
                group.create_task(self.go_away_and_come_back()),
                group.create_task(self.come_and_be_killed(10, group)),
                group.create_task(self.come_and_be_killed(11, group)),
            ]
            lasting = [group.create_task(self.client(number).agent.run()) for number in range(LASTING_CLIENTS)]
            async with asyncio.timeout(50_000):
                ends = [await task for task in lasting]
            for task in background:
                task.cancel()
        assert {end.reason for end in ends} == {EndReason.FINISHED}
        assert len({end.replica_digest for end in ends}) == 1


@pytest.mark.parametrize("seed", [3, 14, 159])
def test_agents_under_seeded_faults_finish_with_equal_replicas(seed: int) -> None:
    async def main() -> _World:
        world = _World(seed)
        await world.run()
        return world

    world = run_virtually(main())
    digests: dict[int, set[str]] = {}
    for client in world.clients:
        for held in client.of(ReplicaHeld):
            if held.origin != "initial":
                digests.setdefault(held.step, set()).add(held.replica_digest)
    assert len(world.coordinator.outcomes) >= TOTAL_STEPS
    assert {step: len(found) for step, found in digests.items() if len(found) != 1} == {}
