"""Evaluates one checkpoint of a run, or every new one while the run continues, and records the losses.

The rule kept here: a loss that was computed is shown once and reported until the coordinator has taken it; what the
run's history holds of the same data is not computed again by a command that follows.
"""

import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from epochal.runtime.retry import RetryPolicy
from epochal.state.config.model_table import Architecture
from epochal.state.documents import CheckpointRef
from epochal.state.errors import EpochalError, InvalidInput, TrainerFailed
from epochal.state.messages.evaluation_reports import EVALUATION_NAME_ALLOWED, EVALUATION_NAME_PATTERN, EvaluationReport
from epochal.state.text.amounts import counted
from epochal.state.wire import Sha256
from epochal.tools.checkpoints.checkpoint_stream import read_parameters
from epochal.tools.checkpoints.each_checkpoint import Say, follow_checkpoints, take_checkpoint
from epochal.tools.checkpoints.readable_run import EvaluatedRun, RunView
from epochal.tools.evaluate.losses import EvaluatedData, EvaluationOptions, LossComputation, opened_evaluation

OWN_DATA_NAME, OTHER_DATA_NAME = "training", "validation"
"""Names of evaluations on data without splits: the run's own, and others."""


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


@dataclass(frozen=True, slots=True)
class EvaluatorOptions:
    """The choices for an evaluation beside its data.

    Attributes:
        name: under which losses are recorded; None for that of the data.
        record: reports a loss to the run's coordinator; None if that is not possible or not wanted.
        show: receives each loss.
        say: receives lines for people about anything else.
    """

    name: str | None
    record: Callable[[EvaluationReport], Awaitable[None]] | None
    show: Callable[[EvaluatedReplica], None]
    say: Say


class Evaluator:
    """Evaluates checkpoints of one run. Use it as a context."""

    def __init__(self, run: EvaluatedRun, evaluation: EvaluationOptions, options: EvaluatorOptions) -> None:
        self._run = run
        self._evaluation = evaluation
        self._options = options
        self._opened = contextlib.AsyncExitStack()
        self._losses: LossComputation | None = None
        self._computed: tuple[CheckpointRef, EvaluatedReplica] | None = None
        self._unrecorded: CheckpointRef | None = None
        self._failures: list[TrainerFailed] = []

    async def __aenter__(self) -> "Evaluator":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def once(self, step: int | None) -> None:
        """Evaluate the checkpoint of a step, or the newest.

        Raises:
            InvalidInput: there is no such checkpoint, or as `opened_evaluation`.
            DataError, TrainerFailed: as `LossComputation`.
        """
        await take_checkpoint(self._run, step, self._take)

    async def follow(self, policy: RetryPolicy) -> None:
        """Evaluate the newest checkpoint, and every later one, until the run has finished.

        A checkpoint whose loss cannot be computed is left out.

        Args:
            policy: how long to retry when the coordinator or the data's source fails.

        Raises:
            TrainerFailed: in the end, if checkpoints were left out.
        """
        await follow_checkpoints(self._run, self._follow_one, policy, self._options.say)
        if self._failures:
            failed = counted(len(self._failures), "checkpoint")
            raise TrainerFailed(f"{failed} not evaluated; {self._failures[0].message}")

    async def _follow_one(self, view: RunView, reference: CheckpointRef) -> None:
        losses = await self._losses_of(view)
        if await self._is_recorded(reference, losses.data):
            self._options.say(f"{view.state.run_id}, replica {reference.step}: recorded already")
            return
        try:
            await self._take(view, reference)
        except TrainerFailed as error:
            self._failures.append(error)
            self._options.say(f"not evaluated: {error}")

    async def _is_recorded(self, reference: CheckpointRef, data: EvaluatedData) -> bool:
        key = (self._name_of(data), reference.step, data.fingerprint, data.samples)
        history = await self._run.evaluations()
        return any((one.name, one.step, one.data_fingerprint, one.samples) == key for one in history)

    async def _take(self, view: RunView, reference: CheckpointRef) -> None:
        if self._computed is None or self._computed[0] != reference:
            self._computed = reference, await self._evaluated(view, reference)
        found = self._computed[1]
        if self._options.record is None or found.loss is None:
            self._options.show(found)
            return
        report = EvaluationReport(
            name=found.name,
            step=found.step,
            replica_digest=reference.replica_digest,
            loss=found.loss,
            tokens=found.tokens,
            samples=found.samples,
            data_fingerprint=Sha256(found.data_fingerprint),
        )
        try:
            await self._options.record(report)
        except EpochalError:
            if self._unrecorded != reference:
                self._options.show(found)  # the loss is not lost
            self._unrecorded = reference
            raise
        self._options.show(replace(found, recorded=True))

    async def _evaluated(self, view: RunView, reference: CheckpointRef) -> EvaluatedReplica:
        losses = await self._losses_of(view)
        await losses.load(reference.step, await read_parameters(self._run, reference, losses.layout))
        loss = await losses.loss()
        data, tokens = losses.data, loss.token_count
        return EvaluatedReplica(
            run_id=view.state.run_id,
            step=reference.step,
            name=self._name_of(data),
            split=data.split,
            samples=data.samples,
            tokens=tokens,
            loss=float(loss.nats) / tokens if tokens else None,
            predicted="target" if view.spec.architecture is Architecture.CUSTOM else "token",
            data_fingerprint=data.fingerprint,
            recorded=False,
        )

    async def _losses_of(self, view: RunView) -> LossComputation:
        if self._losses is None:
            opening = opened_evaluation(view.state, view.spec, self._evaluation)
            self._losses = await self._opened.enter_async_context(opening)
        return self._losses

    def _name_of(self, data: EvaluatedData) -> str:
        without_splits = OWN_DATA_NAME if self._evaluation.data is None else OTHER_DATA_NAME
        return checked_name(self._options.name or data.split or without_splits)


def checked_name(name: str) -> str:
    """Return the name of an evaluation. Raise `InvalidInput` unless it is one."""
    if not re.fullmatch(EVALUATION_NAME_PATTERN, name):
        raise InvalidInput(f"{name!r} is no name of an evaluation; allowed as --name: {EVALUATION_NAME_ALLOWED}")
    return name
