"""Rounds of a mesh: every process takes the same steps in the same order.

For each global batch a process loads its rows, receives the others that its devices need, and computes on its share:
devices that hold the same rows divide them, so every row is computed on once. At the end of a local step all take one
optimizer step together. Before each exchange the processes agree that none has failed; if one has, all end the round
and stay connected. Tensors go from the agent to the processes, and back, one at a time.
"""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from epochal.batching.mesh.layout import MeshLayout
from epochal.batching.mesh.mesh_rows import RowReader, global_batches
from epochal.batching.micro_batches import Example
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import EpochalError
from epochal.state.model.tensors import Float32Array
from epochal.trainers.learner import Loss
from epochal.trainers.mesh.collectives import MeshCollectives
from epochal.trainers.mesh.mesh_messages import INNER, PARAMETERS, Part, RoundTask, SentTensor

T = TypeVar("T")


class CalledOff(EpochalError):
    """Another process failed."""


class MeshLearner(Protocol):
    """One process's part of a model that the processes of a mesh train together.

    All of them call `receive`, `step`, `finish` and `whole` together, in the same order; each blocks until all have. An
    `EpochalError` of these is raised in all of them; another error is that of one, for which the others wait in vain.
    """

    @property
    def computed(self) -> str:
        """Precision and device with which this process computes."""
        ...

    def open(self) -> None:
        """Make what the rounds need, if it is not there. Raises an `EpochalError` in this process alone."""
        ...

    def receive(self, part: Part, name: str, values: Float32Array | None) -> None:
        """Take a tensor of the round's start.

        Args:
            part: parameters, or the optimizer's state.
            name: its name.
            values: float32, writable, in the first process; None in the others.
        """
        ...

    def begin(self, step_count: int) -> None:
        """Begin a round with the received tensors. Raises an `EpochalError` in this process alone."""
        ...

    def add(self, examples: Sequence[Example]) -> None:
        """Take this process's examples of a part of the local step. Raises an `EpochalError` in this process alone."""
        ...

    def step(self, number: int, learning_rate: float) -> None:
        """Take local step `number` (from 0) on all examples that were added in any process."""
        ...

    def finish(self) -> tuple[Loss, float | None]:
        """Return the loss of all local steps and the mean norm of their gradients, valid in the first process only.

        Raises:
            TrainerFailed: a loss or a gradient was not finite.
        """
        ...

    @property
    def step_count(self) -> int:
        """The optimizer's step count, valid in the first process only."""
        ...

    @property
    def inner_names(self) -> Sequence[str]:
        """The names of the tensors of the optimizer's state that `whole` returns."""
        ...

    def whole(self, part: Part, name: str) -> Float32Array | None:
        """Return a tensor as it is now in the first process, and None in the others."""
        ...


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """The end of a round. All but `rows_loaded` is valid in the first process only."""

    loss: Loss
    gradient_norm: float | None
    step_count: int
    rows_loaded: int


@dataclass(frozen=True, slots=True)
class AgentTensors:
    """The tensors that the first process exchanges with its agent in a round; the other processes have none.

    Attributes:
        receive: returns the next one that the agent sends, None after the last.
        send: sends one to the agent.
    """

    receive: Callable[[], Awaitable[SentTensor | None]]
    send: Callable[[SentTensor], Awaitable[None]]


class MeshRounds:
    """One process's part in the rounds of its mesh.

    Args:
        collectives: connects the process to the others.
        learner: this process's part of the model.
        names: the names of the model's parameters, in order.
        row_tokens: number of tokens in a row.
        worker: runs whatever blocks.
    """

    def __init__(
        self,
        collectives: MeshCollectives,
        learner: MeshLearner,
        names: Sequence[str],
        row_tokens: int,
        worker: Worker,
    ) -> None:
        self._row_tokens = row_tokens
        self._learner = learner
        self._names = tuple(names)
        self._collectives = collectives
        self._worker = worker
        self._own_rows = computed_rows(collectives.layout, collectives.process)

    async def train(
        self, task: RoundTask, tensors: AgentTensors, data: Awaitable[AsyncIterator[TokenBatch]]
    ) -> RoundEnd:
        """Take this process's part in a round.

        Args:
            task: the same in every process.
            tensors: the round's start, and where its end goes.
            data: the samples of this process's `loaded_indices`.

        Raises:
            DataError, TrainerFailed: this process failed.
            CalledOff: another process failed.
            RuntimeError: another process is gone; this one cannot continue.
        """
        collectives, learner, run = self._collectives, self._learner, self._worker.run
        batches = await self._agreed(data)
        await self._agreed(run(learner.open))
        await self._receive(task, tensors)
        reader = RowReader(collectives.layout, collectives.process, self._row_tokens, batches)
        for number, group in itertools.groupby(
            global_batches(task.plan, collectives.layout.global_batch_size), key=lambda batch: batch.local_step
        ):
            for batch in group:
                rows = await self._agreed(reader.read(batch))
                await run(partial(collectives.share_rows, rows.data))
                await self._agreed(run(partial(learner.add, rows.examples(self._own_rows))))
            await run(partial(learner.step, number, task.plan.learning_rates[number]))
        loss, norm = await run(learner.finish)
        await self._send(task, tensors)
        return RoundEnd(loss, norm, learner.step_count, reader.rows_loaded)

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

    async def _receive(self, task: RoundTask, tensors: AgentTensors) -> None:
        """Begin with the tensors that the agent sends to the first process: the parameters, then the inner state."""
        for part, names in ((PARAMETERS, self._names), (INNER, task.inner_names)):
            for name in names:
                values = None
                if self._collectives.is_first:
                    sent = await tensors.receive()
                    if sent is None or (sent.part, sent.name) != (part, name):
                        raise RuntimeError(f"the agent sent another tensor than {name!a} of the {part}")
                    values = sent.values
                await self._worker.run(partial(self._learner.receive, part, name, values))
        await self._agreed(self._worker.run(partial(self._learner.begin, task.steps_taken)))

    async def _send(self, task: RoundTask, tensors: AgentTensors) -> None:
        for part, names in ((PARAMETERS, self._names), (INNER, self._learner.inner_names if task.keeps_state else ())):
            for name in names:
                values = await self._worker.run(partial(self._learner.whole, part, name))
                if values is not None:
                    await tensors.send(SentTensor(part, name, values))


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
