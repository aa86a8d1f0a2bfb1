"""Rounds of a mesh: every process takes the same steps in the same order.

For each global batch a process loads its rows, receives the others that its devices need, and computes on its share:
devices that hold the same rows divide them, so every row is computed on once. Where a run packs, the first process
packs the whole assignment and gives the others their rows. At the end of a local step all take one optimizer step
together, on the sum of all gradients divided by the number of all predicted tokens. Before each exchange the processes
agree that none has failed; if one has, all end the round and stay connected. Tensors go from the agent to the
processes, and back, one at a time.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from epochal.batching.mesh.mesh_rows import (
    GlobalBatch,
    RowArrays,
    RowReader,
    computed_rows,
    global_batches,
    packed_rows,
)
from epochal.batching.micro_batches import Example
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import EpochalError
from epochal.state.model.tensors import Float32Array
from epochal.trainers.learner import Loss
from epochal.trainers.mesh.collectives import MeshCollectives
from epochal.trainers.mesh.mesh_messages import INNER, PARAMETERS, Part, RoundTask, SentTensor

T = TypeVar("T")

_END = -1
"""The local step that the first process names after the last packed rows."""


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
    """The end of a round. All but `rows_loaded` is valid in the first process only.

    `rows_loaded` counts the rows that this process loaded; where a run packs, those that it was given.
    """

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


class _Part(NamedTuple):
    """A process's part in a global batch: the examples on which it computes."""

    local_step: int
    ends_step: bool
    examples: list[Example]
    rows_loaded: int


class MeshRounds:
    """One process's part in the rounds of its mesh.

    Args:
        collectives: connects the process to the others.
        learner: this process's part of the model.
        names: the names of the model's parameters, in order.
        row_tokens: number of tokens in a row.
        worker: runs whatever blocks.
        packs: whether the run packs samples.
    """

    def __init__(
        self,
        collectives: MeshCollectives,
        learner: MeshLearner,
        names: Sequence[str],
        row_tokens: int,
        worker: Worker,
        *,
        packs: bool,
    ) -> None:
        self._row_tokens = row_tokens
        self._learner = learner
        self._names = tuple(names)
        self._collectives = collectives
        self._worker = worker
        self._parts = self._packed_parts if packs else self._loaded_parts

    async def train(
        self, task: RoundTask, tensors: AgentTensors, data: Awaitable[AsyncIterator[TokenBatch] | None]
    ) -> RoundEnd:
        """Take this process's part in a round.

        Args:
            task: the same in every process.
            tensors: the round's start, and where its end goes.
            data: the samples of this process's `loaded_indices`; where the run packs, in the first process, the packed
                rows of the whole assignment, and None in the others.

        Raises:
            DataError, TrainerFailed: this process failed.
            CalledOff: another process failed.
            RuntimeError: another process is gone; this one cannot continue.
        """
        learner, run = self._learner, self._worker.run
        batches = await self._agreed(data)
        await self._agreed(run(learner.open))
        await self._receive(task, tensors)
        rows_loaded = 0
        async for part in self._parts(task.plan, batches):
            rows_loaded += part.rows_loaded
            await self._agreed(run(partial(learner.add, part.examples)))
            if part.ends_step:
                await run(partial(learner.step, part.local_step, task.plan.learning_rates[part.local_step]))
        loss, norm = await run(learner.finish)
        await self._send(task, tensors)
        return RoundEnd(loss, norm, learner.step_count, rows_loaded)

    async def _loaded_parts(self, plan: RoundPlan, batches: AsyncIterator[TokenBatch] | None) -> AsyncIterator[_Part]:
        """Yield this process's parts, each process loading its own rows."""
        collectives, layout = self._collectives, self._collectives.layout
        assert batches is not None
        reader = RowReader(layout, collectives.process, self._row_tokens, batches)
        for batch in global_batches(plan, layout.global_batch_size):
            before = reader.rows_loaded
            rows = await self._agreed(reader.read(batch))
            await self._worker.run(partial(collectives.share_rows, rows.data))
            examples = rows.examples(computed_rows(layout, collectives.process, batch.row_count))
            yield _Part(batch.local_step, batch.ends_step, examples, reader.rows_loaded - before)

    async def _packed_parts(self, plan: RoundPlan, batches: AsyncIterator[TokenBatch] | None) -> AsyncIterator[_Part]:
        """Yield this process's parts, of the rows that the first process has."""
        collectives, run = self._collectives, self._worker.run
        packed = None if batches is None else packed_rows(plan, collectives.layout, self._row_tokens, batches)

        async def next_rows() -> tuple[GlobalBatch, list[RowArrays]] | None:
            return None if packed is None else await anext(packed, None)

        while True:
            found = await self._agreed(next_rows())
            batch, rows = found or (None, [])
            head = np.array([batch.local_step, batch.ends_step, len(rows[0].data)] if batch else [_END, 0, 0], np.int64)
            await run(partial(collectives.from_first, head))
            local_step, ends_step, row_count = head.tolist()
            if local_step == _END:
                return
            own = RowArrays.zeros(row_count, self._row_tokens)
            parts = [each.data for each in rows] if batch else None
            await run(partial(collectives.rows_from_first, own.data, parts))
            weighed = int(np.count_nonzero(own.weights))
            yield _Part(local_step, bool(ends_step), own.examples(range(row_count)), weighed)

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
