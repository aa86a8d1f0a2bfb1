"""The client's part of a run: opened on the first document that needs it, and driven by run documents from then on.

`RunManager` has three stages. At first nothing of the run is known. As soon as there is a checkpoint, in any phase, or
in Warmup, `init_run` opens the client's part of the run: the replica, whose checkpoint is fetched meanwhile, then the
data, the trainer, and the steps. That may take a while; of the documents that arrive meanwhile the newest is kept. From
then on every document is offered once to each part that follows the run, in a list: the configuration, the
replica, the readiness, the checkpoints, the `StepStateMachine`, and the data that are fetched ahead.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from epochal.coordinator_client.session import CoordinatorSession
from epochal.run_manager.client_round_times import RoundTimes
from epochal.run_manager.context import ClientDependencies, FollowedConfig
from epochal.run_manager.eager_training import EagerTraining
from epochal.run_manager.error_feedback import ErrorFeedback
from epochal.run_manager.exchange import Exchange
from epochal.run_manager.kept_states import KeptStates
from epochal.run_manager.local_training import RoundTraining
from epochal.run_manager.own_results import OwnResults
from epochal.run_manager.readiness import Readiness
from epochal.run_manager.replica.checkpoint_download import CheckpointDownload
from epochal.run_manager.replica.keeper import ReplicaKeeper
from epochal.run_manager.round_view import RoundViews
from epochal.run_manager.run_data import DataAhead, RunData
from epochal.run_manager.step_state_machine import Step, StepName, StepStateMachine
from epochal.run_manager.steps.checkpoint import CheckpointPublisher, CooldownStep, EpochCheckpoint
from epochal.run_manager.steps.observing import ObservingStep
from epochal.run_manager.steps.training import TrainingStepMetadata
from epochal.run_manager.steps.warmup import WarmupStep
from epochal.run_manager.steps.witness import WitnessStep, WitnessUses
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.background_task import BackgroundTask
from epochal.runtime.files.spool import Spool
from epochal.runtime.merging.merger import HeldReplica, Merger
from epochal.runtime.worker_thread import Worker
from epochal.state.documents import RunDocument
from epochal.state.errors import Desync
from epochal.state.phase_names import RunState
from epochal.trainers.first_parameters import check_first_step, check_trainable

log = logging.getLogger(__name__)

EPOCH_PHASES = frozenset({RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS})
"""The phases in which a client needs model and data, also if it has to make the first model."""
PHASES_BEFORE = frozenset({RunState.WAITING_FOR_MEMBERS, RunState.COOLDOWN, RunState.PAUSED})
"""The phases before those, in which a client fetches the model that there is."""


class DocumentListener(Protocol):
    """A part of the client that follows the run document."""

    async def apply_state(self, document: RunDocument) -> None:
        """Take a run document, and return promptly."""
        ...


@dataclass(frozen=True, slots=True)
class _Run:
    """One client's part of a run, opened; `listeners` are offered each document in their order."""

    config: FollowedConfig
    keeper: ReplicaKeeper
    results: OwnResults
    steps: StepStateMachine
    listeners: Sequence[DocumentListener]
    background: Sequence[StepStateMachine | EagerTraining | EpochCheckpoint | DataAhead]
    closing: AsyncExitStack

    async def start_anew(self) -> None:
        """Forget every round that was seen; the next document is the first."""
        for part in self.background:
            await part.stop()


