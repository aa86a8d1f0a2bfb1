"""Rounds of a mesh: every process takes the same steps in the same order.

For each global batch a process loads its rows, receives the others that its devices need, and computes on its share:
devices that hold the same rows divide them, so every row is computed on once. At the end of a local step the gradients
are added up in the first process, which takes the optimizer step and gives the parameters to the others. Before each
exchange the processes agree that none has failed; if one has, all end the round and stay connected.
"""

import hashlib
import itertools
import math
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
from state.config.model import AdamW
from state.errors import EpochalError, TrainerFailed
from state.tensors import Float32Array, Tensors
from state.wire import canonical_json
from trainers.learner import InnerState, Loss, Model
from trainers.mesh.collectives import MeshCollectives

T = TypeVar("T")


class CalledOff(EpochalError):
    """Another process failed."""


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """The end of a round. All but `rows_loaded` is valid in the first process only."""

    parameters: Mapping[str, Float32Array]
    inner_state: InnerState
    loss: Loss
    rows_loaded: int


class MeshRounds:
    """One process's part in the rounds of its mesh.

    Args:
        collectives: connects the process to the others.
        model: the model to train.
        optimizer: None leaves the parameters as they are.
        row_tokens: number of tokens in a row.
        worker: runs whatever blocks.
    """

    def __init__(
        self, collectives: MeshCollectives, model: Model, optimizer: AdamW | None, row_tokens: int, worker: Worker
    ) -> None:
        self._row_tokens = row_tokens
        self._shapes = model.shapes
        self._learner = model.learner()
        self._optimizer = optimizer
        self._collectives = collectives
        self._worker = worker
        self._own_rows = computed_rows(collectives.layout, collectives.process)

    async def train(
        self,
        plan: RoundPlan,
        parameters: Mapping[str, Float32Array] | None,
        inner_state: InnerState,
        data: Awaitable[tuple[str, AsyncIterator[TokenBatch]]],
    ) -> RoundEnd:
        """Take this process's part in a round.

        Args:
            plan: the same in every process.
            parameters: the round's start, in the first process.
            inner_state: the optimizer's, in the first process.
            data: the data's fingerprint, and the samples of this process's `loaded_indices`.

        Raises:
            DataError, TrainerFailed: this process failed.
            CalledOff: another process failed.
            RuntimeError: another process is gone; this one cannot continue.
        """
        collectives, run = self._collectives, self._worker.run
        fingerprint, batches = await self._agreed(data)
        identity = hashlib.sha256(canonical_json(plan) + fingerprint.encode()).digest()
        if not await run(partial(collectives.all_equal, identity)):
            raise TrainerFailed("the processes of the mesh read different data, or another assignment")
        shared = await run(partial(self._shared, parameters))
        await run(partial(self._learner.load, shared, inner_state))
        layout = collectives.layout
        reader = RowReader(layout, collectives.process, self._row_tokens, batches)
        sums = np.zeros(2)
        for number, group in itertools.groupby(
            global_batches(plan, layout.global_batch_size), key=lambda batch: batch.local_step
        ):
            step_sums = np.zeros(2)
            for batch in group:
                rows = await self._agreed(reader.read(batch))
                await run(partial(collectives.share_rows, rows.data))
                step_sums += await self._agreed(run(partial(self._accumulate, rows)))
            sums += await run(partial(self._step, plan.learning_rates[number], step_sums))
        loss = Loss(float(sums[0]), int(sums[1]))
        return RoundEnd(self._learner.parameters, self._learner.inner_state, loss, reader.rows_loaded)

    async def _agreed(self, part: Awaitable[T]) -> T:
        """Return the result of this process's part once all processes have finished theirs."""
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

    def _shared(self, parameters: Mapping[str, Float32Array] | None) -> Tensors:
        """Return the parameters that the first process gives; the others give None."""
        flat, tensors = self._in_one_array(parameters or {})
        self._collectives.from_first(flat)
        return tensors

    def _in_one_array(self, tensors: Mapping[str, Float32Array]) -> tuple[Float32Array, Tensors]:
        """Copy tensors into one flat array, for a single exchange; return the array, and its parts by name."""
        flat = np.empty(sum(map(math.prod, self._shapes.values())), np.float32)
        parts, offset = dict[str, Float32Array](), 0
        for name, shape in self._shapes.items():
            parts[name] = flat[offset : offset + math.prod(shape)].reshape(shape)
            offset += parts[name].size
            if name in tensors:
                parts[name][...] = tensors[name]
        return flat, parts

    def _accumulate(self, rows: RowArrays) -> tuple[float, int]:
        loss = self._learner.accumulate(rows.examples(self._own_rows))
        return loss.finite_nats(), loss.token_count

    def _step(self, learning_rate: float, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take the optimizer step on the sum of all gradients; in the first process return the sums of all."""
        collectives, learner = self._collectives, self._learner
        collectives.sum_to_first(sums)
        if self._optimizer is None:
            learner.discard()
            return sums
        flat, summed = self._in_one_array(learner.gradient)
        collectives.sum_to_first(flat)
        if not collectives.is_first:
            learner.load(self._shared(None))
            return sums
        learner.replace_gradient(summed)
        if sums[1]:
            learner.step(self._optimizer, learning_rate, sums[1])
        self._shared(learner.parameters)
        return sums


def computed_rows(layout: MeshLayout, process: int) -> list[int]:
    """Return the rows, of those that a process needs, on which it computes.

    Of *R* devices with the same rows, the *r*-th takes every *R*-th row, beginning with the *r*-th.
    """
    found: list[int] = []
    for number, shard in enumerate(layout.loading(process).needed_shards):
        replicas = set(np.flatnonzero(layout.holders[shard] == process).tolist())
        first = number * layout.batch_size
        found += [first + row for row in range(layout.batch_size) if row % layout.replica_count in replicas]
    return found
