"""`epochal plan` against real clients and a real coordinator in virtual time, over links of the model's rates."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from statistics import median

import pytest

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import TokenBatch
from epochal.run_manager.events import DocumentArrived
from epochal.state.config.state_file import StateFile
from epochal.state.model.tensors import Float32Array
from epochal.state.phase_names import RunState
from epochal.state.round_model import UNLIMITED, ClientGroup, Costs, Link, Links, RoundModel
from epochal.tools.plan.planner import plan_run
from epochal.tools.plan.plans import PlanOptions
from epochal.tools.plan.sizes import round_model
from epochal.trainers.architectures import open_model
from epochal.trainers.null import NullTrainer
from epochal.trainers.protocol import TrainedRound
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_coordinator import MAX_FSYNC_S
from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_run import simulated_run, small_state
from tests.support.simulate.virtual_time import in_virtual_time
from tests.support.thinned import thinned

CLIENTS, ROUNDS = 2, 12
TOLERANCE = 0.15
ROOMY = 600
FAST = Link(2e7, 2e7)
KINDS = {
    "slow to send": (ClientGroup(CLIENTS, Link(2e7, 1e5), 0.02, 1e6), UNLIMITED),
    "slow to receive": (ClientGroup(CLIENTS, Link(3e5, 2e7), 0.02, 1e6), UNLIMITED),
    "far away": (ClientGroup(CLIENTS, FAST, 0.4, 1e6), UNLIMITED),
    "slow to train": (ClientGroup(CLIENTS, FAST, 0.02, 10.0), UNLIMITED),
    "slow coordinator": (ClientGroup(CLIENTS, FAST, 0.02, 1e6), Link(2e5, 3e5)),
}
"""Clients, and the coordinator's link."""


class ModelledTrainer(NullTrainer):
    """Trains nothing, for as long as the model says."""

    def __init__(self, model: RoundModel, group: ClientGroup, state: StateFile) -> None:
        super().__init__(open_model(state.model.LLM.spec))
        self._round, self._group = model, group

    async def train(
        self, plan: RoundPlan, parameters: Mapping[str, Float32Array], batches: AsyncIterator[TokenBatch]
    ) -> TrainedRound:
        trained = await super().train(plan, parameters, batches)
        await asyncio.sleep(
            self._round.training_s(self._group, trained.token_count / self._round.sizes.tokens_per_batch)
        )
        return trained


@thinned("name", KINDS, kept=2)
def test_rounds_of_real_clients_take_what_the_plan_says(name: str) -> None:
    group, server = KINDS[name]
    state = small_state(
        CLIENTS,
        config__init_min_clients=CLIENTS,
        config__total_steps=ROUNDS,
        config__epoch_time=10 * ROOMY,
        config__warmup_time=ROOMY,
        config__max_round_train_time=ROOMY,
        model__LLM__ngram={"context": 2, "embedding": 16, "hidden": 100},
        merge__codec="float32",
        merge__update="exact",
    )
    options = PlanOptions(Links(server), Costs(commit_s=MAX_FSYNC_S, slow_start=False))
    model = round_model(state, [group], options)
    starts: list[float] = []

    @in_virtual_time
    async def play() -> None:
        weather = Weather(delay_s=(group.round_trip_s / 2,) * 2, speed=group.link, server=server)
        spec = ClientSpec(open_trainer=lambda state, _: ModelledTrainer(model, group, state))
        async with simulated_run(state, seed=1, weather=weather) as run:
            await run.play(*[spec] * CLIENTS)
            steps: dict[int, float] = {}
            for event in run.clients[0].of(DocumentArrived):
                document = event.document
                if document.run_state is RunState.ROUND_TRAIN:
                    steps.setdefault(document.step, document.phase_started_s)
            starts.extend(steps.values())

    play()
    planned = plan_run(state, [group], options)
    measured_s = median(after - before for before, after in list(pairwise(starts))[3:])
    assert measured_s == pytest.approx(planned.round_s, rel=TOLERANCE)
