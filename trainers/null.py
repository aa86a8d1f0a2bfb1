"""The `null` trainer: no arithmetic. For load tests, in which everything but the training is real."""

from collections.abc import AsyncIterator, Mapping

import numpy as np

from batching.micro_batches import micro_batches
from batching.round_plan import RoundPlan
from data_providers.protocol import TokenBatch
from state.tensors import Float32Array, Tensors
from trainers.learner import Model
from trainers.protocol import TrainedRound


class NullTrainer:
    """Reads the data as any trainer does and returns a difference of zeros; keeps no inner state."""

    name = "null"
    vocabulary = None
    loads_data = False

    def __init__(self, model: Model) -> None:
        self._model = model

    async def initial_parameters(self, seed: bytes) -> Tensors:
        return self._model.initial_parameters(seed)

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        token_count = 0
        async for micro_batch in micro_batches(plan, batches):
            token_count += sum(example.predicted for example in micro_batch.examples)
        difference = {name: np.zeros(parameters[name].shape, np.float32) for name in sorted(parameters)}
        return TrainedRound(difference, None, token_count)

    def commit_inner_state(self) -> None:
        """Do nothing."""

    def roll_back_inner_state(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""
