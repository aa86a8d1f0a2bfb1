"""Clients for tests: real agents in virtual time, on made-up data."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from epochal.coordinator_client.client_key import ClientKey
from epochal.coordinator_client.session import ClientProfile
from epochal.data_providers.protocol import CorruptData, DataProvider, DatasetSpec, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.agent import Agent, ClientEnd
from epochal.run_manager.context import ClientDependencies, RunAccess
from epochal.run_manager.events import Event
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import InlineWorker, Worker
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.config.state_file import StateFile
from epochal.state.intervals import DataIds
from epochal.state.messages.requests import Capabilities
from epochal.state.wire import ClientId
from epochal.trainers.protocol import Trainer
from epochal.trainers.registry import open_trainer
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.simulate.simulated_network import ForwardedApi, Link
from tests.support.simulate.virtual_time import VirtualClock

E = TypeVar("E")


async def open_dummy_provider(request: RunAccess) -> DataProvider:
    return DummyDataProvider(DatasetSpec(2, request.state.model.LLM.max_seq_len))


def key_of(number: int) -> ClientKey:
    return ClientKey.from_seed(number.to_bytes(32))


@dataclass
class ClientSpec:
    """The options of a client.

    Attributes:
        open_trainer: opens its trainer; None for the one named `trainer`.
        saw: called with every event.
        spool_folder: of its files, those included that it finds when it starts again.
    """

    trainer: str = "null"
    open_trainer: Callable[[StateFile, Worker], Trainer] | None = None
    new_worker: Callable[[str], Worker] = lambda name: InlineWorker()
    open_provider: Callable[[RunAccess], Awaitable[DataProvider]] = open_dummy_provider
    reconnect_bound_s: float = 3600.0
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(codecs=SPOKEN))
    saw: Callable[[Event], None] | None = None
    spool_folder: Path = SPOOL_PARENT


@dataclass(eq=False)
class SimulatedClient:
    """One client process, and its events."""

    number: int
    agent: Agent
    link: Link
    events: list[Event]
    task: asyncio.Task[ClientEnd] | None = None

    @property
    def client_id(self) -> ClientId:
        return key_of(self.number).client_id

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def kill(self) -> None:
        """End the process without a withdrawal. Its machine closes the connections."""
        self.link.closed = True
        self.vanish()

    def vanish(self) -> None:
        """End the process as a machine that loses its power does: nobody closes the connections."""
        self.link.cut = True
        if self.task is not None:
            self.task.cancel()


def simulated_client(api: ForwardedApi, number: int, link: Link, spec: ClientSpec) -> SimulatedClient:
    """Return a client with the key of this number, not yet running."""
    events: list[Event] = []

    def observe(event: Event) -> None:
        events.append(event)
        if spec.saw is not None:
            spec.saw(event)

    async def open_any_trainer(access: RunAccess, worker: Worker) -> Trainer:
        if spec.open_trainer is not None:
            return spec.open_trainer(access.state, worker)
        return open_trainer(spec.trainer, access.state, access.spec, worker)

    dependencies = ClientDependencies(
        retry_policy=RetryPolicy(VirtualClock(), link.chance.random, spec.reconnect_bound_s),
        new_worker=spec.new_worker,
        open_provider=spec.open_provider,
        open_trainer=open_any_trainer,
        observer=observe,
        spool_folder=spec.spool_folder,
        permissions=Permissions.of_volunteer(),
    )
    agent = Agent(api, ClientProfile(key_of(number), spec.capabilities), dependencies)
    return SimulatedClient(number, agent, link, events)


class FaultyData(DummyDataProvider):
    """Made-up data, of which some indices are corrupt.

    Attributes:
        closed_count: how often it was closed.
    """

    def __init__(self, corrupt: frozenset[int] = frozenset(), fingerprint: str | None = None) -> None:
        super().__init__(DatasetSpec(2, 16))
        self.fingerprint = fingerprint or self.fingerprint
        self._corrupt = corrupt
        self.closed_count = 0

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        if any(index in data_ids for index in self._corrupt):
            raise CorruptData(f"a checksum differs in {data_ids}")
        return await super().get_samples(data_ids)

    async def aclose(self) -> None:
        self.closed_count += 1
        await super().aclose()


def with_data(provider: DataProvider, **fields: Any) -> ClientSpec:
    """Return the options of a client with these data."""

    async def open_provider(request: RunAccess) -> DataProvider:
        assert request.ticket(), "a client has joined before it opens its data"
        return provider

    return ClientSpec(open_provider=open_provider, **fields)
