"""The real coordinator and hundreds of real clients under seeded faults, in virtual time.

Safety is checked throughout (`Witness`) and afterwards by the operator's audit; liveness means that the lasting clients
reach the end of the run. A seed that fails will fail again.
"""

import asyncio
from dataclasses import replace

import pytest

from epochal.run_manager.agent import EndReason
from epochal.state.documents import Outcome
from epochal.state.phase_names import RunState
from tests.support.simulate.safety import SafetyBroken
from tests.support.simulate.simulated_coordinator import SlowJournal
from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_run import (
    BOUND_S,
    TOTAL_STEPS,
    SimulatedRun,
    come_and_go,
    part_often,
    prove,
    repeatedly,
    simulated_run,
    small_state,
)
from tests.support.simulate.virtual_time import in_virtual_time, run_virtually
from tests.support.thinned import thinned

STORM = Weather(loss=0.05, repeat=0.1, delay_s=(0.0, 0.5))
LOSSY = Weather(loss=0.1)
FEW_STEPS = 3
"""Steps of runs of hundreds of clients, or that are played twice: their faults come in every step."""


async def restart_often(run: SimulatedRun) -> None:
    """Kill the coordinator at random instants; it is back soon, or sometimes later than every deadline."""

    async def restart() -> None:
        await run.coordinator.restart_after(run.chance.choice([0.1, 1.0, 5.0, 5.0, 1000.0]))

    await repeatedly(restart, run.chance, (5, 80))


async def set_the_clock(run: SimulatedRun) -> None:
    """Set the coordinator's wall clock back or forth by up to a day, again and again."""

    async def step() -> None:
        run.coordinator.clock.step_s += run.chance.uniform(-86_400, 86_400)

    await repeatedly(step, run.chance, (5, 60))


async def weather_the_storm(run: SimulatedRun, lasting: int, passing: int, weather: Weather = STORM) -> None:
    """Inject every fault at once, until the lasting clients have finished the run."""
    run.weather, run.data_loss = weather, weather.loss * 0.4
    clients = run.start_clients(lasting, ("numpy", "null", "null", "null"))
    troubles = [
        run.tasks.create_task(restart_often(run)),
        run.tasks.create_task(part_often(run, clients, len(clients) // 2, 120, (10, 100))),
        run.tasks.create_task(set_the_clock(run)),
        *(run.tasks.create_task(come_and_go(run, lasting + number)) for number in range(passing)),
    ]
    try:
        ends = await run.ends(clients, BOUND_S)
    finally:
        for trouble in troubles:
            trouble.cancel()
    assert {end.reason for end in ends} == {EndReason.FINISHED}
    # A client that was cut off at the very end may stop at an earlier replica; those at the last step hold the same.
    last = max(end.step or 0 for end in ends)
    assert last >= run.coordinator.state.config.total_steps
    assert len({end.replica_digest for end in ends if end.step == last}) == 1


@thinned(("seed", "steps"), [(0, FEW_STEPS), *((seed, TOTAL_STEPS) for seed in range(6))], kept=1)
@in_virtual_time
async def test_run_under_everything_at_once_is_finished_and_proved(seed: int, steps: int) -> None:
    async with simulated_run(small_state(batches=20, config__total_steps=steps), seed) as run:
        await weather_the_storm(run, lasting=10, passing=6)
        await prove(run)
        assert run.coordinator.starts > 1


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [3, 14, 159])
@in_virtual_time
async def test_run_of_few_clients_over_a_lossy_network_is_finished(seed: int) -> None:
    async with simulated_run(small_state(batches=12), seed) as run:
        await weather_the_storm(run, lasting=4, passing=2, weather=LOSSY)
        await prove(run)


@pytest.mark.nightly
@pytest.mark.timeout(400)
@in_virtual_time
async def test_run_of_hundreds_of_clients_under_everything_is_proved() -> None:
    async with simulated_run(small_state(batches=40, config__total_steps=FEW_STEPS), seed=2026) as run:
        await weather_the_storm(run, lasting=200, passing=40)
        await prove(run)
        assert run.coordinator.starts > 1
        assert len(run.clients) >= 240


@pytest.mark.nightly
def test_seed_plays_the_same_run_again() -> None:
    async def main() -> tuple[float, list[Outcome]]:
        async with simulated_run(small_state(batches=12, config__total_steps=FEW_STEPS), seed=3) as run:
            await weather_the_storm(run, lasting=4, passing=2)
            return asyncio.get_running_loop().time(), run.coordinator.outcomes

    assert run_virtually(main()) == run_virtually(main())


class ForgetfulJournal(SlowJournal):
    """A broken journal: the last record is lost when the machine stops, although it was acknowledged."""

    def lose_power(self) -> None:
        *before, last = self.segments
        if last.records:
            self.segments = [*before, replace(last, records=last.records[:-1])]


@pytest.mark.nightly
def test_store_that_forgets_what_it_kept_is_caught() -> None:
    async def main() -> None:
        async with simulated_run(small_state(batches=6), seed=1, journal=ForgetfulJournal) as run:
            clients = run.start_clients(4, ("numpy", "null"))
            for step in range(2, TOTAL_STEPS):
                await run.coordinator.reached(RunState.ROUND_TRAIN, step)
                await run.coordinator.restart_after(1.0)
            await run.ends(clients, BOUND_S)
            await run.audit()

    with pytest.raises(BaseExceptionGroup) as caught:
        run_virtually(main())
    assert caught.group_contains(SafetyBroken)
