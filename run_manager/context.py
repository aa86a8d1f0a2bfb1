"""The parts of one client: those that come from outside, and those that its steps share."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from epochal.coordinator_client.session import CoordinatorSession
from epochal.data_providers.fetcher import DataFetcher, FetchSettings
from epochal.data_providers.next_round_samples import AheadSamples
from epochal.data_providers.protocol import DataProvider
from epochal.data_providers.providers.growing_data import FollowingDataProvider
from epochal.run_manager.client_round_times import RoundTimes
from epochal.run_manager.events import Observer, ResultSettled, ignore
from epochal.run_manager.exchange.result_exchange import Exchange
from epochal.run_manager.feedback.error_feedback import ErrorFeedback
from epochal.run_manager.readiness import Readiness
from epochal.run_manager.replica.checkpoint_download import CheckpointSource
from epochal.run_manager.replica.keeper import ReplicaKeeper
from epochal.run_manager.replica.saving import SaveReplica
from epochal.run_manager.round_view import RoundViews
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.files.spool import Spool
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome
from epochal.state.model.tensors import Tensors, TensorStream
from epochal.state.results import ResultHeader, result_of
from epochal.state.wire import Sha256
from epochal.trainers.protocol import Trainer


class Step(Protocol):
    """One step of the machine. It is cancelled when a run document asks for another step."""

    async def start(self) -> None:
        """Do the step's work for its run document."""
        ...


@dataclass(frozen=True, slots=True)
class RunAccess:
    """The run, as a client's data provider and trainer are opened from it.

    Attributes:
        state: the run's state file; `model.LLM.data_location` says where the data are.
        spec: the run's model, complete; the state file may leave a part of it to the run's model document.
        ticket: returns the client's present ticket for data servers.
        document_version: returns the version of the run document that the client follows.
    """

    state: StateFile
    spec: ModelSpec
    ticket: Callable[[], str]
    document_version: Callable[[], int] = lambda: 0


def no_mirrors(_: StateFile) -> Sequence[CheckpointSource]:
    """Return nothing: checkpoints come from the coordinator alone."""
    return ()


@dataclass(frozen=True, slots=True)
class ClientDependencies:
    """Everything that a client needs from outside; a simulation brings its own.

    Attributes:
        retry_policy: how long failed requests are repeated; its clock is the client's.
        new_worker: returns a worker for blocking calls, by name: a thread, or inline in virtual time.
        open_provider: opens the run's data.
        open_trainer: opens the run's trainer, which closes the worker that it is given.
        observer: receives every event.
        spool_folder: where the client makes the folder of its temporary files.
        permissions: what the run's documents may use of this machine.
        feedback_stem: path with which the names of the files of error feedback begin, so that a client that starts
            again goes on with them; None if they go with this one.
        check_trainer: raises an error that ends the client before it joins, if its trainer cannot train the run of this
            state file and model; the model may lack what only the run's first checkpoint says.
        check_trainer_further: goes on with the check while the client joins, and raises an error that ends it then;
            None where `check_trainer` checks everything.
        trainer_opens_in_s: estimates the seconds until `open_trainer` returns; None where nobody can. A client reports
            that it is ready a little earlier than that.
        save_replica: keeps a replica for the client's owner; None if none is to be kept. It raises `InvalidInput` where
            that can never be, which ends the client, and `ModelUnavailable` where it may be later.
        open_mirrors: opens the sources of checkpoints beside the coordinator, which the client closes.
        ahead_bytes: maximum size of the samples that are fetched ahead of their round; None for what the state file
            says.
    """

    retry_policy: RetryPolicy
    new_worker: Callable[[str], Worker]
    open_provider: Callable[[RunAccess], Awaitable[DataProvider]]
    open_trainer: Callable[[RunAccess, Worker], Awaitable[Trainer]]
    observer: Observer
    spool_folder: Path
    permissions: Permissions
    check_trainer: Callable[[StateFile, ModelSpec], Awaitable[None]] | None = None
    check_trainer_further: Callable[[], Awaitable[None]] | None = None
    trainer_opens_in_s: Callable[[], float] | None = None
    feedback_stem: Path | None = None
    open_mirrors: Callable[[StateFile], Sequence[CheckpointSource]] = no_mirrors
    ahead_bytes: int | None = None
    save_replica: SaveReplica | None = None


class _KeepsInnerState(Protocol):
    """A trainer's inner state, as `epochal.trainers.protocol.Trainer` has it."""

    def commit_inner_state(self) -> None: ...

    def roll_back_inner_state(self) -> None: ...


class TentativeState:
    """Binds the trainer's inner state, and error feedback, to the fate of the result that it came with.

    See `docs/merging.md`.
    """

    def __init__(
        self, trainer: _KeepsInnerState, observer: Observer = ignore, feedback: ErrorFeedback | None = None
    ) -> None:
        self._trainer = trainer
        self._observer = observer
        self._feedback = feedback
        self._result_sha256: Sha256 | None = None

    def published(self, result_sha256: Sha256) -> None:
        """Note that the last `train` led to this result."""
        if self._feedback is not None:
            self._feedback.published(result_sha256)
        self._result_sha256 = result_sha256

    def settle(self, outcome: Outcome) -> None:
        """Keep the inner state if the outcome contains the result, else forget it."""
        if self._feedback is not None:
            self._feedback.settle(outcome)
        result = self._result_sha256
        if result is not None and any(entry.result_sha256 == result for entry in outcome.entries):
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
    """Everything that the steps work with. A change of the run's configuration replaces it by one with a new `state`.

    Attributes:
        spec: the run's model, complete.
        worker: runs blocking calls other than training and merging.
        spool: holds replicas, results and checkpoints outside of memory.
        opening: the trainer, and what packs samples for it, as soon as they are there.
        feedback: what this client's codec has left out; None in a run without error feedback.
        ahead: the samples that were fetched ahead of their round.
        times: measures this client's rounds.
    """

    session: CoordinatorSession
    dependencies: ClientDependencies
    state: StateFile
    spec: ModelSpec
    exchange: Exchange
    keeper: ReplicaKeeper
    readiness: Readiness
    rounds: RoundViews
    opening: TrainerOpening
    tentative: TentativeState
    provider: FollowingDataProvider
    worker: Worker
    spool: Spool
    feedback: ErrorFeedback | None
    ahead: AheadSamples
    times: RoundTimes

    def result_of(self, header: ResultHeader, lineage: str, difference: Tensors) -> TensorStream:
        """Return the file of a result, encoded with the run's codec. Call it in a worker.

        Args:
            header: of the result.
            lineage: the run's history.
            difference: `start − end` of every parameter, float32.
        """
        if self.feedback is None:
            return result_of(header, difference, self.state.merge.max_abs)
        return self.feedback.encode(header, lineage, difference, self.state.merge.max_abs)

    def fetcher(self, vocabulary: int | None) -> DataFetcher:
        """Return a fetcher of the run's data with the settings of the present configuration.

        Args:
            vocabulary: tokens are below it; None to accept any token.
        """
        settings = FetchSettings.of(self.state)
        return DataFetcher(self.provider, settings, self.dependencies.retry_policy.jitter, vocabulary, self.ahead)
