"""The `numpy` trainer: trains the embedded n-gram model with AdamW, in a thread of its own."""

import math
import threading
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Literal

import numpy as np

from data_providers.protocol import IGNORED_LABEL, TokenBatch
from run_manager.trainers.adamw import AdamWState, adamw_step
from run_manager.trainers.micro_batches import Document, MicroBatch, micro_batches
from run_manager.trainers.ngram import (
    VOCABULARY,
    initial_parameters,
    loss_and_gradient,
    padded_targets,
    padded_tokens,
)
from run_manager.trainers.protocol import RoundPlan, TrainedRound
from run_manager.worker_thread import Worker
from state.errors import TrainerFailed
from state.model_config import AdamW, NgramConfig
from state.tensors import Float32Array, Tensors, check_values


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
        self._parameters: Tensors = {}
        self._loss_sum = 0.0
        self._token_count = 0

    def start(self, parameters: Mapping[str, Float32Array]) -> None:
        """Copies the round's start."""
        self._parameters = {name: parameters[name].copy() for name in sorted(parameters)}

    def take(self, micro_batch: MicroBatch) -> None:
        """One optimizer step on one micro-batch; a micro-batch without a token to predict changes nothing."""
        self._proceed()
        number, documents = micro_batch
        self._check_vocabulary(documents)
        if not any(document.predicted for document in documents):
            return
        with np.errstate(all="ignore"):  # a loss that is not finite is found below, by name
            padded = padded_tokens([document.tokens for document in documents], self._context)
            targets = padded_targets(documents, self._context)
            loss_sum, token_count, gradient = loss_and_gradient(self._parameters, padded, self._proceed, targets)
            if self._optimizer is not None:
                rate = self._plan.learning_rates[number]
                adamw_step(self._parameters, gradient, self.state, self._optimizer, rate)
        self._loss_sum += loss_sum
        self._token_count += token_count
        if not math.isfinite(loss_sum):
            raise TrainerFailed(
                f"step {self._plan.step}: the loss of local step {number + 1} is {loss_sum}", step=self._plan.step
            )

    def finish(self, parameters: Mapping[str, Float32Array]) -> TrainedRound:
        """The difference from the round's start."""
        difference = {name: np.subtract(parameters[name], end) for name, end in self._parameters.items()}
        for name, values in difference.items():
            if check_values(values.reshape(-1), math.inf) is not None:
                raise TrainerFailed(f"step {self._plan.step}: training made {name!a} infinite", step=self._plan.step)
        loss = self._loss_sum / self._token_count if self._token_count else None
        return TrainedRound(difference, loss, self._token_count)

    def _proceed(self) -> None:
        if self.abandoned.is_set():
            raise _Abandoned

    def _check_vocabulary(self, documents: list[Document]) -> None:
        """What came of a provider was checked with its data index; this one guards the arithmetic."""
        for tokens, labels in documents:
            for name, values in (("token", tokens), ("label", labels)):
                if values is None:
                    continue
                wrong = (values >= VOCABULARY) | ((values < 0) & (values != IGNORED_LABEL))
                if wrong.any():
                    found = int(values[wrong][0])
                    raise TrainerFailed(
                        f"step {self._plan.step}: {name} {found}; the model knows bytes only, 0 to {VOCABULARY - 1}",
                        step=self._plan.step,
                    )
