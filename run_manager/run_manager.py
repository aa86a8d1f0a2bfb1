"""The client's part of a run: opened on the first document that needs it, and driven by run documents from then on.

`RunManager` has three stages. At first nothing of the run is known. As soon as there is a checkpoint, in any phase, or
in Warmup, `init_run` reads the run's configuration and opens the data provider, while the checkpoint is fetched. That
may take a while; of the documents that arrive meanwhile the newest is kept. From then on every document goes to the
`StepStateMachine`, whose replica keeper follows the run in every phase, also while the trainer is still being opened.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TypeVar

from epochal.batching.data_check import DataNeeds, look_at_appended, look_at_data
from epochal.batching.packing.packed_batches import Packing
from epochal.coordinator_client.session import CoordinatorSession
from epochal.data_providers.next_round_samples import AheadSamples
from epochal.data_providers.protocol import DataProvider, SourceUnavailable
from epochal.data_providers.providers.growing_data import FollowingDataProvider
from epochal.run_manager.client_round_times import RoundTimes
from epochal.run_manager.context import ClientDependencies, RunAccess, StepContext, TentativeState
from epochal.run_manager.events import Event, Observer
from epochal.run_manager.exchange.star import StarExchange
from epochal.run_manager.feedback.error_feedback import ErrorFeedback
from epochal.run_manager.readiness import Readiness
from epochal.run_manager.replica.checkpoint_download import CheckpointDownload
from epochal.run_manager.replica.keeper import HeldReplica, ReplicaKeeper
from epochal.run_manager.replica.merger import Merger
from epochal.run_manager.replica.saving import ReplicaSaving
from epochal.run_manager.round_view import RoundViews
from epochal.run_manager.step_state_machine import StepStateMachine
from epochal.run_manager.trainer_opening import TrainerOpening
from epochal.runtime.background_task import BackgroundTask
from epochal.runtime.files.spool import Spool
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import MergeConfig, StateFile
from epochal.state.config.support import RUN_ID_LINE, SERVED_RUN_ID
from epochal.state.documents import RunDocument
from epochal.state.errors import Desync, InvalidInput, NotAllowed
from epochal.state.merging import OuterStep
from epochal.state.messages.round_times import LaterTimes
from epochal.state.model.first_model import model_digest
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256
from epochal.trainers.architectures import known_vocabulary
from epochal.trainers.first_parameters import check_first_step, check_trainable

log = logging.getLogger(__name__)

T = TypeVar("T")

EPOCH_PHASES = frozenset({RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS})
"""The phases in which a client needs model and data, also if it has to make the first model."""
PHASES_BEFORE = frozenset({RunState.WAITING_FOR_MEMBERS, RunState.COOLDOWN, RunState.PAUSED})
"""The phases before those, in which a client fetches the model that there is."""


class Stage(StrEnum):
    """How far this client's part of the run is opened."""

    NOT_INITIALISED = "not initialised"
    INITIALISING = "initialising"
    RUNNING = "running"


