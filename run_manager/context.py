"""From what the parts of one client are made: what comes from outside, and the configuration of the run."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from epochal.coordinator_client.session import CoordinatorSession
from epochal.data_providers.protocol import DataProvider
from epochal.run_manager.events import Observer
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import LaterMixes, MergeConfig, StateFile
from epochal.state.documents import RunDocument
from epochal.state.errors import Desync
from epochal.state.model.first_model import model_digest
from epochal.trainers.protocol import Trainer

CheckTrainer: TypeAlias = Callable[[StateFile, ModelSpec], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RunAccess:
    """The run, as a client's data provider and trainer are opened from it.

    Attributes:
        state: the run's state file; `model.LLM.data_location` names the data.
        spec: the run's model, complete; the state file may leave a part of it to the run's model document.
        ticket: returns the client's present ticket for data servers.
        document_version: returns the version of the run document that the client follows.
        mixes: returns the weights of the run's mix, as they are known now (`StateFile.later_mixes`).
    """

    state: StateFile
    spec: ModelSpec
    ticket: Callable[[], str]
    document_version: Callable[[], int] = lambda: 0
    mixes: Callable[[], LaterMixes] = tuple


@dataclass(frozen=True, slots=True)
class ClientDependencies:
    """Everything that a client needs from outside; a simulation brings its own.

    Attributes:
        retry_policy: how long failed requests are repeated; its clock is the client's.
        new_worker: returns a worker for blocking calls, by name: a thread, or inline in virtual time.
        open_provider: opens the run's data.
        open_trainer: opens the run's trainer, which closes the worker that it is given.
        observer: receives every event.
        spool_folder: of the client's temporary files.
        permissions: what the run's documents may use of this machine.
        check_trainer: raises an error that ends the client before it joins, if its trainer cannot train the run of this
            state file and model; the model may lack parts that only the run's first checkpoint has.
    """

    retry_policy: RetryPolicy
    new_worker: Callable[[str], Worker]
    open_provider: Callable[[RunAccess], Awaitable[DataProvider]]
    open_trainer: Callable[[RunAccess, Worker], Awaitable[Trainer]]
    observer: Observer
    spool_folder: Path
    permissions: Permissions
    check_trainer: CheckTrainer | None = None


class FollowedConfig:
    """The configuration of the run, as its newest document names it.

    Attributes:
        state: the run's state file, with the changes that are announced. A step reads it once, when it starts.
        spec: the run's model, complete.
    """

    def __init__(
        self,
        session: CoordinatorSession,
        document: RunDocument,
        state: StateFile,
        spec: ModelSpec,
        check_trainer: CheckTrainer | None = None,
    ) -> None:
        self._session = session
        self._check_trainer = check_trainer
        self._sha256 = document.config_sha256
        self._model_sha256 = model_digest(spec)
        self._version = document.version
        self.state = state
        self.spec = spec

    @classmethod
    async def read(
        cls, session: CoordinatorSession, document: RunDocument, check_trainer: CheckTrainer | None = None
    ) -> "FollowedConfig":
        """Return the configuration that a document names; the model is the state file's without a model document."""
        state, model_sha256 = await session.config(document.config_sha256), document.model_sha256
        return cls(
            session,
            document,
            state,
            state.model.LLM.spec if model_sha256 is None else await session.model(model_sha256),
            check_trainer,
        )

    async def check(self) -> None:
        """Raise an error that ends the client if its trainer cannot train the run, or not with its later changes."""
        if self._check_trainer is not None:
            for state in (self.state, *(self.state.at(change.at_step) for change in self.state.changes)):
                await self._check_trainer(state, self.spec)

    def access(self) -> RunAccess:
        """Return the run as it is now, for a data provider or a trainer."""
        session = self._session
        return RunAccess(
            self.state, self.spec, session.data_ticket, lambda: self._version, lambda: self.state.later_mixes
        )

    def merge_at(self, step: int) -> MergeConfig:
        """Return how the run merges in a step."""
        return self.state.at(step).merge

    async def apply_state(self, document: RunDocument) -> None:
        """Take over a configuration of which the changeable part has changed (`state/config/changes.py`).

        Raises:
            Desync: the run has another model now.
            EpochalError: as `check`.
        """
        self._version = document.version
        if document.model_sha256 not in (None, self._model_sha256):
            raise Desync("the run now has another model than the one that this client has opened; start it again")
        if document.config_sha256 != self._sha256:
            known, self.state = self.state.changes, await self._session.config(document.config_sha256)
            self._sha256 = document.config_sha256
            if self.state.changes != known:
                await self.check()
