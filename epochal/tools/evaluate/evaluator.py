"""Evaluates one checkpoint of a run, or every new one while the run continues, and records the figures.

The rule kept here: a figure that was computed is shown once and reported until the coordinator has taken it; what the
run's history holds of the same data is not computed again by a command that follows.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias

from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.config.model_table import Architecture
from epochal.state.documents import CheckpointRef
from epochal.state.errors import EpochalError, InvalidInput, TrainerFailed
from epochal.state.messages.evaluation_reports import (
    EVALUATION_NAME_ALLOWED,
    EVALUATION_NAME_PATTERN,
    Benchmark,
    Evaluation,
    EvaluationReport,
)
from epochal.state.text.amounts import counted
from epochal.state.wire import Sha256
from epochal.tools.checkpoints.checkpoint_stream import read_parameters
from epochal.tools.checkpoints.each_checkpoint import Say, follow_checkpoints, take_checkpoint
from epochal.tools.checkpoints.readable_run import RunView, WatchedRun
from epochal.tools.evaluate.benchmarks import (
    BenchmarkComputation,
    BenchmarkOptions,
    LoadedTasks,
    load_tasks,
    opened_benchmarks,
)
from epochal.tools.evaluate.losses import EvaluationOptions, HeldOutLosses, LossComputation, name_since

OWN_DATA_NAME, OTHER_DATA_NAME = "training", "validation"
"""Names of evaluations on data without splits: those on which the run trains, and others."""


@dataclass(frozen=True, slots=True)
class EvaluatedReplica:
    """The loss of one replica on some data.

    Attributes:
        split: the data's split; None where they have none.
        loss: in nats per predicted token; None if no token is predicted.
        predicted: what is predicted: `token`, or `target` by a model of one's own.
        name: under which it is, or would be, in the run's history.
        recorded: whether it is in the run's history.
    """

    run_id: str
    step: int
    name: str
    split: str | None
    samples: int
    tokens: int
    loss: float | None
    predicted: str
    data_fingerprint: str
    recorded: bool

    def report(self, reference: CheckpointRef) -> EvaluationReport | None:
        """Return what the coordinator takes; None if nothing is predicted."""
        if self.loss is None:
            return None
        data = self.samples, Sha256(self.data_fingerprint)
        return EvaluationReport(self.name, self.step, reference.replica_digest, self.loss, self.tokens, *data)


@dataclass(frozen=True, slots=True)
class BenchmarkedReplica:
    """A figure of one replica in a task of lm_eval.

    Attributes:
        name: the task's, under which it is, or would be, in the run's history.
        samples: number of questions.
        data_fingerprint: SHA-256 of what decides the figure.
        recorded: whether it is in the run's history.
    """

    run_id: str
    step: int
    name: str
    samples: int
    benchmark: Benchmark
    data_fingerprint: str
    recorded: bool

    def report(self, reference: CheckpointRef) -> EvaluationReport:
        """Return what the coordinator takes."""
        data = self.samples, Sha256(self.data_fingerprint), self.benchmark
        return EvaluationReport(self.name, self.step, reference.replica_digest, None, None, *data)


Figure: TypeAlias = EvaluatedReplica | BenchmarkedReplica


@dataclass(frozen=True, slots=True)
class EvaluatorOptions:
    """The choices for an evaluation beside its data.

    Attributes:
        name: under which losses are recorded; None for that of the data.
        record: reports a figure to the run's coordinator; None if that is not possible or not wanted.
        show: receives each figure.
        say: receives lines for people about anything else.
    """

    name: str | None
    record: Callable[[EvaluationReport], Awaitable[None]] | None
    show: Callable[[Figure], None]
    say: Say


class _Work(Protocol):
    """Computes figures of a run's replicas."""

    def is_recorded(self, step: int, history: Sequence[Evaluation]) -> bool:
        """Whether the history has the figures of this step."""
        ...

    async def figures(self, view: RunView, reference: CheckpointRef) -> Sequence[Figure]:
        """Return the figures of a checkpoint."""
        ...