class RunManager:
    """This client's part of the run.

    Args:
        session: sends requests to the coordinator.
        dependencies: retries, workers, data, trainer, observer.
        group: where background work runs; it must outlive the manager. Errors that end the client surface there.
    """

    def __init__(self, session: CoordinatorSession, dependencies: ClientDependencies, group: asyncio.TaskGroup) -> None:
        self._session = session
        self._times = RoundTimes(dependencies.retry_policy.clock.monotonic_s)
        self._dependencies = replace(dependencies, observer=_both(self._times.observe, dependencies.observer))
        self._group = group
        self._opening = BackgroundTask(group, "init_run")
        self._machine: StepStateMachine | None = None
        self._growing: BackgroundTask | None = None
        self._data_needs: DataNeeds | None = None
        self._opened = AsyncExitStack()
        self._config_sha256: Sha256 | None = None
        self._model_sha256: Sha256 | None = None
        self._latest: RunDocument | None = None
        self._lineage: str | None = None
        self._applying = asyncio.Lock()

    @property
    def stage(self) -> Stage:
        """How far the run is opened."""
        if self._machine is not None:
            return Stage.RUNNING
        return Stage.INITIALISING if self._opening.is_busy else Stage.NOT_INITIALISED

    @property
    def held(self) -> HeldReplica | None:
        """The replica that this client holds now."""
        return None if self._machine is None else self._machine.context.keeper.held

    async def apply_state(self, document: RunDocument) -> None:
        """Take a run document, and return promptly whatever the client is doing.

        Raises:
            Desync: client and run contradict each other even after the client has started anew; do not retry.
        """
        self._times.saw(document)
        async with self._applying:
            self._latest = document
            if self._machine is not None:
                await self._apply(self._machine, document)
            elif not self._opening.is_busy and _has_begun(document):
                await self._opening.replace(self._initialise(document))

    async def init_run(self, document: RunDocument) -> None:
        """Read the run's configuration and model document, open data provider and merger, begin to open the trainer.

        Args:
            document: names both.

        Raises:
            DataError: the data cannot be opened, or not within the retry policy.
            UnsoundArithmetic: this machine must not merge, because its arithmetic differs.
        """
        session, dependencies = self._session, self._dependencies
        state, spec = await read_run(session, document)
        access = RunAccess(state, spec, session.data_ticket, self._followed_version)
        async with AsyncExitStack() as opened:
            worker = dependencies.new_worker("epochal-codec")
            opened.push_async_callback(worker.aclose)
            outer = OuterStep.of(state.merge)
            spool = Spool(dependencies.spool_folder, state.client.spool_bytes)
            opened.callback(spool.close)
            download = await self._begin_download(opened, document, state, spool, worker)
            hasher = dependencies.new_worker("epochal-digest")
            merger = Merger(outer, dependencies.new_worker("epochal-merge"), spool.drop_pages, hasher)
            opened.push_async_callback(merger.aclose)
            await merger.verify()
            provider = await self._open_following(document, access)
            opened.push_async_callback(provider.aclose)
            ahead = AheadSamples(provider, self._group)
            opened.push_async_callback(ahead.aclose)
            opening = await self._begin_opening(opened, access, provider.inner, worker)
            exchange = StarExchange(session, spool, dependencies.observer)
            feedback = await self._open_feedback(document, state.merge, spool, worker)
            if feedback is not None:
                opened.callback(feedback.close)
            tentative = TentativeState(opening, dependencies.observer, feedback)
            sources = (session.outcome, exchange, download)
            check = partial(check_first_step, state)
            keeper = ReplicaKeeper(*sources, merger, spool, worker, check, tentative.settle, dependencies.observer)
            await self._begin_saving(opened, keeper, state, spec)
            keeping = BackgroundTask(self._group, "replica")
            growing = BackgroundTask(self._group, "data")
            opened.push_async_callback(growing.replace, None)
            opened.push_async_callback(keeping.replace, None)
            context = StepContext(
                session=session,
                dependencies=dependencies,
                state=state,
                spec=spec,
                exchange=exchange,
                keeper=keeper,
                readiness=Readiness(session, keeper, provider, opening, dependencies.observer),
                rounds=RoundViews(session),
                opening=opening,
                tentative=tentative,
                provider=provider,
                worker=worker,
                spool=spool,
                feedback=feedback,
                ahead=ahead,
                times=self._times,
            )
            machine = StepStateMachine(context, self._group)
            opened.push_async_callback(machine.stop)
            await keeping.replace(keeper.run())
            self._opened = opened.pop_all()
        self._machine, self._config_sha256, self._growing = machine, document.config_sha256, growing
        self._model_sha256 = model_digest(spec)

    async def replica_at(self, step: int) -> HeldReplica | None:
        """Return replica `step`, once this client holds it; None if its part of the run was never opened."""
        return None if self._machine is None else await self._machine.context.keeper.at(step)

    async def round_done(self) -> None:
        """Return when this client owes nothing more to the round under way; at once without a round."""
        if self._machine is not None:
            await self._machine.round_done()

    def last_times(self) -> LaterTimes | None:
        """Return the times of this client's last round, unless they were told."""
        return self._times.last()

    async def aclose(self) -> None:
        """End all background work and close provider, trainer and merger; bounded."""
        await self._opening.replace(None)
        self._machine = None
        await self._opened.aclose()

    async def _initialise(self, document: RunDocument) -> None:
        await self.init_run(document)
        async with self._applying:
            if self._machine is not None and self._latest is not None:
                await self._apply(self._machine, self._latest)

    async def _apply(self, machine: StepStateMachine, document: RunDocument) -> None:
        if self._lineage not in (None, document.lineage):
            log.warning("run_restored", extra={"before": self._lineage, "after": document.lineage})
            await machine.start_anew()
            machine.context.keeper.forget()
        self._lineage = document.lineage
        if document.model_sha256 not in (None, self._model_sha256):
            raise Desync("the run now has another model than the one that this client has opened; start it again")
        if document.config_sha256 != self._config_sha256:
            await self._reconfigure(machine, document.config_sha256)
        await self._follow_data(machine.context, document)
        try:
            await machine.apply_state(document)
        except Desync as desync:
            log.warning("desync", extra={"reason": desync.message})
            await machine.start_anew()
            machine.context.keeper.distrust(desync.message)
            await machine.apply_state(document)

    async def _reconfigure(self, machine: StepStateMachine, config_sha256: Sha256) -> None:
        """Take over a configuration of which the changeable part has changed (`state/config/changes.py`)."""
        state = await self._session.config(config_sha256)
        machine.context = replace(machine.context, state=state)
        self._config_sha256 = config_sha256

    async def _follow_data(self, context: StepContext, document: RunDocument) -> None:
        """Take over the run's data as they are now; begin to look for files that were appended and are not here."""
        provider = context.provider
        if await provider.follow(context.state.data_generations, document.data_fingerprint):
            context.readiness.owe()
        if provider.is_behind and self._growing is not None and not self._growing.is_busy:
            policy = self._dependencies.retry_policy
            await self._growing.replace(provider.catch_up(policy, context.readiness.owe))

    async def _begin_download(
        self, opened: AsyncExitStack, document: RunDocument, state: StateFile, spool: Spool, worker: Worker
    ) -> CheckpointDownload:
        """Begin to fetch the run's checkpoint, while trainer and data are opened; return who fetches."""
        dependencies = self._dependencies
        mirrors = dependencies.open_mirrors(state)
        for mirror in mirrors:
            opened.push_async_callback(mirror.aclose)
        manifest_of = self._session.manifest
        download = CheckpointDownload(self._session, mirrors, manifest_of, spool, worker, dependencies.observer)
        fetching_ahead = BackgroundTask(self._group, "first checkpoint")
        opened.push_async_callback(fetching_ahead.replace, None)
        if document.checkpoint is not None:
            await fetching_ahead.replace(download.prefetch(document.checkpoint))
        return download

    async def _begin_saving(
        self, opened: AsyncExitStack, keeper: ReplicaKeeper, state: StateFile, spec: ModelSpec
    ) -> None:
        """Begin to save the newest replica for the client's owner, if it is wanted; and the last one at the end."""
        if self._dependencies.save_replica is None:
            return
        saving = ReplicaSaving(
            keeper, partial(self._dependencies.save_replica, state, spec), self._dependencies.retry_policy
        )
        opened.push_async_callback(saving.finish)
        running = BackgroundTask(self._group, "saving")
        opened.push_async_callback(running.replace, None)
        await running.replace(saving.run())

    async def _open_feedback(
        self, document: RunDocument, merge: MergeConfig, spool: Spool, worker: Worker
    ) -> ErrorFeedback | None:
        """Return what this client's codec has left out, if the run has error feedback."""
        if not merge.error_feedback:
            return None
        stem = self._dependencies.feedback_stem
        if stem is None:
            stem = (await worker.run(lambda: spool.folder)) / "client"
        if not SERVED_RUN_ID.fullmatch(document.run_id):
            raise NotAllowed(f"the run's id {document.run_id!a} would name a file here; allowed: {RUN_ID_LINE}")
        stem = stem.with_name(f"{stem.name}.{document.run_id}")
        feedback = ErrorFeedback(stem, self._session.client_id, merge.error_feedback_decay)
        await feedback.resume(document, merge.codec_name, self._session.outcome, worker)
        return feedback

    async def _begin_opening(
        self, opened: AsyncExitStack, access: RunAccess, provider: DataProvider, worker: Worker
    ) -> TrainerOpening:
        """Begin to open the trainer, and to look at the data with its vocabulary; return the opening.

        What goes wrong then ends the client: `InvalidInput` or `Unsupported` for no such trainer, one that cannot train
        this model, or data that the model cannot take.
        """
        dependencies, state = self._dependencies, access.state
        check = partial(check_trainable, access.spec)
        opening = TrainerOpening(check, worker, dependencies.trainer_opens_in_s, dependencies.observer)

        async def packing_for(vocabulary: int | None) -> Packing | None:
            packing = Packing.of(state, vocabulary, worker, dependencies.permissions)
            self._data_needs = DataNeeds.of(state, vocabulary, packing)
            await self._while_unavailable(partial(_check_fits, provider, self._data_needs))
            return packing

        own_worker = dependencies.new_worker("epochal-train")
        opened.push_async_callback(own_worker.aclose)  # of a trainer that is not opened
        opened.push_async_callback(opening.aclose)
        running = BackgroundTask(self._group, "trainer")
        opened.push_async_callback(running.replace, None)
        open_trainer = partial(dependencies.open_trainer, access, own_worker)
        vocabulary = None if dependencies.trainer_opens_in_s is None else known_vocabulary(access.spec)
        await running.replace(opening.run(open_trainer, packing_for, vocabulary))
        return opening

    def _followed_version(self) -> int:
        return 0 if self._latest is None else self._latest.version

    async def _open_following(self, document: RunDocument, access: RunAccess) -> FollowingDataProvider:
        """Open the run's data; wait for a source that does not answer yet. Raise as `check_reaches`."""
        opened = await self._while_unavailable(partial(self._dependencies.open_provider, access))

        async def reopen() -> DataProvider:
            state = access.state if self._machine is None else self._machine.context.state
            return await self._dependencies.open_provider(replace(access, state=state))

        async def look(grown: DataProvider, file_count: int) -> list[str]:
            needs = self._data_needs
            return [] if needs is None else (await look_at_appended(grown, needs, file_count)).problems

        provider = FollowingDataProvider(opened, reopen, look)
        try:
            await provider.follow(access.state.data_generations, document.data_fingerprint)
            provider.check_reaches(document.data_fingerprint)
        except BaseException:
            await provider.aclose()
            raise
        return provider

    async def _while_unavailable(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what the attempt returns; repeat it, within the policy, while a source of data does not answer."""
        policy = self._dependencies.retry_policy
        backoff = policy.begin()
        said = ""
        while True:
            try:
                return await attempt()
            except SourceUnavailable as error:
                if error.message != said:
                    said = error.message
                    fields = {"reason": said, "goes_on_trying_for_s": policy.bound_s}
                    log.warning("data_not_available_yet", extra=fields)
                await backoff.wait(error)


def _both(first: Observer, second: Observer) -> Observer:
    """Return an observer that passes each event on to both."""

    def observe(event: Event) -> None:
        first(event)
        second(event)

    return observe


def _has_begun(document: RunDocument) -> bool:
    """Whether a client opens its part of the run: for an epoch, or as soon as there is a model to fetch."""
    return document.run_state in EPOCH_PHASES or (
        document.run_state in PHASES_BEFORE and document.checkpoint is not None
    )


async def read_run(session: CoordinatorSession, document: RunDocument) -> tuple[StateFile, ModelSpec]:
    """Return the run's configuration and its model: that of its model document, or of the state file without one."""
    state = await session.config(document.config_sha256)
    if document.model_sha256 is None:
        return state, state.model.LLM.spec
    return state, await session.model(document.model_sha256)


async def _check_fits(provider: DataProvider, needs: DataNeeds) -> None:
    """Raise `InvalidInput` unless the run's model can take the provider's data."""
    if (needs.vocabulary, needs.packing, needs.tokenizer) == (None, None, None):
        return
    findings = await look_at_data(provider, needs)
    for note in findings.notes:
        log.warning("data_look_wrong", extra={"reason": note})
    if findings.problems:
        raise InvalidInput(f"the run's model cannot be trained on these data: {'; '.join(findings.problems)}")
