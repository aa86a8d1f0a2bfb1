"""The `numpy` and the `torch` trainer: take a round's local steps with any learner, in a separate thread."""

import math
import threading
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, SupportsFloat

from epochal.batching.micro_batches import MicroBatch, micro_batches, portions
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import InnerOptimizer
from epochal.state.errors import TrainerFailed
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.trainers.learner import NOT_FINITE, HoldsInnerState, InnerState, Learner, Loss, Model, TentativeInnerState
from epochal.trainers.protocol import TrainedRound

LOSS, GRADIENT = "the loss", "the norm of the gradient"
"""Names, in messages, of the numbers that a local step leaves behind."""


class LearnerTrainer(HoldsInnerState):
    """Trains a model on this machine.

    Args:
        model: the model.
        optimizer: None leaves the parameters as they are (the state file's `"Dummy"`) and only measures the loss.
        keeps_inner_state: whether a round begins with the optimizer's state of the last one that counted.
        worker: where the arithmetic runs; closed by `aclose`.
        name: of the trainer.
    """

    loads_data = False

    def __init__(
        self,
        model: Model,
        optimizer: InnerOptimizer | None,
        keeps_inner_state: bool,
        worker: Worker,
        name: str = "numpy",
    ) -> None:
        self.name = name
        self.vocabulary = model.vocabulary
        self._model = model
        self._optimizer = optimizer
        self._worker = worker
        self._inner_state = TentativeInnerState(keeps_inner_state)
        self._learner = model.learner()
        self.computed = self._learner.computed

    async def initial_parameters(self, seed: bytes) -> Tensors:
        return await self._worker.run(partial(self._model.initial_parameters, seed))

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        abandoned = threading.Event()
        try:
            local = await self._worker.run(partial(self._start, plan, abandoned, parameters))
            async for micro_batch in micro_batches(plan, batches):
                await self._worker.run(partial(local.take, micro_batch))
            trained, state = await self._worker.run(partial(local.finish, parameters))
        except MemoryError as error:
            raise TrainerFailed(f"step {plan.step}: no memory left to train", step=plan.step) from error
        finally:
            abandoned.set()
        self._inner_state.propose(state)
        return trained

    async def aclose(self) -> None:
        await self._worker.aclose()

    def _start(
        self, plan: RoundPlan, abandoned: threading.Event, parameters: Mapping[str, Float32Array]
    ) -> "_LocalSteps":
        try:
            self._learner.load(parameters, self._inner_state.newest)
        except TrainerFailed as error:
            raise TrainerFailed(f"step {plan.step}: {error.message}", **{**error.context, "step": plan.step}) from error
        return _LocalSteps(plan, self._learner, self._optimizer, abandoned)


class _Abandoned(Exception):
    """Raised to stop arithmetic whose `train` was cancelled; never reaches a caller."""


class _LocalSteps:
    """One round's local steps. Its methods run in the worker, one after the other."""

    def __init__(
        self, plan: RoundPlan, learner: Learner, optimizer: InnerOptimizer | None, abandoned: threading.Event
    ) -> None:
        self._plan = plan
        self._learner = learner
        self._optimizer = optimizer
        self._abandoned = abandoned
        self._found: list[tuple[int, str, SupportsFloat]] = []
        self._token_count = 0

    def take(self, micro_batch: MicroBatch) -> None:
        """Take one optimizer step on one micro-batch; do nothing if it has no token to predict."""
        self._proceed()
        number, examples = micro_batch
        compute = self._learner.evaluate if self._optimizer is None else self._learner.accumulate
        try:
            token_count = 0
            for portion in portions(examples):
                loss = compute(portion, self._proceed)
                self._found.append((number, LOSS, loss.nats))
                token_count += loss.token_count
            if self._optimizer is not None and token_count:
                norm = self._learner.step(self._optimizer, self._plan.learning_rates[number], token_count)
                self._found += [] if norm is None else [(number, GRADIENT, norm)]
        except TrainerFailed as error:
            raise self._failed(number, error.message, **error.context) from error
        self._token_count += token_count

    def finish(self, parameters: Mapping[str, Float32Array]) -> tuple[TrainedRound, InnerState]:
        """Return the result, and the optimizer's state after it. Only here numbers of a device are waited for."""
        nats, norms = 0.0, list[float]()
        for number, name, value in self._found:
            try:
                found = float(value)
            except TrainerFailed as error:
                raise self._failed(number, error.message, **error.context) from error
            if not math.isfinite(found):
                raise self._failed(number, f"{name} is {found}", failure=NOT_FINITE)
            if name == LOSS:
                nats += found
            else:
                norms.append(found)
        loss = Loss(nats, self._token_count)
        trained = TrainedRound.between(self._plan.step, parameters, self._learner.parameters, loss, norms)
        return trained, self._learner.inner_state

    def _failed(self, number: int, message: str, **context: Any) -> TrainerFailed:
        step = self._plan.step
        return TrainerFailed(f"step {step}, local step {number + 1}: {message}", **{**context, "step": step})

    def _proceed(self) -> None:
        if self._abandoned.is_set():
            raise _Abandoned
