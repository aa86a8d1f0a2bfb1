"""The `numpy` trainer: trains the embedded n-gram model with AdamW, in a thread of its own."""

import math
import threading
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Literal

import numpy as np

from batching.micro_batches import MicroBatch, micro_batches
from batching.round_plan import RoundPlan
from data_providers.protocol import TokenBatch
from runtime.worker_thread import Worker
from state.config.model import AdamW, NgramConfig
from state.errors import TrainerFailed
from state.tensors import Float32Array, Tensors, check_values
from trainers.ngram.adamw import AdamWState
from trainers.ngram.learner import Learner
from trainers.ngram.model import VOCABULARY, initial_parameters
from trainers.protocol import TrainedRound


class NumpyTrainer:
    """Trains the embedded model over bytes.

    Args:
        model: its size.
        optimizer: None leaves the parameters as they are (the state file's `"Dummy"`) and still measures the loss.
        inner_state: `keep` carries AdamW's moments from round to round, `reset` starts each round without.
        worker: where the arithmetic runs; closed by `aclose`.
    """

    name = "numpy"
    vocabulary = VOCABULARY
    loads_data = False

    def __init__(
        self,
        model: NgramConfig,
        optimizer: AdamW | None,
        inner_state: Literal["keep", "reset"],
        worker: Worker,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._keeps_state = inner_state == "keep"
        self._worker = worker
        self._committed = AdamWState()
        self._tentative: AdamWState | None = None

    async def initial_parameters(self, seed: bytes) -> Tensors:
        return await self._worker.run(partial(initial_parameters, self._model, seed))

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        self._tentative = None
        local = _LocalSteps(plan, self._model.context, self._optimizer, self._committed.copy())
        try:
            await self._worker.run(partial(local.start, parameters))
            async for micro_batch in micro_batches(plan, batches):
                await self._worker.run(partial(local.take, micro_batch))
            trained = await self._worker.run(partial(local.finish, parameters))
        except MemoryError as error:
            raise TrainerFailed(f"step {plan.step}: no memory left to train", step=plan.step) from error
        finally:
            local.abandoned.set()
        if self._keeps_state:
            self._tentative = local.state
        return trained

    def commit_inner_state(self) -> None:
        if self._tentative is not None:
            self._committed = self._tentative
            self._tentative = None

    def roll_back_inner_state(self) -> None:
        self._tentative = None

    async def aclose(self) -> None:
        await self._worker.aclose()


class _Abandoned(Exception):
    """Ends arithmetic whose `train` was cancelled; nobody waits for it."""


class _LocalSteps:
    """One round's local steps, on copies of its own. Its methods run in the worker, one after the other."""

    def __init__(self, plan: RoundPlan, context: int, optimizer: AdamW | None, state: AdamWState) -> None:
        self.abandoned = threading.Event()
        self.state = state
        self._plan = plan
        self._context = context
        self._optimizer = optimizer
        self._learner: Learner
        self._loss_sum = 0.0
        self._token_count = 0

    def start(self, parameters: Mapping[str, Float32Array]) -> None:
        """Copies the round's start."""
        self._learner = Learner(parameters, self._context, self._optimizer, self.state)

    def take(self, micro_batch: MicroBatch) -> None:
        """One optimizer step on one micro-batch; a micro-batch without a token to predict changes nothing."""
        self._proceed()
        number, documents = micro_batch
        try:
            learnt = self._learner.accumulate(documents, self._proceed)
        except TrainerFailed as error:
            where = f"step {self._plan.step}, local step {number + 1}"
            raise TrainerFailed(f"{where}: {error.message}", step=self._plan.step) from error
        self._learner.step(self._plan.learning_rates[number])
        self._loss_sum += learnt.loss_sum
        self._token_count += learnt.token_count

    def finish(self, parameters: Mapping[str, Float32Array]) -> TrainedRound:
        """The difference from the round's start."""
        difference = difference_of(parameters, self._learner.parameters, self._plan.step)
        loss = self._loss_sum / self._token_count if self._token_count else None
        return TrainedRound(difference, loss, self._token_count)

    def _proceed(self) -> None:
        if self.abandoned.is_set():
            raise _Abandoned


def difference_of(start: Mapping[str, Float32Array], end: Tensors, step: int) -> Tensors:
    """What training took from the parameters, `start − end` of each.

    Raises:
        TrainerFailed: some of it is not finite.
    """
    difference = {name: np.subtract(start[name], values) for name, values in end.items()}
    for name, values in difference.items():
        if check_values(values.reshape(-1), math.inf) is not None:
            raise TrainerFailed(f"step {step}: training made {name!a} infinite", step=step)
    return difference
