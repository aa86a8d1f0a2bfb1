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
from epochal.state.errors import EpochalError, InvalidInput
from epochal.state.intervals import BatchId
from epochal.state.messages.replay_messages import ReplayReport
from epochal.state.messages.round_times import milliseconds
from epochal.state.model.replica import Replica
from epochal.state.model.tensors import Buffer, Tensors
from epochal.state.replays.replay_distance import ReplayDistance, check_comparable, replay_distance
from epochal.state.results import decode_result
from epochal.state.wire import ClientId, Sha256
from epochal.trainers.first_parameters import check_trainable
from epochal.trainers.protocol import TrainedRound, Trainer


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
    """

    distance: ReplayDistance
    result_class: str
    replay_class: str
    took_ms: int
    tokens: int | None

    def report(self, step: int, client_id: ClientId, result_sha256: Sha256) -> ReplayReport:
        """Return it as a verifier reports it."""
        far, classes = self.distance, (self.result_class, self.replay_class)
        return ReplayReport(
            step, client_id, result_sha256, far.excess, far.norm_ratio, far.cosine, *classes, self.took_ms, self.tokens
        )


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

    async def difference(self, work: WorkOfRound, start: Replica) -> Tensors:
        """Return `start − end` of every parameter after a client's local steps, as its trainer has it: not encoded.

        Args:
            work: the client's.
            start: replica `work.step − 1`.

        Raises:
            DataError: its samples cannot be read.
            TrainerFailed: they cannot be trained on.
            InvalidDocument: the replica is not the run's model.
        """
        return (await self._trained(work, start)).difference

    async def _trained(self, work: WorkOfRound, start: Replica) -> TrainedRound:
        if start.step != work.step - 1:
            raise InvalidInput(f"work of step {work.step} begins with replica {work.step - 1}, not {start.step}")
        await self._worker.run(partial(check_trainable, self._access.spec, start))
        trainer = self._trainer
        try:
            async with asyncio.TaskGroup() as group:
                receiver = self._fetcher.fetch_data(() if trainer.loads_data else work.assignment, group)
                batches: AssignedBatches = receiver
                if self._packing is not None:
                    batches = self._packing.rows_of(work.assignment, receiver)
                try:
                    trained = await trainer.train(work.plan(self.state), start.parameters, batches)
                finally:
                    receiver.close()
        except BaseExceptionGroup as errors:
            raise first_error(errors, EpochalError) from None
        finally:
            trainer.roll_back_inner_state()
        return trained if trainer.loads_data else replace(trained, sample_tokens=batches.token_count)

    async def replay(self, work: WorkOfRound, start: Replica, result: Buffer) -> Replay:
        """Compute a client's work again, and return how far its result is from that.

        Args:
            work: the client's.
            start: replica `work.step − 1`.
            result: the bytes of the client's result, which the run has accepted.

        Raises:
            InvalidInput: the result began from another start than a replica (`merge.delay`).
            InvalidResult: the bytes are no result.
            DataError, TrainerFailed, InvalidDocument: as `difference`.
        """
        header, found = decode_result(result, start.layout)
        check_comparable(self.state.at(work.step).merge.codec_name)
        if header.start:
            raise InvalidInput(
                f"the result of {header.client_id} in step {header.step} began with the outer step of its own last one "
                "(merge.delay); only those that began with a replica can be computed again"
            )
        began_s = self._now_s()
        trained = await self._trained(work, start)
        took_ms = milliseconds(self._now_s() - began_s)
        distance = await self._worker.run(partial(replay_distance, found, trained.difference, self.state.merge.max_abs))
        return Replay(distance, header.computed, self.computed, took_ms, trained.sample_tokens)


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