class RunManager:
    """This client's part of the run.

    Args:
        session: sends requests to the coordinator.
        dependencies: retries, workers, data, trainer, observer.
        times: measures this client's rounds.
        group: where background work runs; it must outlive the manager. Errors that end the client surface there.
    """

    def __init__(
        self, session: CoordinatorSession, dependencies: ClientDependencies, times: RoundTimes, group: asyncio.TaskGroup
    ) -> None:
        self._session = session
        self._dependencies = dependencies
        self._times = times
        self._group = group
        self._opening = BackgroundTask(group, "init_run")
        self._run: _Run | None = None
        self._latest: RunDocument | None = None
        self._lineage: str | None = None
        self._branch = 0
        self._applying = asyncio.Lock()

    @property
    def held(self) -> HeldReplica | None:
        """The replica that this client holds now."""
        return None if self._run is None else self._run.keeper.held

    async def apply_state(self, document: RunDocument) -> None:
        """Take a run document, and return promptly whatever the client is doing.

        Raises:
            Desync: client and run contradict each other even after the client has started anew; do not retry.
        """
        async with self._applying:
            self._latest = document
            if self._run is not None:
                await self._follow(self._run, document)
            elif not self._opening.is_busy and _has_begun(document):
                await self._opening.replace(self._initialise(document))

    async def init_run(self, document: RunDocument) -> None:
        """Open this client's part of the run that the document describes, stage by stage.

        Raises:
            DataError: the data cannot be opened, or not within the retry policy.
            UnsoundArithmetic: this machine must not merge, because its arithmetic differs.
        """
        session, dependencies = self._session, self._dependencies
        config = await FollowedConfig.read(session, document, dependencies.check_trainer)
        async with AsyncExitStack() as closing:
            worker = dependencies.new_worker("epochal-codec")
            closing.push_async_callback(worker.aclose)
            spool = Spool(dependencies.spool_folder, config.state.client.spool_bytes)
            ground = _Ground(session, dependencies, config, worker, spool, self._group, closing)
            replica = await _hold_replica(ground, document)
            data = await _open_data(ground)
            await _begin_opening_trainer(ground, replica.opening, data)
            self._run = _with_steps(ground, replica, data, self._times)

    async def replica_at(self, step: int) -> HeldReplica | None:
        """Return replica `step`, once this client holds it; None if its part of the run was never opened."""
        return None if self._run is None else await self._run.keeper.at(step)

    async def round_done(self) -> None:
        """Return when this client owes nothing more to the round under way; at once without a round."""
        if self._run is not None:
            await self._run.steps.round_done()

    @property
    def may_be_challenged(self) -> bool:
        """Whether the outcome of the round under way may ask for inner states that only this client has."""
        run = self._run
        return run is not None and run.config.state.reveals_inner_states and run.results.awaits_outcome

    async def reveal(self, step: int) -> None:
        """Reveal what the outcome of this step asks for. Raises `Refused`, `CoordinatorUnreachable`."""
        run = self._run
        if run is not None and run.results.states is not None:
            run.results.states.settle(await run.keeper.outcome(step))
            await self.revealed()

    async def revealed(self) -> None:
        """Return once all inner states are revealed that were asked for."""
        if self._run is not None and self._run.results.states is not None:
            await self._run.results.states.revealed()

    async def aclose(self) -> None:
        """End all background work and close provider, trainer and merger; bounded."""
        await self._opening.replace(None)
        run, self._run = self._run, None
        if run is not None:
            await run.closing.aclose()

    async def _initialise(self, document: RunDocument) -> None:
        await self.init_run(document)
        async with self._applying:
            if self._run is not None and self._latest is not None:
                await self._follow(self._run, self._latest)

    async def _follow(self, run: _Run, document: RunDocument) -> None:
        if self._lineage not in (None, document.lineage):
            mark = document.rewound
            is_rewound = mark is not None and mark.branch > self._branch
            event = "run_went_back" if is_rewound else "run_restored"
            step = {} if mark is None or not is_rewound else {"step": mark.step}
            log.warning(event, extra={"before": self._lineage, "after": document.lineage, **step})
            await run.start_anew()
            run.keeper.forget()
            if is_rewound:
                run.results.start_over()
        self._lineage, self._branch = document.lineage, 0 if document.rewound is None else document.rewound.branch
        try:
            await _offer(run.listeners, document)
        except Desync as desync:
            log.warning("desync", extra={"reason": desync.message})
            await run.start_anew()
            run.keeper.distrust(desync.message)
            await _offer(run.listeners, document)


async def _offer(listeners: Sequence[DocumentListener], document: RunDocument) -> None:
    for listener in listeners:
        await listener.apply_state(document)


def _has_begun(document: RunDocument) -> bool:
    """Return whether a client opens its part of the run: for an epoch, or as soon as there is a model to fetch."""
    return document.run_state in EPOCH_PHASES or (
        document.run_state in PHASES_BEFORE and document.checkpoint is not None
    )


@dataclass(frozen=True, slots=True)
class _Ground:
    """The resources on which all parts of a client's run work; `closing` closes the parts that the stages open."""

    session: CoordinatorSession
    dependencies: ClientDependencies
    config: FollowedConfig
    worker: Worker
    spool: Spool
    group: asyncio.TaskGroup
    closing: AsyncExitStack

    async def begin(self, name: str, activity: Coroutine[Any, Any, None]) -> None:
        """Run the activity in the background, until it ends or everything is closed."""
        task = BackgroundTask(self.group, name)
        self.closing.push_async_callback(task.replace, None)
        await task.replace(activity)


