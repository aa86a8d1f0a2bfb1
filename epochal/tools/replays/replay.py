"""Computing a client's part of a round again, and comparing what comes out with the client's result.

Whoever has the replica before a round, the assignment and the data can do it (`docs/verification.md`): a verifier by
lease (`replay_worker.py`), and an audit of a store. Nothing that a trainer computes here counts in the run.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial

from epochal.batching.packing.packed_batches import AssignedBatches, Packing
from epochal.batching.round_plan import RoundPlan, plan_of
from epochal.data_providers.fetcher import DataFetcher, FetchSettings
from epochal.data_providers.open_data import ONLY_FOR_MEMBERS
from epochal.run_manager.context import ClientDependencies, RunAccess
from epochal.runtime.task_errors import first_error
from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import StateFile
from epochal.state.errors import EpochalError, InvalidInput, TrainerFailed
from epochal.state.intervals import BatchId
from epochal.state.messages.replay_messages import ReplayReport
from epochal.state.messages.round_times import milliseconds
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import Buffer, InvalidTensorFile, Tensors
from epochal.state.replays.inner_states import NO_INNER_STATE, InnerState, parse_inner_state, state_distance
from epochal.state.replays.replay_distance import MAX_DISTANCE, ReplayDistance, check_comparable, replay_distance
from epochal.state.results import decode_result
from epochal.state.wire import ClientId, Sha256
from epochal.trainers.first_parameters import check_trainable
from epochal.trainers.protocol import RevealsInnerState, TrainedRound, Trainer


@dataclass(frozen=True, slots=True)
class WorkOfRound:
    """A client's part of a round.

    Attributes:
        step: the round's.
        assignment: the client's batches.
        cold_start_step: the step at which the run had last started cold then (`RunDocument`).
    """

    step: int
    assignment: tuple[BatchId, ...]
    cold_start_step: int | None

    def plan(self, state: StateFile) -> RoundPlan:
        """Return its local steps; `state` is the run's, with the changes up to the round."""
        return plan_of(state, self.step, self.assignment, self.cold_start_step)


@dataclass(frozen=True, slots=True)
class Replay:
    """A result, and the same work computed again.

    Attributes:
        distance: between the two.
        result_class, replay_class: how they were computed (`state/model/computed_class.py`), the result by its own
            account.
        took_ms: milliseconds that the replay took.
        tokens: of the work's samples, without padding; None if the trainer loads them and does not count them.
        state_excess: how far the revealed last inner state is from the replay's; None where none was revealed.
    """

    distance: ReplayDistance
    result_class: str
    replay_class: str
    took_ms: int
    tokens: int | None
    state_excess: float | None = None

    def report(self, step: int, client_id: ClientId, result_sha256: Sha256) -> ReplayReport:
        """Return it as a verifier reports it."""
        far, classes = self.distance, (self.result_class, self.replay_class)
        distances = far.excess, far.norm_ratio, far.cosine
        of_work = self.tokens, self.state_excess
        return ReplayReport(step, client_id, result_sha256, *distances, *classes, self.took_ms, *of_work)


@dataclass(frozen=True, slots=True)
class RevealedFiles:
    """The files of a round's inner states.

    Attributes:
        begin: None for a fresh state.
        end: None if it is not to be compared.
    """

    begin: Buffer | None
    end: Buffer | None


UNUSABLE = ReplayDistance(MAX_DISTANCE, 0.0, 0.0)
"""The distance of a result whose inner states are no states, or cannot be trained from: its client's fault alone."""


