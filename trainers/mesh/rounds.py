"""A round as every process of a mesh goes through it, all of them in the same order.

For each global batch a process loads its rows, receives the others that its devices need, and computes on those that
fall to it: of the devices that hold the same rows, each takes its share of them, so that every row is computed on once.
At a local step's end the gradients are added up in the first process, which takes the optimizer's step and gives the
parameters to the others. Before each exchange the processes agree that none has failed; where one has, all end the
round, and stay connected.
"""

import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from batching.mesh.layout import MeshLayout
from batching.mesh.rows import RowArrays, RowReader, global_batches
from batching.round_plan import RoundPlan
from data_providers.protocol import TokenBatch
from runtime.worker_thread import Worker
from state.config.model import AdamW, NgramConfig
from state.errors import EpochalError, TrainerFailed
from state.tensors import Float32Array, Tensors
from state.wire import canonical_json
from trainers.mesh.collectives import MeshCollectives
from trainers.ngram.adamw import AdamWState
from trainers.ngram.learner import Learner
from trainers.ngram.model import parameter_shapes

T = TypeVar("T")


class CalledOff(EpochalError):
    """Another process failed."""


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """What a round came to. Parameters, loss and tokens are the first process's to tell."""

    parameters: Tensors
    loss_sum: float
    token_count: int
    rows_loaded: int


class MeshRounds:
    """One process's part in the rounds of its mesh.

    Args:
        layout: the mesh.
        process: this process.
        length: tokens of a row.
        model, optimizer: as the state file says; None as optimizer leaves the parameters as they are.
        collectives: the others.
        worker: where everything runs that blocks.
    """

    def __init__(
        self,
        layout: MeshLayout,
        process: int,
        length: int,
        model: NgramConfig,
        optimizer: AdamW | None,
        collectives: MeshCollectives,
        worker: Worker,
    ) -> None:
        self._layout = layout
        self._process = process
        self._length = length
        self._model = model
        self._optimizer = optimizer
        self._collectives = collectives
        self._worker = worker
        self._own_rows = computed_rows(layout, process)

    async def train(
        self,
        plan: RoundPlan,
        parameters: Mapping[str, Float32Array] | None,
        state: AdamWState,
        data: Awaitable[tuple[str, AsyncIterator[TokenBatch]]],
    ) -> RoundEnd:
        """This process's part of a round.

        Args:
            plan: the same in every process.
            parameters: the round's start, in the first process.
            state: the optimizer's, in the first process; changed.
            data: the data's fingerprint, and the samples of this process's `loaded_indices`.

        Raises:
            DataError, TrainerFailed: this process's own failure.
            CalledOff: another's.
            RuntimeError: another process is gone; this one cannot go on either.
        """
        collectives, run = self._collectives, self._worker.run
        fingerprint, batches = await self._agreed(data)
        identity = hashlib.sha256(canonical_json(plan) + fingerprint.encode()).digest()
        if not await run(partial(collectives.all_equal, identity)):
            raise TrainerFailed("the processes of the mesh read different data, or another assignment")
        flat = _flat(parameters, self._model) if parameters is not None else _zeros(self._model)
        await run(partial(collectives.from_first, flat))
        learner = Learner(_tensors(flat, self._model), self._model.context, self._optimizer, state)
        reader = RowReader(self._layout, self._process, self._length, batches)
        sums = np.zeros(2)
        for number, group in itertools.groupby(
            global_batches(plan, self._layout.global_batch_size), key=lambda batch: batch.local_step
        ):
            step_sums = np.zeros(2)
            for batch in group:
                rows = await self._agreed(reader.read(batch))
                await run(partial(collectives.share_rows, rows.data))
                loss_sum, token_count = await self._agreed(run(partial(self._accumulate, learner, rows)))
                step_sums += (loss_sum, token_count)
            sums += await run(partial(self._step, learner, plan.learning_rates[number], step_sums))
        return RoundEnd(learner.parameters, float(sums[0]), int(sums[1]), reader.rows_loaded)

    async def _agreed(self, part: Awaitable[T]) -> T:
        """What comes of this process's part, once all processes have done theirs."""
        failure: EpochalError | None = None
        try:
            done = await part
        except EpochalError as error:
            failure = error
        any_failed = await self._worker.run(partial(self._collectives.any_of, failure is not None))
        if failure is not None:
            raise failure
        if any_failed:
            raise CalledOff("another process of the mesh failed")
        return done

    def _accumulate(self, learner: Learner, rows: RowArrays) -> tuple[float, int]:
        learnt = learner.accumulate(rows.documents(self._own_rows))
        return learnt.loss_sum, learnt.token_count

    def _step(self, learner: Learner, learning_rate: float, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """The optimizer's step on everyone's gradient; everyone's loss and tokens, in the first process."""
        collectives, model = self._collectives, self._model
        gradient = _flat(learner.gradient, model) if learner.gradient else _zeros(model)
        collectives.sum_to_first(gradient)
        collectives.sum_to_first(sums)
        if collectives.is_first:
            learner.gradient = _tensors(gradient, model)
            learner.token_count = int(sums[1])
            learner.step(learning_rate)
        learner.discard()
        flat = _flat(learner.parameters, model)
        collectives.from_first(flat)
        learner.parameters = _tensors(flat, model)
        return sums


def computed_rows(layout: MeshLayout, process: int) -> list[int]:
    """Which of the rows that a process needs it computes on: of *R* devices with the same rows, the *r*-th takes every
    *R*-th row, beginning with the *r*-th."""
    found: list[int] = []
    for number, shard in enumerate(layout.loading(process).needed_shards):
        mine = set(np.flatnonzero(layout.holders[shard] == process).tolist())
        first = number * layout.batch_size
        found += [first + row for row in range(layout.batch_size) if row % layout.replica_count in mine]
    return found


def _zeros(model: NgramConfig) -> Float32Array:
    return np.zeros(sum(int(np.prod(shape)) for shape in parameter_shapes(model).values()), dtype=np.float32)


def _flat(tensors: Mapping[str, Float32Array], model: NgramConfig) -> Float32Array:
    return np.concatenate([tensors[name].reshape(-1) for name in parameter_shapes(model)], dtype=np.float32)


def _tensors(flat: Float32Array, model: NgramConfig) -> Tensors:
    """Views of the flat values, by name."""
    found: Tensors = {}
    offset = 0
    for name, shape in parameter_shapes(model).items():
        size = int(np.prod(shape))
        found[name] = flat[offset : offset + size].reshape(shape)
        offset += size
    return found