class Evaluator:
    """Evaluates checkpoints of one run. Use it as a context."""

    def __init__(
        self, run: WatchedRun, evaluation: EvaluationOptions | BenchmarkOptions, options: EvaluatorOptions
    ) -> None:
        self._run = run
        self._evaluation = evaluation
        self._options = options
        self._opened = contextlib.AsyncExitStack()
        self._benchmarks: _Work | None = None
        self._losses: HeldOutLosses | None = None
        self._computed: CheckpointRef | None = None
        self._pending: list[Figure] = []
        """Of the checkpoint that was computed last: those that were not yet shown."""
        self._unrecorded: CheckpointRef | None = None
        self._failures: list[TrainerFailed] = []

    async def __aenter__(self) -> "Evaluator":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def once(self, step: int | None) -> None:
        """Evaluate the checkpoint of a step, or the newest.

        Raises:
            InvalidInput: there is no such checkpoint, or as `opened_evaluation` and `opened_benchmarks`.
            DataError, TrainerFailed: as `LossComputation` and `BenchmarkComputation`.
        """
        await take_checkpoint(self._run, step, self._take)

    async def follow(self, policy: RetryPolicy) -> None:
        """Evaluate the newest checkpoint, and every later one, until the run has finished.

        A checkpoint whose figures cannot be computed is left out.

        Args:
            policy: how long to retry when the coordinator or the data's source fails.

        Raises:
            TrainerFailed: in the end, if checkpoints were left out.
        """
        await follow_checkpoints(self._run, self._follow_one, policy, self._options.say)
        if self._failures:
            failed = counted(len(self._failures), "checkpoint")
            raise TrainerFailed(f"{failed} not evaluated; {self._failures[0].message}")

    async def _known(self) -> list[Evaluation]:
        """Return the recorded evaluations of replicas that the run has."""
        return [one for one in await self._run.evaluations() if not one.is_dropped]

    async def _follow_one(self, view: RunView, reference: CheckpointRef) -> None:
        work = await self._work_for(view, reference.step)
        if self._computed != reference and work.is_recorded(reference.step, await self._known()):
            self._options.say(f"{view.state.run_id}, replica {reference.step}: recorded already")
            return
        try:
            await self._take(view, reference)
        except TrainerFailed as error:
            self._failures.append(error)
            self._options.say(f"not evaluated: {error}")

    async def _take(self, view: RunView, reference: CheckpointRef) -> None:
        if self._computed != reference:
            self._pending = list(await (await self._work_for(view, reference.step)).figures(view, reference))
            self._computed = reference
        while self._pending:
            found = self._pending[0]
            report = found.report(reference)
            if self._options.record is not None and report is not None:
                try:
                    await self._options.record(report)
                except EpochalError:
                    if self._unrecorded != reference:
                        for one in self._pending:
                            self._options.show(one)  # no figure is lost
                    self._unrecorded = reference
                    raise
                found = replace(found, recorded=True)
            self._options.show(found)
            del self._pending[0]

    async def _work_for(self, view: RunView, step: int) -> _Work:
        """Return the computation for the replica of a step. Raise as `opened_evaluation` and `opened_benchmarks`."""
        if isinstance(self._evaluation, BenchmarkOptions):
            if self._benchmarks is None:
                opening = _benchmarks(self._run, view, self._evaluation, self._options.say)
                self._benchmarks = await self._opened.enter_async_context(opening)
            return self._benchmarks
        if self._losses is None:
            self._losses = await self._opened.enter_async_context(HeldOutLosses(self._evaluation))
        found = await self._losses.at(view.state, view.spec, step)
        is_own = self._evaluation.data is None and view.state.at(step).model.LLM.held_out_location is None
        name = self._options.name or found.data.split or (OWN_DATA_NAME if is_own else OTHER_DATA_NAME)
        name = name_since(name, view.state, step, self._evaluation.data)
        return _Losses(self._run, found, checked_name(name))


@dataclass(frozen=True, slots=True)
class _Losses:
    run: WatchedRun
    losses: LossComputation
    name: str

    def is_recorded(self, step: int, history: Sequence[Evaluation]) -> bool:
        data = self.losses.data
        key = (self.name, step, data.fingerprint, data.samples)
        return any((one.name, one.step, one.data_fingerprint, one.samples) == key for one in history)

    async def figures(self, view: RunView, reference: CheckpointRef) -> Sequence[Figure]:
        losses, data = self.losses, self.losses.data
        await losses.load(reference.step, await read_parameters(self.run, reference, losses.layout))
        loss = await losses.loss()
        tokens = loss.token_count
        found = EvaluatedReplica(
            run_id=view.state.run_id,
            step=reference.step,
            name=self.name,
            split=data.split,
            samples=data.samples,
            tokens=tokens,
            loss=float(loss.nats) / tokens if tokens else None,
            predicted="target" if view.spec.architecture is Architecture.CUSTOM else "token",
            data_fingerprint=data.fingerprint,
            recorded=False,
        )
        return [found]


@contextlib.asynccontextmanager
async def _benchmarks(
    run: WatchedRun, view: RunView, options: BenchmarkOptions, say: Say
) -> AsyncIterator["_Benchmarks"]:
    async with contextlib.aclosing(WorkerThread("epochal-evaluate")) as worker:
        tasks = await asyncio.to_thread(load_tasks, options)
        computation, said = await worker.run(partial(opened_benchmarks, view, options, tasks))
        if said:
            say(said)
        yield _Benchmarks(run, computation, tasks, worker)


@dataclass(frozen=True, slots=True)
class _Benchmarks:
    run: WatchedRun
    computation: BenchmarkComputation
    tasks: LoadedTasks
    worker: WorkerThread

    def is_recorded(self, step: int, history: Sequence[Evaluation]) -> bool:
        fingerprint = self.tasks.fingerprint
        known = {one.name for one in history if (one.step, one.data_fingerprint) == (step, fingerprint)}
        return known.issuperset(self.tasks.names)

    async def figures(self, view: RunView, reference: CheckpointRef) -> Sequence[Figure]:
        parameters = await read_parameters(self.run, reference, self.computation.layout)
        await self.worker.run(partial(self.computation.load, parameters))
        try:
            found = await self.computation.scores(self.worker, view.state.model.LLM.max_seq_len)
        except TrainerFailed as error:
            raise TrainerFailed(f"replica {reference.step}: {error.message}", **error.context) from error
        return [
            BenchmarkedReplica(
                view.state.run_id, reference.step, one.task, one.samples, one.figure, self.tasks.fingerprint, False
            )
            for one in found
        ]


def checked_name(name: str) -> str:
    """Return the name of an evaluation. Raise `InvalidInput` unless it is one."""
    if not re.fullmatch(EVALUATION_NAME_PATTERN, name):
        raise InvalidInput(f"{name!r} is no name of an evaluation; allowed as --name: {EVALUATION_NAME_ALLOWED}")
    return name
