"""The `null` trainer, and a model for it: no arithmetic. For load tests, in which all but the training is real."""

from collections.abc import AsyncIterator, Mapping

import numpy as np

from epochal.batching.micro_batches import micro_batches
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.state.errors import InvalidInput
from epochal.state.model.computed_class import FLOAT32_CPU
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.trainers.learner import NO_INNER_STATE, InnerState, Learner, Model, Shapes
from epochal.trainers.protocol import TrainedRound

DUMMY_SIZE = 16
"""Numbers of the dummy model's parameter."""


class NullTrainer:
    """Reads the data as any trainer does and returns a difference of zeros; keeps no inner state."""

    name = "null"
    vocabulary = None
    loads_data = False
    computed = FLOAT32_CPU

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

    def forget_inner_state(self) -> None:
        """Do nothing."""

    @property
    def inner_state(self) -> InnerState:
        """Return an empty one."""
        return NO_INNER_STATE

    def adopt_inner_state(self, state: InnerState) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


class DummyModel:
    """Psyche's model without arithmetic: one small parameter, and every token is in its vocabulary."""

    vocabulary = 2**32

    @property
    def shapes(self) -> Shapes:
        return {"dummy": (DUMMY_SIZE,)}

    def initial_parameters(self, seed: bytes) -> Tensors:  # noqa: ARG002 (part of the protocol)
        """Return zeros, for every seed."""
        return {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}

    def learner(self) -> Learner:
        """Raise `InvalidInput`: there is nothing to compute."""
        raise InvalidInput('the run has a model without arithmetic (`checkpoint = "Dummy"`), which nothing trains')
