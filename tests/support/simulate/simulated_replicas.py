"""Several coordinators of one run in virtual time, over one database, each of which is killed, stopped and cut off."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from epochal.coordinator.api.fresh_view import UNCERTAIN_STATUSES
from epochal.coordinator.auth.signing_key import SigningKey
from epochal.coordinator.handlers import Handlers
from epochal.coordinator.insight.run_history import RunHistory
from epochal.coordinator.machine.instructions import OutcomeDecided
from epochal.coordinator.run.genesis import Genesis
from epochal.coordinator.run.opening import ServiceOptions
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.run.service_events import ServiceEvent
from epochal.coordinator.store.sql.notes import KEY
from epochal.coordinator.store.store import StoreReader
from epochal.coordinator_client.http import ANSWER_TIMEOUT_S
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.http.problem_json import problem_response
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.state_file import StateFile
from epochal.state.documents import Outcome
from epochal.state.errors import CoordinatorUnreachable, EpochalError, Refused, StoreFailed
from epochal.state.model.first_model import FirstModel
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from epochal.trainers.first_parameters import make_first_model, model_layout
from tests.support.drive.served import handlers_of, update_maker_of
from tests.support.simulate.memory_store import reader_of
from tests.support.simulate.safety import SafetyBroken, Witness
from tests.support.simulate.simulated_database import Line, SimulatedDatabase, VouchingDatabase, store_on
from tests.support.simulate.simulated_process import PROCESS, Ended, Process, spawn
from tests.support.simulate.simulated_run import RunWithClients
from tests.support.simulate.virtual_time import VirtualClock

RESTART_S = 2.0
"""Time after which a coordinator that ended is started again."""
READING = (
    "run_document",
    "config",
    "model",
    "manifest",
    "roster",
    "work",
    "outcome",
    "own_outcome",
    "results",
    "standing",
    "get_blob",
)
"""Names of the requests that change nothing."""

T = TypeVar("T")


@dataclass(eq=False)
class SimulatedReplica:
    """One coordinator: its machine's clock, its connections, and the process that serves at present.

    Attributes:
        clock: of its machine.
        line: to the database.
        away_s: time from the next end of the process to its start.
    """

    number: int
    clock: VirtualClock = field(default_factory=VirtualClock)
    line: Line = field(default_factory=Line)
    away_s: float = RESTART_S
    process: Process = field(default_factory=Process)
    handlers: Handlers | None = None
    tasks: asyncio.TaskGroup | None = None
    living: asyncio.Task[None] | None = None

    @property
    def serves(self) -> bool:
        """Whether a balancer's probe finds a process that is ready."""
        return self.handlers is not None and self.handlers.service.accepting and not self.process.is_stopped

    def kill(self, away_s: float = RESTART_S) -> None:
        """End the process at once, in the middle of its requests and transactions."""
        self.handlers, self.away_s = None, away_s
        self.process.kill()
        if self.living is not None:
            self.living.cancel()


class Door:
    """The address of the run as one client uses it: a balancer chooses a replica for each request, or keeps to one.

    Args:
        knows: whether the balancer asks no replica that is not ready, if another one is.
        stays: whether it keeps to one for as long as that answers.
    """

    def __init__(self, replicas: "SimulatedReplicas", chance: random.Random, *, knows: bool, stays: bool) -> None:
        self.state = replicas.state
        self._replicas = replicas
        self._chance = chance
        self._knows = knows
        self._stays = stays
        self._last: SimulatedReplica | None = None

    def handlers(self) -> Handlers:
        """Return the handlers of the coordinator whose task asks. Raise `CoordinatorUnreachable` if it has died."""
        process = PROCESS.get()
        for replica in self._replicas.all:
            if replica.process is process and replica.handlers is not None:
                return replica.handlers
        raise CoordinatorUnreachable("the coordinator died")

    async def ask(self, name: str, request: Callable[[], Awaitable[T]]) -> T:
        """Let a coordinator answer. A request goes on if its client is cancelled, and ends with the process.

        Raises:
            CoordinatorUnreachable: there is no process, it does not answer, or it died on the way.
            EpochalError: the request raised it.
        """
        replica = self._chosen()
        process, tasks = replica.process, replica.tasks
        if replica.handlers is None or tasks is None or process.is_dead:
            raise CoordinatorUnreachable("the coordinator is down")

        async def answer() -> T | EpochalError:
            try:
                return await self._fresh(name, request)
            except EpochalError as error:
                return error

        try:
            task = spawn(tasks, answer(), process.context())
        except Ended:
            raise CoordinatorUnreachable("the coordinator is down") from None
        wait_s = self.state.config.client_timeout_s / 3
        done, _ = await asyncio.wait({task}, timeout=ANSWER_TIMEOUT_S + wait_s)
        if not done or task.cancelled() or process.is_dead:
            self._last = None
            raise CoordinatorUnreachable("the coordinator died or does not answer")
        found = task.result()
        if isinstance(found, EpochalError):
            raise found
        return found

    def _chosen(self) -> SimulatedReplica:
        found = self._replicas.all
        if self._knows:
            found = [replica for replica in found if replica.serves] or found
        if not (self._stays and self._last in found):
            self._last = self._chance.choice(found)
        assert self._last is not None
        return self._last

    async def _fresh(self, name: str, request: Callable[[], Awaitable[T]]) -> T:
        """Answer as `coordinator/api/fresh_view.py` lets a coordinator answer."""
        service = self.handlers().service
        if service.replicas.is_alone or name == "run_document":  # a poll waits for what is newer anyway
            return await request()
        try:
            await service.replicas.fresh()
        except StoreFailed as failure:
            refusal = Refused(Refusal.STORE_FAILED, f"the coordinator cannot ask its store now: {failure.message}")
            if name not in READING:
                raise refusal from failure
            try:
                return await request()
            except EpochalError as error:
                if problem_response(error).status_code in UNCERTAIN_STATUSES:
                    raise refusal from error
                raise
        return await request()


