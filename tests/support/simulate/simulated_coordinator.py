"""A coordinator that is killed and started again, in virtual time: the real service over a store that outlives it.

Appending a record takes a while before it is kept and a while after, so that a kill meets both records that are not yet
kept, and records that are kept and not yet published.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.insight.run_history import RunHistory
from epochal.coordinator.machine.instructions import OutcomeDecided
from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.machine.records import RecordBody, SnapshotBody
from epochal.coordinator.machine.run import Run
from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator.run.opening import ServiceOptions
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.run.service_events import ServiceEvent
from epochal.coordinator.store.store import StoreReader
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome, RunDocument
from epochal.state.errors import CoordinatorUnreachable, EpochalError
from epochal.state.model.first_model import FirstModel
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256, parse_document
from epochal.trainers.first_parameters import make_first_model, model_layout
from tests.support.drive.served import handlers_of, update_maker_of
from tests.support.simulate.memory_store import MemoryBlobs, MemoryDatabase, MemoryJournal, MemoryStore
from tests.support.simulate.virtual_time import VirtualClock

MAX_FSYNC_S = 0.02
RESTART_S = 2.0

T = TypeVar("T")


class SlowJournal(MemoryJournal):
    """A journal that takes time, and knows which documents its records vouch for."""

    def __init__(self, chance: random.Random, database: MemoryDatabase | None = None) -> None:
        super().__init__(database)
        self._chance = chance
        self.kept: dict[int, Sha256] = {}
        """The digest of each version of the run document that a kept entry vouches for."""

    async def append(self, record: JournalRecord) -> None:
        await asyncio.sleep(self._chance.uniform(0, MAX_FSYNC_S))
        await self._keep(record)
        body = parse_document(RecordBody, record.body)
        self.kept[body.version] = body.document_sha256
        await asyncio.sleep(self._chance.uniform(0, MAX_FSYNC_S))

    async def _keep(self, record: JournalRecord) -> None:
        await super().append(record)

    async def open_segment(self, snapshot: Snapshot) -> None:
        await asyncio.sleep(self._chance.uniform(0, MAX_FSYNC_S))
        await super().open_segment(snapshot)
        body = parse_document(SnapshotBody, snapshot.body)
        self.kept[body.version] = body.document_sha256
        await asyncio.sleep(self._chance.uniform(0, MAX_FSYNC_S))

    def lose_power(self) -> None:
        """Lose nothing that was kept, as a sound journal does when its machine stops."""


@dataclass(frozen=True, slots=True)
class _Life:
    """One process, from its start to its kill."""

    handlers: Handlers
    tasks: asyncio.TaskGroup


class SimulatedCoordinator:
    """One run's coordinator, which may be killed and started again.

    Args:
        state: the state file that each start reads.
        chance: seeds, and the time that keeping takes.
        journal: where the run is kept.
    """

    def __init__(self, state: StateFile, chance: random.Random, journal: SlowJournal | None = None) -> None:
        self.state = state
        self.journal = journal or SlowJournal(chance)
        self.clock = VirtualClock()
        self.starts = 0
        self.makes_updates = True
        """Whether a process that starts makes updates."""
        self.outcomes: list[Outcome] = []
        self._chance = chance
        private_key = chance.randbytes(32)
        self._key = SigningKey(private_key)
        self._private_key = private_key
        self._files = MemoryBlobs(state.blobs.max_total_bytes)
        self.store = self._opened_store()
        self._life: _Life | None = None
        self._living: asyncio.Task[None] | None = None
        self._is_restored = False
        self._news = Broadcast()

    def _opened_store(self) -> MemoryStore:
        return MemoryStore(0, self.journal.reopened(), self._private_key, self._files)

    @property
    def reader(self) -> StoreReader:
        """What reads the run, for an audit."""
        return self.store.reader

    @property
    def service(self) -> CoordinatorService:
        """The living process's service."""
        return self.handlers().service

    @property
    def run(self) -> Run:
        """The run as it is kept."""
        return self.service.run

    @property
    def document(self) -> RunDocument:
        """The run document that is published."""
        return self.service.published.document

    def handlers(self) -> Handlers:
        """The living process's handlers.

        Raises:
            CoordinatorUnreachable: there is no process.
        """
        if self._life is None:
            raise CoordinatorUnreachable("the coordinator is down")
        return self._life.handlers

    async def live(self) -> None:
        """Run until cancelled. After a kill, run again when `start` is called."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._living = living = tasks.create_task(self._live())
                await asyncio.wait({living})
                if not living.cancelled():
                    living.result()
                await self.wait_for(lambda: self._living is None)

    def kill(self) -> None:
        """End the process at once, in the middle of its requests."""
        self._life = None
        self.journal.lose_power()
        if self._living is not None:
            self._living.cancel()

    def start(self, *, is_restored: bool = False) -> None:
        """Start the process again; `is_restored` if its store holds a backup."""
        self._living = None
        self._is_restored = is_restored
        self._news.notify()

    async def restart_after(self, away_s: float) -> None:
        """Kill the process, and start it again `away_s` seconds later."""
        self.kill()
        await asyncio.sleep(away_s)
        self.start()

    def backup(self) -> list[Segment]:
        """Return the present journal."""
        return list(self.journal.segments)

    def restore(self, backup: list[Segment]) -> None:
        """Kill the process, and start it again on an older journal; blobs stay."""
        self.kill()
        self.journal.segments = list(backup)
        self.outcomes.clear()
        self.start(is_restored=True)

    async def _live(self) -> None:
        def new_seed() -> str:
            return self._chance.randbytes(32).hex()

        async def make(step: int) -> FirstModel:
            return make_first_model(self.state, step)

        genesis = Genesis(model_layout, make)
        self.store = self._opened_store()
        history, key = RunHistory(self.store.journal, InlineWorker()), self._key.public_key_hex
        options = ServiceOptions(self.store, self.clock, key, history, new_seed=new_seed, genesis=genesis)
        service = await CoordinatorService.open(options, self.state, is_restored=self._is_restored)
        service.watch(self._note)
        handlers = handlers_of(service, history, self._key, genesis.layout_of)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(service.serve())
            await service.started.wait()
            if self.makes_updates:
                tasks.create_task(update_maker_of(handlers).run())
            self.starts += 1
            self._life = _Life(handlers, tasks)
            self._news.notify()

    def _note(self, event: ServiceEvent) -> None:
        if isinstance(event, OutcomeDecided) and event.outcome is not None:
            self.outcomes.append(event.outcome)
        self._news.notify()

    def door(self, chance: random.Random) -> "SimulatedCoordinator":
        """Return its address."""
        del chance
        return self

    async def ask(self, name: str, request: Callable[[], Awaitable[T]]) -> T:
        """Let the living process answer. A request goes on if its client is cancelled, and ends with the process.

        Raises:
            CoordinatorUnreachable: there is no process, or it died on the way.
            EpochalError: the request raised it.
        """
        del name
        life = self._life
        if life is None:
            raise CoordinatorUnreachable("the coordinator is down")

        async def answer() -> T | EpochalError:
            try:
                return await request()
            except EpochalError as error:
                return error

        task = life.tasks.create_task(answer())
        await asyncio.wait({task})
        if task.cancelled():
            raise CoordinatorUnreachable("the coordinator died")
        found = task.result()
        if isinstance(found, EpochalError):
            raise found
        return found

    async def reached(self, phase: RunState, step: int = 0) -> None:
        """Return when this phase of this step or a later one is published."""
        await self.wait_for(lambda: self.document.run_state is phase and self.document.step >= step)

    async def wait_for(self, ready: Callable[[], bool]) -> None:
        """Return when `ready()` is true; check again whenever a record is kept."""
        while True:
            try:
                if ready():
                    return
            except CoordinatorUnreachable:
                pass
            await self._news.wait()
