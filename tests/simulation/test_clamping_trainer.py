"""A trainer that clamps its differences to `merge.max_abs` takes part in a run of every codec."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import StateFile
from epochal.state.model.tensors import Float32Array
from epochal.trainers.architectures import open_model
from epochal.trainers.null import NullTrainer
from epochal.trainers.protocol import TrainedRound
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

ROUNDS_UP = {"int8": 1017.0, "int4": 57.0}
"""Bounds beyond which the codec would decode them."""
STEPS = 3
BOUND_S = 100.0
"""Of virtual time."""


class ClampingTrainer(NullTrainer):
    """Returns the largest difference that the run allows."""

    most = 0.0

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        trained = await super().train(plan, parameters, batches)
        difference = {name: np.full_like(values, self.most) for name, values in trained.difference.items()}
        return replace(trained, difference=difference)


def open_clamping(state: StateFile, worker: Worker) -> ClampingTrainer:
    trainer = ClampingTrainer(open_model(state.model.LLM.spec))
    trainer.most = state.merge.max_abs
    return trainer


@pytest.mark.parametrize("codec", ROUNDS_UP)
@pytest.mark.parametrize("feedback", [False, True])
@in_virtual_time
async def test_results_at_the_bound_count_with_every_codec(codec: str, feedback: bool) -> None:
    overrides: dict[str, Any] = {"merge__codec": codec, "merge__error_feedback": feedback}
    state = state_file(
        config__init_min_clients=1,
        config__total_steps=STEPS,
        merge__max_abs=ROUNDS_UP[codec],
        model__LLM__ngram={"context": 2, "embedding": 2, "hidden": 2},
        **overrides,
    )
    async with simulated_run(state, seed=0) as run:
        async with asyncio.timeout(BOUND_S):
            await run.client(1, ClientSpec(open_trainer=open_clamping)).agent.run()
        assert [len(outcome.entries) for outcome in run.coordinator.run.models.outcomes.values()] == [1] * STEPS
