"""`epochal plan` against real clients and a real coordinator in virtual time, over links of the model's rates."""

from itertools import pairwise
from statistics import median

import pytest

from epochal.run_manager.events import DocumentArrived
from epochal.state.phase_names import RunState
from epochal.state.round_model import ClientGroup, Costs, Link, Links
from epochal.tools.plan.planner import plan_run
from epochal.tools.plan.plans import PlanOptions
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_coordinator import MAX_FSYNC_S
from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_run import simulated_run, small_state
from tests.support.simulate.virtual_time import in_virtual_time
from tests.support.thinned import thinned

CLIENTS, ROUNDS = 2, 12
TOLERANCE = 0.2
TOKENS_PER_S = 1e6
ROOMY = 600
LINKS = {
    "slow to send": (Link(2e7, 1e5), 0.02),
    "slow to receive": (Link(3e5, 2e7), 0.02),
    "far away": (Link(2e7, 2e7), 0.4),
}


@thinned("name", LINKS, kept=1)
def test_rounds_of_real_clients_take_what_the_plan_says(name: str) -> None:
    link, round_trip_s = LINKS[name]
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
    starts: list[float] = []

    @in_virtual_time
    async def play() -> None:
        weather = Weather(delay_s=(round_trip_s / 2, round_trip_s / 2), speed=link)
        async with simulated_run(state, seed=1, weather=weather) as run:
            await run.play(*[ClientSpec()] * CLIENTS)
            steps: dict[int, float] = {}
            for event in run.clients[0].of(DocumentArrived):
                document = event.document
                if document.run_state is RunState.ROUND_TRAIN:
                    steps.setdefault(document.step, document.phase_started_s)
            starts.extend(steps.values())

    play()
    groups = [ClientGroup(CLIENTS, link, round_trip_s, TOKENS_PER_S)]
    planned = plan_run(state, groups, PlanOptions(Links(), Costs(commit_s=MAX_FSYNC_S, slow_start=False)))
    measured_s = median(after - before for before, after in list(pairwise(starts))[3:])
    assert measured_s == pytest.approx(planned.round_s, rel=TOLERANCE)
