"""A whole run in virtual time: the real coordinator, real clients, a bad network, and a check of every safety rule.

`Witness` checks what clients see and hold during the run (`tests/support/simulate/safety.py`).
`SimulatedRun.audit` then verifies the ledger and the replay from the journal, as an operator would.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from epochal.coordinator.proof.audit import AuditReport, audit
from epochal.coordinator.store.store import StoreReader
from epochal.data_providers.protocol import DataProvider, DatasetSpec, SourceUnavailable, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.agent import ClientEnd
from epochal.run_manager.context import RunAccess
from epochal.state.config.state_file import StateFile
from epochal.state.intervals import DataIds
from tests.support.data.states import state_file
from tests.support.simulate.safety import Witness
from tests.support.simulate.simulated_client import ClientSpec, SimulatedClient, simulated_client
from tests.support.simulate.simulated_coordinator import SimulatedCoordinator, SlowJournal
from tests.support.simulate.simulated_network import Address, Faults, Link, SharedPipe, SimulatedApi, Weather, no_faults

RECONNECT_BOUND_S = 1_000_000.0
CALM = Weather()
TOTAL_STEPS = 8
BOUND_S = 200_000.0
"""Much longer than any run that makes progress takes."""


def small_state(batches: int, **overrides: object) -> StateFile:
    """A run of few short epochs over a tiny model."""
    fields: dict[str, object] = {
        "config__total_steps": TOTAL_STEPS,
        "config__epoch_time": 90,
        "config__warmup_time": 40,
        "config__max_round_train_time": 40,
        "config__init_min_clients": 3,
        "config__min_clients": 2,
        "config__client_timeout_s": 60,
        "config__global_batch_size_start": batches,
        "config__global_batch_size_end": batches,
        "model__LLM__ngram": {"context": 2, "embedding": 2, "hidden": 2},
    }
    return state_file(**(fields | overrides))


class BadDataProvider(DummyDataProvider):
    """A source that is slow, and unavailable with probability `loss`."""

    def __init__(self, sequence_length: int, chance: random.Random, loss: float) -> None:
        super().__init__(DatasetSpec(2, sequence_length))
        self._chance = chance
        self._loss = loss

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        await asyncio.sleep(self._chance.uniform(0, 0.5))
        if self._chance.random() < self._loss:
            raise SourceUnavailable("the source stalls")
        return await super().get_samples(data_ids)


class Coordinators(Protocol):
    """The coordinators of a simulated run, of which there may be only one."""

    @property
    def state(self) -> StateFile: ...

    @property
    def reader(self) -> StoreReader: ...

    def door(self, chance: random.Random) -> Address: ...

    def kill(self) -> None: ...


@dataclass
class RunWithClients:
    """Coordinators and their clients."""

    coordinator: Coordinators
    witness: Witness
    chance: random.Random
    tasks: asyncio.TaskGroup
    weather: Weather = CALM
    data_loss: float = 0.0
    clients: list[SimulatedClient] = field(default_factory=list)

    def __post_init__(self) -> None:
        server = self.weather.server
        self._pipes = SharedPipe(server.down_bytes_per_s), SharedPipe(server.up_bytes_per_s)

    def api(self, faults: Faults = no_faults) -> tuple[SimulatedApi, Link]:
        """Return another client's connection to the coordinator."""
        link = Link(random.Random(self.chance.random()), self.weather, faults=faults, pipes=self._pipes)
        address = self.coordinator.door(link.chance)
        return SimulatedApi(address, link, self.tasks, self.witness.saw), link

    def client(self, number: int, spec: ClientSpec | None = None, faults: Faults = no_faults) -> SimulatedClient:
        """Return a process with the key of this number, not yet started."""
        spec = replace(spec or ClientSpec(), saw=(spec and spec.saw) or self.witness.event)
        api, link = self.api(faults)
        client = simulated_client(api, number, link, spec)
        self.clients.append(client)
        return client

    def start(self, client: SimulatedClient) -> SimulatedClient:
        """Start a process, which must end without an error."""
        client.task = self.tasks.create_task(client.agent.run())
        return client

    def start_client(self, number: int, trainer: str = "null") -> SimulatedClient:
        """Start a process whose data fail with probability `data_loss`, and which never gives up."""
        chance = random.Random(self.chance.random())

        async def open_provider(request: RunAccess) -> DataProvider:
            return BadDataProvider(request.state.model.LLM.max_seq_len, chance, self.data_loss)

        spec = ClientSpec(trainer, open_provider=open_provider, reconnect_bound_s=RECONNECT_BOUND_S)
        return self.start(self.client(number, spec))

    async def play(self, *specs: ClientSpec) -> list[ClientEnd]:
        """Run to the end with one client per spec, numbered from 1."""
        clients = [self.start(self.client(number, spec)) for number, spec in enumerate(specs, start=1)]
        return await self.ends(clients, BOUND_S)

    def start_clients(self, count: int, trainers: tuple[str, ...] = ("null",)) -> list[SimulatedClient]:
        """Start processes 0 to `count − 1`, which take the trainers in turn."""
        return [self.start_client(number, trainers[number % len(trainers)]) for number in range(count)]

    async def ends(self, clients: list[SimulatedClient], bound_s: float) -> list[ClientEnd]:
        """Return how these clients ended, all within `bound_s` seconds."""
        async with asyncio.timeout(bound_s):
            return [await client.task for client in clients if client.task is not None]

    async def audit(self) -> AuditReport:
        """Return the operator's audit, with the parameters recomputed."""
        self.witness.check()
        return await audit(self.coordinator.reader, with_parameters=True)