class SimulatedReplicas:
    """The coordinators of one run.

    Args:
        state: the state file that each start reads.
        chance: every fault and every seed of the run.
        database: where the run is kept.
        count: number of coordinators.
    """

    def __init__(self, state: StateFile, chance: random.Random, database: SimulatedDatabase, count: int) -> None:
        self.state = state
        self.database = database
        self.all = [SimulatedReplica(number) for number in range(count)]
        self.starts = 0
        self.outcomes: list[Outcome] = []
        self.knows = True
        """Whether balancers know which coordinators are ready."""
        self.staying = 0.3
        """Part of the clients whose balancer keeps to one coordinator."""
        self._chance = chance
        private_key = chance.randbytes(32)
        self._key = SigningKey(private_key)
        database.memory.keep_note(KEY, private_key)
        self._news = Broadcast()

    @property
    def reader(self) -> StoreReader:
        """What reads the run, for an audit."""
        return reader_of(self.database.memory, self.database.blobs)

    def door(self, chance: random.Random) -> Door:
        """Return the address as another client uses it."""
        return Door(self, chance, knows=self.knows, stays=chance.random() < self.staying)

    async def live(self) -> None:
        """Run until cancelled. What ends is started again."""
        async with asyncio.TaskGroup() as tasks:
            for replica in self.all:
                tasks.create_task(self._keep_alive(replica))

    async def _keep_alive(self, replica: SimulatedReplica) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                replica.process = process = Process()
                replica.living = living = tasks.create_task(self._life(replica), context=process.context())
                await asyncio.wait({living})
                replica.handlers, replica.tasks = None, None
                if not living.cancelled():
                    living.result()
                process.is_dead = True
                away_s, replica.away_s = replica.away_s, RESTART_S
                await asyncio.sleep(away_s)

    async def _life(self, replica: SimulatedReplica) -> None:
        """Serve as one process until it is killed, or cannot start."""
        store = store_on(self.database, replica.line)

        async def make(step: int) -> FirstModel:
            return make_first_model(self.state, step)

        genesis = Genesis(model_layout, make)
        key = self._key.public_key_hex
        history = RunHistory(store.journal, InlineWorker())
        options = ServiceOptions(store, replica.clock, key, history, new_seed=self._new_seed, genesis=genesis)
        try:
            service = await CoordinatorService.open(options, self.state)
            service.watch(self._note)
            handlers = handlers_of(service, history, self._key, genesis.layout_of)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(service.serve())
                await service.started.wait()
                tasks.create_task(update_maker_of(handlers).run())
                self.starts += 1
                replica.tasks = tasks
                replica.handlers = handlers
                self._news.notify()
                tasks.create_task(_expect_no_failure(service))
        except* (StoreFailed, Refused) as failures:
            if replica.handlers is not None or not _pass(failures):
                raise SafetyBroken(f"coordinator {replica.number} ended") from failures

    def _new_seed(self) -> str:
        return self._chance.randbytes(32).hex()

    def _note(self, event: ServiceEvent) -> None:
        if isinstance(event, OutcomeDecided) and event.outcome is not None:
            self.outcomes.append(event.outcome)
        self._news.notify()

    def kill(self) -> None:
        """End all processes."""
        for replica in self.all:
            replica.kill()

    async def started(self) -> None:
        """Return when every coordinator serves."""
        await self.wait_for(lambda: all(replica.serves for replica in self.all))

    async def reached(self, phase: RunState, step: int = 0) -> None:
        """Return when some coordinator shows this phase of this step or a later one."""

        def is_there() -> bool:
            shown = [
                replica.handlers.service.published.document for replica in self.all if replica.handlers is not None
            ]
            return any(document.run_state is phase and document.step >= step for document in shown)

        await self.wait_for(is_there)

    async def wait_for(self, ready: Callable[[], bool]) -> None:
        """Return when `ready()` is true; check again whenever a coordinator did something."""
        while not ready():
            await self._news.wait()


def _pass(failures: BaseExceptionGroup[BaseException]) -> bool:
    """Return whether a start that fails with these may succeed later: the database cannot be asked."""
    return all(
        _pass(error) if isinstance(error, BaseExceptionGroup) else str(error).startswith("the database")
        for error in failures.exceptions
    )


async def _expect_no_failure(service: CoordinatorService) -> None:
    await service.health.failed.wait()
    raise SafetyBroken(f"a coordinator took its store for broken: {service.health.failure}")


@dataclass
class ReplicatedRun(RunWithClients):
    """Several coordinators and their clients. Make one with `replicated_run`.

    Attributes:
        often_s: range of the time from one fault of a kind to the next.
    """

    coordinator: SimulatedReplicas
    often_s: tuple[float, float] = (1.0, 20.0)


@asynccontextmanager
async def replicated_run(
    state: StateFile, seed: int, memory: VouchingDatabase | None = None, count: int = 3
) -> AsyncIterator[ReplicatedRun]:
    """Yield a run in which every fault follows from `seed`; everything in it ends with the context.

    It needs a `ProcessLoop`.
    """
    chance = random.Random(seed)
    async with asyncio.TaskGroup() as tasks:
        database = SimulatedDatabase(tasks, chance, state.blobs.max_total_bytes, memory or VouchingDatabase())
        replicas = SimulatedReplicas(state, chance, database, count)
        run = ReplicatedRun(replicas, Witness(database.memory), chance, tasks)
        background = tasks.create_task(replicas.live())
        await replicas.started()
        try:
            yield run
        finally:
            for client in run.clients:
                client.kill()
            replicas.kill()
            background.cancel()
