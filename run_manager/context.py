"""What one client is made of: what it brings from outside, and what its steps share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from batching.packing.packed_batches import Packing
from coordinator_client.session import CoordinatorSession
from data_providers.fetcher import DataFetcher, FetchSettings
from data_providers.protocol import DataProvider
from run_manager.events import Observer, ResultSettled, ignore
from run_manager.exchange.protocol import Exchange
from run_manager.readiness import Readiness
from run_manager.replica.keeper import ReplicaKeeper
from run_manager.round_view import RoundViews
from runtime.retry import RetryPolicy
from runtime.worker_thread import Worker
from state.config.state_file import StateFile
from state.documents import Outcome
from state.wire import Sha256
from trainers.protocol import Trainer


class Step(Protocol):
    """One step of the machine. It runs until it is done or overtaken, and then it is cancelled."""

    async def start(self) -> None:
        """Do what the step has to do for the document that it was made for."""
        ...


@dataclass(frozen=True, slots=True)
class RunAccess:
    """The run, as a client's data provider and trainer are opened from it.

    Attributes:
        state: the run's state file; `model.LLM.data_location` says where the data are.
        ticket: the client's present ticket for data servers.
    """

    state: StateFile
    ticket: Callable[[], str]


@dataclass(frozen=True, slots=True)
class ClientDependencies:
    """Everything that a client needs from outside; a simulation brings its own.

    Attributes:
        retry_policy: for how long anything that the run depends on is tried again; its clock is the client's.
        new_worker: a place for blocking work, by name: a thread, or inline in virtual time.
        open_provider: opens the run's data.
        open_trainer: opens the run's trainer, which closes the worker that it is given.
        observer: told what happens.
    """

    retry_policy: RetryPolicy
    new_worker: Callable[[str], Worker]
    open_provider: Callable[[RunAccess], Awaitable[DataProvider]]
    open_trainer: Callable[[RunAccess, Worker], Awaitable[Trainer]]
    observer: Observer


class TentativeState:
    """Binds the trainer's inner state to the fate of the result that it came with (`docs/merging.md`)."""

    def __init__(self, trainer: Trainer, observer: Observer = ignore) -> None:
        self._trainer = trainer
        self._observer = observer
        self._result_sha256: Sha256 | None = None

    def published(self, result_sha256: Sha256) -> None:
        """Note that the last `train` led to this result."""
        self._result_sha256 = result_sha256

    def settle(self, outcome: Outcome) -> None:
        """Keep the inner state if the outcome contains the result, else forget it."""
        mine = self._result_sha256
        if mine is not None and any(entry.result_sha256 == mine for entry in outcome.entries):
            self._trainer.commit_inner_state()
            self._result_sha256 = None
            self._observer(ResultSettled(is_applied=True))
        else:
            self.forget()

    def forget(self) -> None:
        """Roll the inner state back: no outcome will contain the result."""
        self._trainer.roll_back_inner_state()
        if self._result_sha256 is not None:
            self._result_sha256 = None
            self._observer(ResultSettled(is_applied=False))


@dataclass(frozen=True, slots=True)
class StepContext:
    """Everything that the steps work with. A change of the run's configuration makes another one, with another `state`.

    Attributes:
        worker: where blocking work other than training and merging runs.
        packing: how samples become rows; None where they are trained on as they come.
    """

    session: CoordinatorSession
    dependencies: ClientDependencies
    state: StateFile
    exchange: Exchange
    keeper: ReplicaKeeper
    readiness: Readiness
    rounds: RoundViews
    trainer: Trainer
    tentative: TentativeState
    provider: DataProvider
    worker: Worker
    packing: Packing | None

    def fetcher(self) -> DataFetcher:
        """Return a fetcher of the run's data, as the run's configuration has it now."""
        settings = FetchSettings.of(self.state)
        return DataFetcher(self.provider, settings, self.dependencies.retry_policy.jitter, self.trainer.vocabulary)
