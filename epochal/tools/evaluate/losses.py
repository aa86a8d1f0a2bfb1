"""Computes losses of a run's replicas on data, encoded and packed as the run does it. No gradient, no difference."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import SupportsFloat

from epochal.batching.micro_batches import MicroBatch, micro_batches, portions
from epochal.batching.packing.packed_batches import AssignedBatches, Packing
from epochal.batching.packing.task_encoder import Split
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.fetcher import DataFetcher, FetchSettings
from epochal.data_providers.locations import AnyLocation, permissions_of_owner
from epochal.data_providers.open_data import ONLY_FOR_MEMBERS, OpenOptions, check_pinned, open_location, run_data
from epochal.runtime.long_work import long_work
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import system_jitter
from epochal.runtime.task_errors import first_error
from epochal.runtime.worker_thread import Worker, WorkerThread
from epochal.state.config.data_location import HeldOutLocation, Preprocessed, Server, WeightedHttp
from epochal.state.config.model_table import ModelSpec
from epochal.state.config.state_file import StateFile
from epochal.state.errors import EpochalError, InvalidInput, TrainerFailed
from epochal.state.intervals import BatchId
from epochal.state.model.tensors import Float32Array, TensorLayout
from epochal.tools.checkpoints.model_of_run import model_of_run
from epochal.trainers.learner import Learner, Loss, Model
from epochal.trainers.torch.torch_options import TorchOptions

DEFAULT_SPLIT = "validation"
TRAINING_SPLIT = "train"
SAMPLES_AT_A_TIME = 64
"""Samples whose loss is computed together."""


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """On which data a loss is computed, and how.

    Attributes:
        permissions: what the run's documents may use of this machine.
        data: a location in place of the run's held-out data.
        split: of data that have splits; None for `DEFAULT_SPLIT`.
        samples: maximum number of samples, from the first one on; None for all.
        torch: how a model of torch computes; None for the defaults.
    """

    permissions: Permissions
    data: str | None = None
    split: str | None = None
    samples: int | None = None
    torch: TorchOptions | None = None


@dataclass(frozen=True, slots=True)
class EvaluatedData:
    """The data of an evaluation.

    Attributes:
        split: None where the data have none.
        samples: number of samples that are evaluated.
        fingerprint: of all of the data.
    """

    split: str | None
    samples: int
    fingerprint: str


class HeldOutLosses:
    """The computation of losses on the held-out data of one step or another; that of one place is open at a time.

    Use it as a context.
    """

    def __init__(self, options: EvaluationOptions) -> None:
        self._options = options
        self._opened = contextlib.AsyncExitStack()
        self._found: tuple[HeldOutLocation, LossComputation] | None = None

    async def __aenter__(self) -> "HeldOutLosses":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._found = None
        await self._opened.aclose()

    async def at(self, state: StateFile, spec: ModelSpec, step: int) -> "LossComputation":
        """Return the computation for a step. Raise as `opened_evaluation`."""
        place = None if self._options.data else state.at(step).model.LLM.held_out_location
        if self._found is None or self._found[0] != place:
            await self.__aexit__()
            opening = opened_evaluation(state.at(step), spec, self._options)
            self._found = place, await self._opened.enter_async_context(opening)
        return self._found[1]


def name_since(name: str, state: StateFile, step: int, data: str | None) -> str:
    """Return the name of losses on a step's held-out data: another one for those to which the run has changed.

    So that the history joins no losses of different data. `data`: as in `EvaluationOptions`.
    """
    place = "model.LLM.held_out_location"
    steps = [change.at_step for change in state.changes if any(path.startswith(place) for path in change.values)]
    since = max((at for at in steps if at <= step), default=None)
    return name if data is not None or since is None else f"{name}-from-{since}"


@contextlib.asynccontextmanager
async def opened_evaluation(
    state: StateFile, spec: ModelSpec, options: EvaluationOptions
) -> AsyncIterator["LossComputation"]:
    """Open data and model, and yield the computation of losses.

    Args:
        state: the run's state file.
        spec: the run's model, complete.
        options: which data, and how.

    Raises:
        InvalidInput: there is no such split, token files have none, the data have no end and no number of samples is
            given, the data serve members only, or this machine does not have the device.
        DataError: the data cannot be read.
        Unsupported: this version does not compute the architecture, or not with what is installed.
    """
    location, dataset = run_data(state, options.data, held_out=True)
    split = _split_of(state, location, options.split)
    packs = state.model.LLM.data_type.reads_records
    permissions = options.permissions
    if options.data is None:
        check_pinned(location)
    else:
        permissions = permissions_of_owner(location, permissions)
    opening = OpenOptions(state.run_id, None, permissions, packs=packs, split=split or DEFAULT_SPLIT)
    model = model_of_run(spec, options.torch, options.permissions)
    async with (
        contextlib.aclosing(WorkerThread("epochal-evaluate")) as worker,
        contextlib.aclosing(await open_location(location, dataset, opening)) as provider,
    ):
        count = provider.sequence_count
        wanted = options.samples if count is None else min(options.samples or count, count)
        if wanted is None:
            raise InvalidInput("these data have no end; say how many samples with --samples")
        data = EvaluatedData(split, wanted, provider.fingerprint)
        split_read: Split = "train" if data.split == TRAINING_SPLIT else "validation"
        packing = Packing.of(state, model.vocabulary, worker, options.permissions, split_read)
        settings = FetchSettings.of(state, data_indices_per_batch=1)
        fetcher = DataFetcher(provider, settings, system_jitter, model.vocabulary)
        yield await asyncio.to_thread(LossComputation, model, data, fetcher, packing, worker)  # it may hash a base


def _split_of(state: StateFile, location: AnyLocation, split: str | None) -> str | None:
    if isinstance(location, Server):
        raise InvalidInput(ONLY_FOR_MEMBERS)
    has_splits = isinstance(location, Preprocessed | WeightedHttp)
    if has_splits or state.model.LLM.data_type.reads_records:
        return split or DEFAULT_SPLIT
    if split is not None:
        raise InvalidInput(f"--split {split}: these data have no splits; name others with --data")
    return None


class LossComputation:
    """Computes losses on the same data. See `opened_evaluation`, which makes it."""

    def __init__(
        self, model: Model, data: EvaluatedData, fetcher: DataFetcher, packing: Packing | None, worker: Worker
    ) -> None:
        self.data = data
        self.layout = TensorLayout(tuple(sorted(model.shapes.items())))
        self._worker = worker
        self._learner = model.learner()
        self._step = 0
        self._packing = packing
        self._fetcher = fetcher

    async def load(self, step: int, parameters: Mapping[str, Float32Array]) -> None:
        """Copy a replica's parameters to where losses are computed; the caller's arrays are not kept.

        Args:
            step: the replica's, for messages.
            parameters: with the model's names and shapes.

        Raises:
            TrainerFailed: there is no memory for them, or the device failed.
        """
        try:
            await self._worker.run(partial(self._learner.load, parameters))
        except TrainerFailed as error:
            raise _about(step, error) from error
        self._step = step

    async def loss(self, first: int = 0, count: int | None = None) -> Loss:
        """Return the summed loss of the replica that was loaded, finite.

        Args:
            first: the first sample that is taken.
            count: number of samples; None for all from `first` on.

        Raises:
            DataError: the data cannot be read, or are not samples for this run.
            TrainerFailed: the loss is not finite, or the device failed.
        """
        step = self._step
        running = _RunningLoss(self._learner)
        samples = self.data.samples - first if count is None else count
        plan = RoundPlan(step, (BatchId(first, first + samples - 1),), 1, (0.0,) * -(-samples // SAMPLES_AT_A_TIME))
        try:
            async with asyncio.TaskGroup() as group:
                batches: AssignedBatches = self._fetcher.fetch_data(plan.assignment, group)
                if self._packing is not None:
                    batches = self._packing.rows_of(plan.assignment, batches)
                with long_work(f"computing the loss of replica {step}", samples, "samples") as work:
                    async for micro_batch in micro_batches(plan, batches):
                        await self._worker.run(partial(running.add, micro_batch))
                        work.reach(min(samples, work.done + SAMPLES_AT_A_TIME))
            return await self._worker.run(running.total)
        except BaseExceptionGroup as group_error:
            raise _about(step, first_error(group_error, EpochalError)) from group_error
        except TrainerFailed as error:
            raise _about(step, error) from error
        finally:
            running.abandoned.set()


def _about(step: int, error: BaseException) -> BaseException:
    """Return the error; a trainer's failure names the replica."""
    if not isinstance(error, TrainerFailed):
        return error
    return TrainerFailed(f"replica {step}: {error.message}", step=step)


class _Abandoned(Exception):
    """Raised to stop arithmetic whose caller has left; never reaches a caller."""


class _RunningLoss:
    """The sum of losses so far. Its methods run in the worker, one after the other."""

    def __init__(self, learner: Learner) -> None:
        self.abandoned = threading.Event()
        self._learner = learner
        self._nats: list[SupportsFloat] = []
        self._token_count = 0

    def add(self, micro_batch: MicroBatch) -> None:
        self._proceed()
        for portion in portions(micro_batch.examples):
            found = self._learner.evaluate(portion, self._proceed)
            self._nats.append(found.nats)
            self._token_count += found.token_count

    def total(self) -> Loss:
        """Return the sum. Only here numbers of a device are waited for."""
        return Loss(Loss(sum(float(one) for one in self._nats), self._token_count).finite_nats(), self._token_count)

    def _proceed(self) -> None:
        if self.abandoned.is_set():
            raise _Abandoned
