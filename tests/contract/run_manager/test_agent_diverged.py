"""A run whose parameters grow beyond float32: every client ends with the step and the tensor in its error."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.runtime.worker_thread import Worker
from epochal.state.config.state_file import StateFile
from epochal.state.merging import Diverged
from epochal.state.model.tensors import Float32Array
from epochal.trainers.architectures import open_model
from epochal.trainers.null import NullTrainer
from epochal.trainers.protocol import TrainedRound
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

LARGEST = 1e30


class RunawayTrainer(NullTrainer):
    """Always returns nearly the largest difference that the run allows."""

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        trained = await super().train(plan, parameters, batches)
        return replace(
            trained,
            difference={name: np.full_like(values, 0.9 * LARGEST) for name, values in trained.difference.items()},
        )


def open_runaway(state: StateFile, worker: Worker) -> RunawayTrainer:
    return RunawayTrainer(open_model(state.model.LLM.spec))


@pytest.mark.nightly
@in_virtual_time
async def test_run_that_diverges_ends_every_client_with_the_step_and_the_tensor() -> None:
    state = state_file(
        config__init_min_clients=1,
        config__total_steps=2_000,
        config__epoch_time=1e6,
        merge__max_abs=LARGEST,
        merge__outer_lr=1000,
        merge__outer_momentum=0.999,
        model__LLM__ngram={"context": 2, "embedding": 2, "hidden": 2},
    )

    async with simulated_run(state, seed=0) as run:
        with pytest.raises(Diverged, match=r"the outcome of step \d+ makes '.+' infinite"):
            await run.client(1, ClientSpec(open_trainer=open_runaway)).agent.run()
        assert run.coordinator.run.members.by_id == {}, "it withdrew"
        assert run.coordinator.run.progress.step > 2
