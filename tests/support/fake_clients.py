"""Agents for tests: real ones, in virtual time, on a `FakeCoordinator` and made-up data."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from coordinator_client.client_key import ClientKey
from coordinator_client.session import ClientProfile
from data_providers.dummy import DummyDataProvider
from data_providers.protocol import DataProvider, DatasetSpec
from run_manager.agent import Agent
from run_manager.context import ClientDependencies, RunAccess
from run_manager.events import Event
from runtime.retry import RetryPolicy
from runtime.worker_thread import InlineWorker, Worker
from state.config.state_file import StateFile
from state.messages import Capabilities
from tests.support.fake_coordinator import FakeCoordinator, Faults, no_faults
from tests.support.virtual_time import VirtualClock
from trainers.protocol import Trainer
from trainers.registry import open_trainer

E = TypeVar("E")


async def open_dummy_provider(request: RunAccess) -> DataProvider:
    return DummyDataProvider(DatasetSpec(2, request.state.model.LLM.max_seq_len))


def key_of(number: int) -> ClientKey:
    return ClientKey.from_seed(bytes([number]) * 32)


@dataclass
class FakeClient:
    """An agent and everything that it reported."""

    agent: Agent
    events: list[Event]

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]


@dataclass
class ClientSpec:
    """What is special about a client."""

    trainer: str = "null"
    open_trainer: Callable[[StateFile, Worker], Trainer] | None = None  # the trainer called `trainer` if None
    new_worker: Callable[[str], Worker] = lambda name: InlineWorker()
    faults: Faults = no_faults
    open_provider: Callable[[RunAccess], Awaitable[DataProvider]] = open_dummy_provider
    reconnect_bound_s: float = 3600.0
    capabilities: Capabilities = field(default_factory=Capabilities)


def opener(open_by_state: Callable[[StateFile, Worker], Trainer]) -> Callable[[RunAccess, Worker], Awaitable[Trainer]]:
    """Opens trainers that need no more than the state file."""

    async def open_trainer(access: RunAccess, worker: Worker) -> Trainer:
        return open_by_state(access.state, worker)

    return open_trainer


def fake_client(coordinator: FakeCoordinator, number: int, spec: ClientSpec | None = None) -> FakeClient:
    """A client with the key of this number."""
    spec = spec or ClientSpec()
    events: list[Event] = []
    dependencies = ClientDependencies(
        retry_policy=RetryPolicy(VirtualClock(), lambda: 0.5, spec.reconnect_bound_s),
        new_worker=spec.new_worker,
        open_provider=spec.open_provider,
        open_trainer=opener(spec.open_trainer or partial(open_trainer, spec.trainer)),
        observer=events.append,
    )
    api = coordinator.api(spec.faults)
    agent = Agent(api, ClientProfile(key_of(number), spec.capabilities), dependencies)
    return FakeClient(agent, events)
