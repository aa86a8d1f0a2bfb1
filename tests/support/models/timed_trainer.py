"""A trainer that computes nothing and takes a known time: so many tokens a second, as a file says at each round."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Self

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.state.model.tensors import Float32Array
from epochal.trainers.null import NullTrainer
from epochal.trainers.packages import TrainerSetup
from epochal.trainers.protocol import TrainedRound

SPEED_FILE = "TIMED_TRAINER_TOKENS_PER_S"
"""Variable with the name of the file."""


def _speed() -> float:
    return float(Path(os.environ[SPEED_FILE]).read_text())


class TimedTrainer(NullTrainer):
    """A null trainer that waits."""

    name = "timed"

    @classmethod
    def open(cls, setup: TrainerSetup) -> Self:
        from epochal.trainers.architectures import open_model

        return cls(open_model(setup.spec))

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        tokens_per_s = _speed()
        trained = await super().train(plan, parameters, batches)
        await asyncio.sleep(trained.token_count / tokens_per_s)
        return trained
