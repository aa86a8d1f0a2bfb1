"""The client's part of a run: opened on the first document that needs it, and driven by run documents from then on.

`RunManager` has three stages. In the first, nothing of the run is known. The first Warmup (or whatever later phase a
client finds that joins mid-epoch) starts `init_run`, which reads the run's configuration and opens the data provider
and the trainer; that may take a while, so documents that come meanwhile are kept, the newest only. From then on every
document goes to the `StepStateMachine`. Source of the names: specs/data-provider.md.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from batching.packing.packed_batches import Packing
from coordinator_client.session import Member
from data_providers.fetcher import DataFetcher, FetchSettings
from data_providers.protocol import DataProvider, SourceUnavailable
from run_manager.context import RoundViews, StepContext, TentativeState
from run_manager.events import Observer
from run_manager.exchange.star import StarExchange
from run_manager.readiness import Readiness
from run_manager.replica.keeper import HeldReplica, ReplicaKeeper
from run_manager.replica.merger import Merger
from run_manager.step_state_machine import StepStateMachine
from runtime.background_task import BackgroundTask
from runtime.clock import Clock
from runtime.retry import Jitter
from runtime.worker_thread import Worker
from state.config.state_file import StateFile
from state.documents import RunDocument
from state.errors import Desync
from state.merging import OuterStep
from state.phases import RunState
from state.wire import Sha256
from trainers.protocol import Trainer

log = logging.getLogger(__name__)

EPOCH_PHASES = frozenset({RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS})
"""The phases in which a client needs model and data."""


@dataclass(frozen=True, slots=True)
class RunAccess:
    """What a client's data provider and trainer are opened from.

    Attributes:
        state: the run's state file; `model.LLM.data_location` says where the data are.
        ticket: the client's present ticket for data servers.
    """

    state: StateFile
    ticket: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Equipment:
    """What a client brings from outside; a simulation brings its own.

    Attributes:
        clock: seconds.
        jitter: the only randomness of a client.
        new_worker: a place for blocking work, by name: a thread, or inline in virtual time.
        open_provider: the run's data, opened.
        open_trainer: the run's trainer, opened; it closes the worker that it is given.
        observer: told what happens.
    """

    clock: Clock
    jitter: Jitter
    new_worker: Callable[[str], Worker]
    open_provider: Callable[[RunAccess], Awaitable[DataProvider]]
    open_trainer: Callable[[RunAccess, Worker], Awaitable[Trainer]]
    observer: Observer


class Stage(StrEnum):
    """How far this client's part of the run is opened."""

    NOT_INITIALISED = "not initialised"
    INITIALISING = "initialising"
    RUNNING = "running"


@dataclass(frozen=True, slots=True)
class _Opened:
    """Everything that `init_run` opened."""

    context: StepContext
    machine: StepStateMachine
    provider: DataProvider
    merger: Merger
    config_sha256: Sha256


