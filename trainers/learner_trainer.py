"""The `numpy` trainer: takes a round's local steps with any learner, in a thread of its own."""

import threading
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import SupportsFloat

from batching.micro_batches import MicroBatch, micro_batches
from batching.round_plan import RoundPlan
from data_providers.protocol import TokenBatch
from runtime.worker_thread import Worker
from state.config.model import AdamW
from state.errors import TrainerFailed
from state.tensors import Float32Array, Tensors
from trainers.learner import InnerState, Learner, Loss, LossOptions, Model, TentativeInnerState
from trainers.protocol import TrainedRound


class LearnerTrainer:
    """Trains a model on this machine.

    Args:
        model: the model.
        optimizer: None leaves the parameters as they are (the state file's `"Dummy"`) and only measures the loss.
        keeps_inner_state: whether a round begins with the optimizer's state of the last one that counted.
        worker: where the arithmetic runs; closed by `aclose`.
    """

    name = "numpy"
    loads_data = False

    def __init__(self, model: Model, optimizer: AdamW | None, keeps_inner_state: bool, worker: Worker) -> None:
        self.vocabulary = model.vocabulary
        self._model = model
        self._optimizer = optimizer
        self._worker = worker
        self._inner_state = TentativeInnerState(keeps_inner_state)
        self._learner: Learner | None = None

    async def initial_parameters(self, seed: bytes) -> Tensors:
        return await self._worker.run(partial(self._model.initial_parameters, seed))

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        self._inner_state.roll_back()
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

    def commit_inner_state(self) -> None:
        self._inner_state.commit()

    def roll_back_inner_state(self) -> None:
        self._inner_state.roll_back()

    async def aclose(self) -> None:
        await self._worker.aclose()

    def _start(
        self, plan: RoundPlan, abandoned: threading.Event, parameters: Mapping[str, Float32Array]
    ) -> "_LocalSteps":
        self._learner = self._learner or self._model.learner()
        self._learner.load(parameters, self._inner_state.committed)
        return _LocalSteps(plan, self._learner, self._optimizer, abandoned)


class _Abandoned(Exception):
    """Raised to stop arithmetic whose `train` was cancelled; never reaches a caller."""


class _LocalSteps:
    """One round's local steps. Its methods run in the worker, one after the other."""

    def __init__(self, plan: RoundPlan, learner: Learner, optimizer: AdamW | None, abandoned: threading.Event) -> None:
        self._plan = plan
        self._learner = learner
        self._optimizer = optimizer
        self._abandoned = abandoned
        self._options = LossOptions(proceed=self._proceed)
        self._losses: list[SupportsFloat] = []
        self._token_count = 0

    def take(self, micro_batch: MicroBatch) -> None:
        """Take one optimizer step on one micro-batch; do nothing if it has no token to predict."""
        self._proceed()
        number, examples = micro_batch
        compute = self._learner.evaluate if self._optimizer is None else self._learner.accumulate
        try:
            loss = compute(examples, self._options)
        except TrainerFailed as error:
            where = f"step {self._plan.step}, local step {number + 1}"
            raise TrainerFailed(f"{where}: {error.message}", step=self._plan.step) from error
        if self._optimizer is not None and loss.token_count:
            self._learner.step(self._optimizer, self._plan.learning_rates[number], loss.token_count)
        self._losses.append(loss.nats)
        self._token_count += loss.token_count

    def finish(self, parameters: Mapping[str, Float32Array]) -> tuple[TrainedRound, InnerState]:
        """Return the result, and the optimizer's state after it."""
        loss = Loss(sum(map(float, self._losses)), self._token_count)
        trained = TrainedRound.between(self._plan.step, parameters, self._learner.parameters, loss)
        return trained, self._learner.inner_state

    def _proceed(self) -> None:
        if self._abandoned.is_set():
            raise _Abandoned
