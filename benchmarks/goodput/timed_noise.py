"""A trainer whose rounds take a set time and no arithmetic, and which notes when it trained.

Its differences are noise: zeros would take no memory, and some codecs another time.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Self

import numpy as np

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.state.model.tensors import Float32Array, Tensors
from epochal.trainers.null import NullTrainer
from epochal.trainers.packages import TrainerSetup
from epochal.trainers.protocol import TrainedRound

NAME = "benchmarks.goodput.timed_noise:TimedNoise"
"""What `--trainer` takes."""
BATCH_S_VARIABLE = "GOODPUT_BATCH_S"
"""Variable with the seconds that a batch takes."""
SPANS_VARIABLE = "GOODPUT_SPANS"
"""Variable with the file to which lines of JSON are added: one as the training for a round begins, one as it ends."""
NOISE_VALUES = 1 << 16
"""Number of different values; longer tensors repeat them."""
NOISE_SCALE = 1e-4


class TimedNoise(NullTrainer):
    """A trainer that waits as long as its batches would take, and returns noise."""

    name = "timed"

    @classmethod
    def open(cls, setup: TrainerSetup) -> Self:
        from epochal.trainers.architectures import open_model

        return cls(open_model(setup.spec))

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        start_s = time.time()
        _note({"step": plan.step, "start_s": start_s})
        trained = await super().train(plan, parameters, batches)
        difference = noise(trained.difference, plan.step)
        count = sum(batch_id.count for batch_id in plan.assignment)
        await asyncio.sleep(start_s + count * float(os.environ[BATCH_S_VARIABLE]) - time.time())
        _note({"step": plan.step, "start_s": start_s, "end_s": time.time(), "batches": count})
        return TrainedRound(difference, None, trained.token_count)


def _note(trained: Mapping[str, float]) -> None:
    with Path(os.environ[SPANS_VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(trained)}\n")


def noise(shapes: Mapping[str, Float32Array], seed: int) -> Tensors:
    """Return tensors of these shapes, filled with small normal values."""
    values = np.random.default_rng(seed).standard_normal(NOISE_VALUES, np.float32) * np.float32(NOISE_SCALE)
    found = {}
    for name, shape in shapes.items():
        tensor = np.empty(shape.shape, np.float32)
        flat = tensor.reshape(-1)
        for at in range(0, flat.size, NOISE_VALUES):
            part = flat[at : at + NOISE_VALUES]
            part[:] = values[: part.size]
        found[name] = tensor
    return found
