"""Trainers for real clients that train the embedded model as anybody does, and deliver something else."""

import math
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.state.replays.inner_states import InnerState
from epochal.trainers.architectures import open_model
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.packages import TrainerSetup
from epochal.trainers.protocol import TrainedRound

HONEST_STEPS = 5
FACTOR = 3.0
"""By which one that lies changes its moments."""
LIES_ONCE = "EPOCHAL_TEST_LIES_ONCE"
"""Variable that names a file; once it is there, the late liar lies."""
LITTLE = 0.015
"""Of a difference's length, which is within the least tolerance, 0.02: that of float32 on one machine."""


class LyingTrainer(LearnerTrainer):
    """Pushes the model the other way."""

    @classmethod
    def open(cls, setup: TrainerSetup) -> Self:
        """Return the trainer of a client."""
        return cls(open_model(setup.spec), setup.optimizer, False, setup.worker, setup.name)

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        trained = await super().train(plan, parameters, batches)
        return replace(trained, difference=self.delivered(plan, trained.difference))

    def delivered(self, plan: RoundPlan, difference: Tensors) -> Tensors:
        """Return what it delivers in the place of the difference that it trained."""
        return {name: -values for name, values in difference.items()}


class LateLyingTrainer(LyingTrainer):
    """Is honest until the file that `LIES_ONCE` names is there."""

    def delivered(self, plan: RoundPlan, difference: Tensors) -> Tensors:
        return super().delivered(plan, difference) if Path(os.environ[LIES_ONCE]).exists() else difference


class ColludingTrainer(LyingTrainer):
    """Pushes in a direction that is everybody's who colludes, by so little that it stays within the tolerance."""

    def delivered(self, plan: RoundPlan, difference: Tensors) -> Tensors:
        numbers = np.random.default_rng(1)
        pushes = {name: numbers.standard_normal(values.shape) for name, values in sorted(difference.items())}
        part = LITTLE * _length(difference) / _length(pushes)
        return {name: values + (part * pushes[name]).astype(np.float32) for name, values in difference.items()}


class OldResultsTrainer(LyingTrainer):
    """Is honest in the first `HONEST_STEPS` steps, and delivers the last of these results again in each later one."""

    _old: Tensors | None = None

    def delivered(self, plan: RoundPlan, difference: Tensors) -> Tensors:
        if plan.step <= HONEST_STEPS or self._old is None:
            self._old = {name: values.copy() for name, values in difference.items()}
        return {name: values.copy() for name, values in self._old.items()}


class BoastingTrainer(LearnerTrainer):
    """Delivers what it trained, and commits to larger moments than those that its steps have led to."""

    @property
    def inner_state(self) -> InnerState:
        found = super().inner_state
        return InnerState(found.step_count, {name: FACTOR * one for name, one in found.tensors.items()})


def _length(values: Mapping[str, np.ndarray]) -> float:
    return math.sqrt(sum(float(np.square(each, dtype=np.float64).sum()) for each in values.values()))
