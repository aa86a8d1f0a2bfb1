"""Trainers for real clients that train the embedded model as anybody does, and deliver something else."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.state.model.tensors import Float32Array
from epochal.trainers.architectures import open_model
from epochal.trainers.learner_trainer import LearnerTrainer
from epochal.trainers.packages import TrainerSetup
from epochal.trainers.protocol import TrainedRound

HONEST_STEPS = 5


class LyingTrainer(LearnerTrainer):
    """Pushes the model the other way."""

    @classmethod
    def open(cls, setup: TrainerSetup) -> "LyingTrainer":
        """Return the trainer of a client."""
        return cls(open_model(setup.spec), setup.optimizer, False, setup.worker, setup.name)

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        trained = await super().train(plan, parameters, batches)
        return replace(trained, difference={name: -values for name, values in trained.difference.items()})


class OldResultsTrainer(LearnerTrainer):
    """Is honest in the first `HONEST_STEPS` steps, and delivers the last of these results again in each later one."""

    _old: Mapping[str, Float32Array] | None = None

    @classmethod
    def open(cls, setup: TrainerSetup) -> "OldResultsTrainer":
        """Return the trainer of a client."""
        return cls(open_model(setup.spec), setup.optimizer, False, setup.worker, setup.name)

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        trained = await super().train(plan, parameters, batches)
        if plan.step <= HONEST_STEPS or self._old is None:
            self._old = {name: values.copy() for name, values in trained.difference.items()}
        return replace(trained, difference={name: values.copy() for name, values in self._old.items()})