@dataclass(frozen=True, slots=True)
class _Replica:
    """The parts that hold the replica, and those that must be settled with each outcome."""

    opening: TrainerOpening
    results: OwnResults
    states: KeptStates
    exchange: Exchange
    keeper: ReplicaKeeper
    merger: Merger


async def _hold_replica(ground: _Ground, document: RunDocument) -> _Replica:
    """Begin to fetch the checkpoint, and to follow the run with a replica."""
    session, dependencies, state, spool = ground.session, ground.dependencies, ground.config.state, ground.spool
    observer, worker = dependencies.observer, ground.worker
    merger = Merger.with_threads(ground.config.merge_at, spool, dependencies.new_worker)
    ground.closing.push_async_callback(merger.aclose)
    await merger.verify()
    check = partial(check_trainable, ground.config.spec)
    opening = TrainerOpening(check, worker, observer)
    states = KeptStates(opening, session, spool, _folder_of_states(ground, document), worker)
    results = OwnResults(opening, spool, worker, ErrorFeedback(spool), states)
    exchange = Exchange(session, spool, observer)
    keeper = ReplicaKeeper(
        session,
        CheckpointDownload(session, spool, worker, observer),
        exchange,
        merger,
        spool,
        worker,
        partial(check_first_step, state),
        results.settle,
        observer,
        state.merge.update_wait_s,
    )
    await keeper.apply_state(document)
    await ground.begin("replica", keeper.run())
    await ground.begin("inner states", states.run())
    return _Replica(opening, results, states, exchange, keeper, merger)


def _folder_of_states(ground: _Ground, document: RunDocument) -> Path:
    """Return the folder of this client's inner states, which is the same after a restart."""
    return ground.dependencies.spool_folder / f"epochal-states-{document.run_id}-{ground.session.client_id}"


async def _open_data(ground: _Ground) -> RunData:
    """Open the run's data. Raise as `RunData.open`."""
    data = await RunData.open(ground.config, ground.dependencies, ground.worker, ground.group)
    ground.closing.push_async_callback(data.aclose)
    return data


async def _begin_opening_trainer(ground: _Ground, opening: TrainerOpening, data: RunData) -> None:
    """Begin to open the trainer, and to check the data with its vocabulary.

    An error then ends the client: `InvalidInput` or `Unsupported` for no such trainer, one that cannot train this
    model, or data that the model cannot take.
    """
    dependencies, access = ground.dependencies, ground.config.access()
    own_worker = dependencies.new_worker("epochal-train")
    ground.closing.push_async_callback(own_worker.aclose)  # of a trainer that is not opened
    ground.closing.push_async_callback(opening.aclose)
    open_trainer = partial(dependencies.open_trainer, access, own_worker)
    await ground.begin("trainer", opening.run(open_trainer, data.packing_for))


def _with_steps(ground: _Ground, replica: _Replica, data: RunData, times: RoundTimes) -> _Run:
    """Return the opened run: the steps with what each of them uses, and every part that follows the run document."""
    session, config, group, observer = ground.session, ground.config, ground.group, ground.dependencies.observer
    opening, keeper, exchange = replica.opening, replica.keeper, replica.exchange
    rounds, permissions = RoundViews(session), ground.dependencies.permissions
    readiness = Readiness(session, keeper, data.provider, opening, observer)
    publisher = CheckpointPublisher(session, config, ground.spool, ground.worker)
    warmup = WarmupStep(session, config, readiness, keeper, opening, publisher, ground.worker, permissions)
    local = RoundTraining(session.client_id, opening, data, replica.results, times)
    data_ahead = DataAhead(data, opening, rounds, session.client_id, group)
    eager = EagerTraining(session, rounds, local, keeper, replica.merger, data_ahead, group)
    training = TrainingStepMetadata(
        session, config, rounds, readiness, local, eager, keeper, replica.results, exchange, times
    )
    witness = WitnessStep(WitnessUses(session, config, rounds, keeper, exchange, observer), group)
    others: dict[StepName, Step] = {
        StepName.OBSERVING: ObservingStep(session),
        StepName.WARMUP: warmup,
        StepName.COOLDOWN: CooldownStep(session, keeper, publisher),
    }
    steps = StepStateMachine(session.client_id, training, witness, others, readiness, observer, group)
    checkpoint = EpochCheckpoint(session, keeper, publisher, group)
    states = replica.states
    listeners = (config, data, keeper, readiness, checkpoint, eager, steps, data_ahead, states)
    background = (steps, eager, checkpoint, data_ahead)
    for part in background:
        ground.closing.push_async_callback(part.stop)
    return _Run(config, keeper, replica.results, steps, listeners, background, ground.closing.pop_all())