class RunManager:
    """This client's part of the run.

    Args:
        member: asks the coordinator.
        equipment: clock, workers, data, trainer.
        group: where background work runs; it must outlive the manager. Errors that end the client surface there.
    """

    def __init__(self, member: Member, equipment: Equipment, group: asyncio.TaskGroup) -> None:
        self._member = member
        self._equipment = equipment
        self._group = group
        self._init_task = BackgroundTask(group, "init_run")
        self._keeper_task = BackgroundTask(group, "replica")
        self._opened: _Opened | None = None
        self._latest: RunDocument | None = None
        self._lineage: str | None = None
        self._applying = asyncio.Lock()

    @property
    def stage(self) -> Stage:
        """How far the run is opened."""
        if self._opened is not None:
            return Stage.RUNNING
        return Stage.INITIALISING if self._init_task.is_busy else Stage.NOT_INITIALISED

    @property
    def held(self) -> HeldReplica | None:
        """The replica that this client holds now."""
        return None if self._opened is None else self._opened.context.keeper.held

    async def apply_state(self, document: RunDocument) -> None:
        """Takes a run document; returns promptly, whatever the client is doing.

        Raises:
            Desync: client and run contradict each other however often the client starts anew; do not retry.
        """
        async with self._applying:
            self._latest = document
            if self._opened is not None:
                await self._apply(self._opened, document)
            elif not self._init_task.is_busy and document.run_state in EPOCH_PHASES:
                await self._init_task.replace(self._initialise(document))

    async def init_run(self, document: RunDocument) -> None:
        """Reads the run's configuration, and opens data provider, trainer and merger.

        Args:
            document: names the configuration.

        Raises:
            DataError: the data cannot be opened, for good or for as long as the retry policy allows.
            UnsoundArithmetic: this machine must not merge.
            InvalidInput, Unsupported: no such trainer, or one that cannot train this model; the user's fault.
        """
        member, equipment = self._member, self._equipment
        state = await member.call(lambda api: api.config(document.config_sha256))
        worker = equipment.new_worker("epochal-codec")
        merge = state.merge
        merger = Merger(OuterStep(merge.outer_lr, merge.outer_momentum), equipment.new_worker("epochal-merge"))
        trainer: Trainer | None = None
        try:
            await merger.verify()
            access = RunAccess(state, member.data_ticket)
            trainer = await equipment.open_trainer(access, equipment.new_worker("epochal-train"))
            packing = Packing.of(state, trainer.vocabulary, worker)
            provider = await self._open_provider(state)
        except BaseException:
            await worker.aclose()
            await merger.aclose()
            if trainer is not None:
                await trainer.aclose()
            raise
        exchange = StarExchange(member, worker)
        tentative = TentativeState(trainer)
        keeper = ReplicaKeeper(member, exchange, merger, worker, tentative.settle, equipment.observer)
        context = StepContext(
            member=member,
            state=state,
            exchange=exchange,
            keeper=keeper,
            readiness=Readiness(member, keeper, provider.fingerprint, equipment.observer),
            rounds=RoundViews(member),
            trainer=trainer,
            tentative=tentative,
            fetcher=DataFetcher(provider, FetchSettings.of(state), equipment.jitter, trainer.vocabulary),
            worker=worker,
            clock=equipment.clock,
            observer=equipment.observer,
            packing=packing,
        )
        machine = StepStateMachine(context, self._group)
        await self._keeper_task.replace(keeper.run())
        self._opened = _Opened(context, machine, provider, merger, document.config_sha256)

    async def replica_at(self, step: int) -> HeldReplica | None:
        """Replica `step`, as soon as this client holds it; None when its part of the run was never opened."""
        return None if self._opened is None else await self._opened.context.keeper.at(step)

    async def round_done(self) -> None:
        """Returns when this client owes nothing more to the round under way; at once where there is none."""
        if self._opened is not None:
            await self._opened.machine.round_done()

    async def aclose(self) -> None:
        """Ends all background work and closes provider, trainer and merger; bounded."""
        await self._init_task.replace(None)
        opened = self._opened
        if opened is None:
            return
        self._opened = None
        await opened.machine.stop()
        await self._keeper_task.replace(None)
        await opened.provider.aclose()
        await opened.context.trainer.aclose()
        await opened.merger.aclose()
        await opened.context.worker.aclose()

    async def _initialise(self, document: RunDocument) -> None:
        await self.init_run(document)
        async with self._applying:
            if self._opened is not None and self._latest is not None:
                await self._apply(self._opened, self._latest)

    async def _apply(self, opened: _Opened, document: RunDocument) -> None:
        if self._lineage not in (None, document.lineage):
            log.warning("run_restored", extra={"before": self._lineage, "after": document.lineage})
            await opened.machine.start_anew()
            opened.context.keeper.forget()
        self._lineage = document.lineage
        if document.config_sha256 != opened.config_sha256:
            opened = await self._reconfigure(opened, document)
        try:
            await opened.machine.apply_state(document)
        except Desync as desync:
            log.warning("desync", extra={"reason": desync.message})
            await opened.machine.start_anew()
            opened.context.keeper.distrust(desync.message)
            await opened.machine.apply_state(document)

    async def _reconfigure(self, opened: _Opened, document: RunDocument) -> _Opened:
        """Takes over what of the configuration may change while a run goes on (`state/config/changes.py`)."""
        state = await self._member.call(lambda api: api.config(document.config_sha256))
        opened.context.state = state
        opened.context.fetcher = DataFetcher(
            opened.provider, FetchSettings.of(state), self._equipment.jitter, opened.context.trainer.vocabulary
        )
        self._opened = _Opened(opened.context, opened.machine, opened.provider, opened.merger, document.config_sha256)
        return self._opened

    async def _open_provider(self, state: StateFile) -> DataProvider:
        """The run's data; a source that does not answer yet is waited for."""
        backoff = self._member.retry_policy.begin()
        while True:
            try:
                return await self._equipment.open_provider(RunAccess(state, self._member.data_ticket))
            except SourceUnavailable as error:
                log.info("data_not_available_yet", extra={"reason": str(error)})
                await backoff.wait(error)