class Replays:
    """Computes work of one run again, one piece at a time. `opened_replays` makes it."""

    def __init__(
        self,
        access: RunAccess,
        trainer: Trainer,
        fingerprint: str,
        fetcher: DataFetcher,
        packing: Packing | None,
        worker: Worker,
        dependencies: ClientDependencies,
    ) -> None:
        self._access = access
        self._trainer = trainer
        self._fingerprint = fingerprint
        self._fetcher = fetcher
        self._packing = packing
        self._worker = worker
        self._now_s = dependencies.retry_policy.clock.monotonic_s

    @property
    def state(self) -> StateFile:
        """The run's state file, with which everything is computed."""
        return self._access.state

    @property
    def computed(self) -> str:
        """How replays are computed: precision and device."""
        return self._trainer.computed

    def check_data(self, of_run: str | None) -> None:
        """Raise `InvalidInput` unless the data here have this fingerprint: with others honest work looks false.

        Args:
            of_run: fingerprint of the run's data; None where it has not agreed on any.
        """
        if of_run not in (None, self._fingerprint):
            raise InvalidInput(
                f"the data here have fingerprint {self._fingerprint}, the run's have {of_run}: other files, or another "
                "token size, sequence length or shuffle; allowed as --data: a copy of the run's, such as its data.toml"
            )

    async def worked(
        self, work: WorkOfRound, start: Replica, begin: InnerState = NO_INNER_STATE
    ) -> tuple[Tensors, InnerState]:
        """Return `start − end` of every parameter after a client's local steps, not encoded, and the inner state then.

        Args:
            work: the client's.
            start: replica `work.step − 1`.
            begin: inner state with which the work begins; fresh by default.

        Raises:
            DataError: its samples cannot be read.
            TrainerFailed: they cannot be trained on.
            InvalidDocument: the replica is not the run's model.
        """
        trained, state = await self._trained(work, start, begin)
        return trained.difference, state

    async def _trained(
        self, work: WorkOfRound, start: Replica, begin: InnerState = NO_INNER_STATE
    ) -> tuple[TrainedRound, InnerState]:
        if start.step != work.step - 1:
            raise InvalidInput(f"work of step {work.step} begins with replica {work.step - 1}, not {start.step}")
        await self._worker.run(partial(check_trainable, self._access.spec, start))
        trainer, state = self._trainer, NO_INNER_STATE
        try:
            if isinstance(trainer, RevealsInnerState):
                trainer.adopt_inner_state(begin)
            async with asyncio.TaskGroup() as group:
                receiver = self._fetcher.fetch_data(() if trainer.loads_data else work.assignment, group)
                batches: AssignedBatches = receiver
                if self._packing is not None:
                    batches = self._packing.rows_of(work.assignment, receiver)
                try:
                    trained = await trainer.train(work.plan(self.state), start.parameters, batches)
                finally:
                    receiver.close()
            if isinstance(trainer, RevealsInnerState):
                state = trainer.inner_state
        except BaseExceptionGroup as errors:
            raise first_error(errors, EpochalError) from None
        finally:
            trainer.roll_back_inner_state()
        return (trained if trainer.loads_data else replace(trained, sample_tokens=batches.token_count)), state

    async def replay(
        self, work: WorkOfRound, start: Replica, result: Buffer, states: RevealedFiles | None = None
    ) -> Replay:
        """Compute a client's work again, and return how far its result is from that.

        Args:
            work: the client's.
            start: replica `work.step − 1`.
            result: the bytes of the client's result, which the run has accepted.
            states: the inner states that its client has revealed; None where clients keep none.

        Raises:
            InvalidInput: the result began from another start than a replica (`merge.delay`).
            InvalidResult: the bytes are no result.
            DataError, TrainerFailed, InvalidDocument: as `worked`.
        """
        header, found = decode_result(result, start.layout)
        check_comparable(self.state.at(work.step).merge.codec_name)
        if header.start:
            raise InvalidInput(
                f"the result of {header.client_id} in step {header.step} began with the outer step of its own last one "
                "(merge.delay); only those that began with a replica can be computed again"
            )
        began_s = self._now_s()
        try:
            begin, end = await self._worker.run(partial(_parsed, states))
            trained, state = await self._begun(work, start, begin)
        except _Unusable:
            took_ms = milliseconds(self._now_s() - began_s)
            return Replay(UNUSABLE, header.computed, self.computed, took_ms, None, MAX_DISTANCE)
        took_ms = milliseconds(self._now_s() - began_s)
        distance = await self._worker.run(partial(replay_distance, found, trained.difference, self.state.merge.max_abs))
        apart = None if end is None else await self._worker.run(partial(state_distance, end, state))
        return Replay(distance, header.computed, self.computed, took_ms, trained.sample_tokens, apart)

    async def _begun(self, work: WorkOfRound, start: Replica, begin: InnerState) -> tuple[TrainedRound, InnerState]:
        """Return what work leads to from a revealed state. Raise `_Unusable` if that is why it cannot be trained."""
        try:
            return await self._trained(work, start, begin)
        except TrainerFailed as error:
            if begin is NO_INNER_STATE:
                raise
            await self._trained(work, start)  # fails likewise, unless the state is at fault
            raise _Unusable from error


class _Unusable(Exception):
    """Raised where a revealed state is no state of the run's model; never reaches a caller."""


def _parsed(states: RevealedFiles | None) -> tuple[InnerState, InnerState | None]:
    """Return the states in files, the first one fresh if there is none. Raise `_Unusable` if one cannot be read."""
    if states is None:
        return NO_INNER_STATE, None
    try:
        begin = NO_INNER_STATE if states.begin is None else parse_inner_state(states.begin)
        return begin, None if states.end is None else parse_inner_state(states.end)
    except InvalidTensorFile as error:
        raise _Unusable from error


def no_ticket() -> str:
    """Raise `InvalidInput`: who replays is no member, so that data servers would refuse it."""
    raise InvalidInput(ONLY_FOR_MEMBERS)


@contextlib.asynccontextmanager
async def opened_replays(access: RunAccess, dependencies: ClientDependencies) -> AsyncIterator[Replays]:
    """Open the run's data and a trainer, and yield what computes work again.

    Args:
        access: the run; its state file is the one of the rounds that are replayed.
        dependencies: open data and trainer, as a client's do.

    Raises:
        InvalidInput: results of the run's codec cannot be compared, or as `open_trainer`.
        DataError: the data cannot be opened.
        Unsupported: the trainer cannot train the run.
    """
    state = access.state
    check_comparable(state.merge.codec_name)
    async with contextlib.AsyncExitStack() as closing:
        worker, own_worker = dependencies.new_worker("epochal-codec"), dependencies.new_worker("epochal-train")
        closing.push_async_callback(worker.aclose)
        closing.push_async_callback(own_worker.aclose)
        provider = await dependencies.open_provider(access)
        closing.push_async_callback(provider.aclose)
        trainer = await dependencies.open_trainer(access, own_worker)
        closing.push_async_callback(trainer.aclose)
        packing = Packing.of(state, trainer.vocabulary, worker, dependencies.permissions)
        jitter = dependencies.retry_policy.jitter
        fetcher = DataFetcher(provider, FetchSettings.of(state), jitter, trainer.vocabulary)
        yield Replays(access, trainer, provider.fingerprint, fetcher, packing, worker, dependencies)