@dataclass
class SimulatedRun(RunWithClients):
    """A coordinator and its clients. Make one with `simulated_run`."""

    coordinator: SimulatedCoordinator


@asynccontextmanager
async def simulated_run(
    state: StateFile,
    seed: int,
    journal: Callable[[random.Random], SlowJournal] = SlowJournal,
    weather: Weather = CALM,
    open_coordinator: type[SimulatedCoordinator] = SimulatedCoordinator,
) -> AsyncIterator[SimulatedRun]:
    """Yield a run in which every fault follows from `seed`; everything in it ends with the context."""
    chance = random.Random(seed)
    coordinator = open_coordinator(state, chance, journal(chance))
    async with asyncio.TaskGroup() as tasks:
        run = SimulatedRun(coordinator, Witness(coordinator.journal), chance, tasks, weather)
        background = tasks.create_task(coordinator.live())
        await coordinator.wait_for(lambda: coordinator.service.accepting)
        try:
            yield run
        finally:
            for client in run.clients:
                client.kill()
            coordinator.kill()
            background.cancel()


async def prove(run: RunWithClients) -> None:
    """Check that the audit finds no problem, and recomputes the replicas that clients held."""
    report = await run.audit()
    assert report.problems == ()
    assert report.replay_identical
    assert report.replicas_identical
    assert report.rounds >= run.coordinator.state.config.total_steps
    assert (report.duplicates, report.missing) == (0, 0)


async def repeatedly(act: Callable[[], Awaitable[None]], chance: random.Random, every_s: tuple[float, float]) -> None:
    """Act again and again, at random times, until cancelled."""
    while True:
        await asyncio.sleep(chance.uniform(*every_s))
        await act()


async def part_often(
    run: RunWithClients, clients: Sequence[SimulatedClient], most: int, away_s: float, every_s: tuple[float, float]
) -> None:
    """Cut off a random part of the clients for a while, again and again."""

    async def part() -> None:
        away = run.chance.sample(clients, run.chance.randint(1, most))
        for client in away:
            client.link.cut = True
        await asyncio.sleep(run.chance.uniform(1, away_s))
        for client in away:
            client.link.cut = False

    await repeatedly(part, run.chance, every_s)


async def come_and_go(run: RunWithClients, number: int) -> None:
    """Kill and start a process with this key again and again, with any trainer."""
    while True:
        client = run.start_client(number, run.chance.choice(["null", "numpy"]))
        await asyncio.sleep(run.chance.uniform(1, 90))
        client.kill()
        await asyncio.sleep(run.chance.uniform(0, 30))
