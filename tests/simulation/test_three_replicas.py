"""Three coordinators of one run over one database, and up to hundreds of clients, under seeded faults in virtual time.

Requests reach another coordinator each time. Coordinators are killed at every point of a transaction, stopped for
longer than their lease, cut off from the database, and told that each of them ticks; the database fails over with
answers unknown, is slow, and only reads. Safety is checked throughout (`tests/support/simulate/safety.py`) and
afterwards by the operator's audit; liveness means that the lasting clients reach the end of the run. A seed that
fails will fail again.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from epochal.coordinator.store.sql.database import Row, Statement
from epochal.run_manager.agent import EndReason
from epochal.state.documents import Outcome
from tests.support.simulate.safety import SafetyBroken
from tests.support.simulate.simulated_database import QUICK_S, VouchingDatabase
from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_process import ProcessLoop
from tests.support.simulate.simulated_replicas import ReplicatedRun, replicated_run
from tests.support.simulate.simulated_run import (
    BOUND_S,
    TOTAL_STEPS,
    come_and_go,
    part_often,
    prove,
    repeatedly,
    small_state,
)
from tests.support.simulate.virtual_time import run_virtually
from tests.support.thinned import thinned

STORM = Weather(loss=0.02, repeat=0.05, delay_s=(0.0, 0.2))
MORE_SEEDS = int(os.environ.get("EPOCHAL_SIMULATION_SEEDS", "0"))
"""Number of further seeds to play, for a night's search; `make check` plays none."""
SEEDS = range(4 + MORE_SEEDS)
CLOCKS_APART_S = 60.0
SELDOM_S = (5.0, 30.0)
"""Time from one fault of a kind to the next, where hundreds of clients have to recover from it."""


async def kill_often(run: ReplicatedRun) -> None:
    """Kill a coordinator at a random instant; it is back soon, or later than its lease."""

    async def kill() -> None:
        run.chance.choice(run.coordinator.all).kill(run.chance.choice([0.1, 1.0, 5.0, 30.0]))

    await repeatedly(kill, run.chance, run.often_s)


async def stop_often(run: ReplicatedRun) -> None:
    """Stop a coordinator, mostly for longer than its lease, and let it go on."""

    async def stop() -> None:
        process = run.chance.choice(run.coordinator.all).process
        process.stop()
        await asyncio.sleep(run.chance.uniform(0.5, 12))
        process.go_on()

    await repeatedly(stop, run.chance, run.often_s)


async def part_from_database_often(run: ReplicatedRun) -> None:
    """Let some coordinators lose the database, or hear no notification, for a while."""

    async def part() -> None:
        lines = [replica.line for replica in run.chance.sample(run.coordinator.all, run.chance.randint(1, 2))]
        are_cut = run.chance.random() < 0.6
        for line in lines:
            line.is_cut, line.is_quiet = are_cut, True
        await asyncio.sleep(run.chance.uniform(0.5, 20))
        for line in lines:
            line.is_cut = line.is_quiet = False

    await repeatedly(part, run.chance, run.often_s)


async def trouble_database_often(run: ReplicatedRun) -> None:
    """Let the database fail over, be slow, only read, or give its lease to everybody."""
    database, chance = run.coordinator.database, run.chance

    async def trouble() -> None:
        match chance.choice(["fails over", "fails over", "slow", "only reads", "everybody ticks"]):
            case "fails over":
                database.ahead_s += chance.uniform(-CLOCKS_APART_S, CLOCKS_APART_S)
                await database.fail_over(chance.choice([0.1, 1.0, 3.0, 20.0]))
            case "slow":
                database.delay_s = 0.0, chance.choice([0.2, 1.0, 4.0])
                await asyncio.sleep(chance.uniform(1, 15))
                database.delay_s = QUICK_S
            case "only reads":
                database.is_read_only = True
                await asyncio.sleep(chance.uniform(0.5, 10))
                database.is_read_only = False
            case "everybody ticks":
                database.lease_for_all = True
                await asyncio.sleep(chance.uniform(2, 20))
                database.lease_for_all = False

    await repeatedly(trouble, chance, run.often_s)


FAULTS = (kill_often, stop_often, part_from_database_often, trouble_database_often)


def set_clocks_apart(run: ReplicatedRun) -> None:
    """Let the machines of the coordinators disagree about the time by a minute each."""
    for replica in run.coordinator.all:
        replica.clock.step_s += CLOCKS_APART_S * (replica.number - 1)


async def weather_the_storm(run: ReplicatedRun, lasting: int, passing: int, weather: Weather = STORM) -> None:
    """Inject every fault at once, until the lasting clients have finished the run."""
    run.weather, run.data_loss = weather, weather.loss * 0.4
    run.coordinator.knows = run.chance.random() < 0.5
    set_clocks_apart(run)
    clients = run.start_clients(lasting, ("numpy", "null", "null", "null"))
    troubles = [run.tasks.create_task(fault(run)) for fault in FAULTS]
    troubles.append(run.tasks.create_task(part_often(run, clients, max(1, len(clients) // 4), 40, (20, 100))))
    troubles += [run.tasks.create_task(come_and_go(run, lasting + number)) for number in range(passing)]
    try:
        ends = await run.ends(clients, BOUND_S)
    finally:
        for trouble in troubles:
            trouble.cancel()
    assert {end.reason for end in ends} == {EndReason.FINISHED}
    last = max(end.step or 0 for end in ends)
    assert last >= run.coordinator.state.config.total_steps
    assert len({end.replica_digest for end in ends if end.step == last}) == 1


async def play(seed: int, lasting: int, passing: int, steps: int = TOTAL_STEPS) -> tuple[float, list[Outcome]]:
    """Play the run of a seed under every fault to its end, and prove it; return when that was, and its outcomes."""
    async with replicated_run(small_state(batches=20, config__total_steps=steps), seed) as run:
        if lasting >= 100:
            run.often_s = SELDOM_S
        await weather_the_storm(run, lasting, passing)
        await prove(run)
        assert run.coordinator.starts > len(run.coordinator.all)
        return asyncio.get_running_loop().time(), run.coordinator.outcomes


def played(seed: int, lasting: int, passing: int, steps: int = TOTAL_STEPS) -> tuple[float, list[Outcome]]:
    """Play a run on a loop of its own. A failure says how to play it again."""
    try:
        return run_virtually(play(seed, lasting, passing, steps), ProcessLoop())
    except BaseException as failure:
        failure.add_note(f"to play it again: played({seed}, {lasting}, {passing}, {steps}) of {__name__}")
        raise


@pytest.mark.nightly
@thinned(("seed", "steps"), [(0, 3), *((seed, TOTAL_STEPS) for seed in SEEDS)], kept=1)
def test_run_of_three_replicas_under_everything_at_once_is_proved(seed: int, steps: int) -> None:
    played(seed, lasting=10, passing=4, steps=steps)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_run_of_hundreds_of_clients_and_three_replicas_is_proved() -> None:
    played(2026, lasting=200, passing=10, steps=1)


@pytest.mark.nightly
def test_seed_of_three_replicas_plays_the_same_run_again() -> None:
    assert played(3, lasting=4, passing=2, steps=3) == played(3, lasting=4, passing=2, steps=3)


@pytest.mark.nightly
@thinned("stays", [True, False], kept=1)
def test_members_behind_a_balancer_are_never_taken_for_silent(stays: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "epochal.coordinator")

    async def main() -> None:
        async with replicated_run(small_state(batches=8, config__client_timeout_s=6), seed=1) as run:
            await asyncio.sleep(60)  # whoever ticks has done so for longer than a member may be silent
            run.coordinator.staying = float(stays)
            clients = run.start_clients(4)
            await run.ends(clients, BOUND_S)
            await prove(run)

    run_virtually(main(), ProcessLoop())
    changes = [vars(record)["change"] for record in caplog.records if record.message == "membership_changed"]
    assert changes
    assert not [change for change in changes if "silent" in change]


@pytest.mark.nightly
def test_database_whose_clock_was_set_by_a_minute_drops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "epochal.coordinator")

    async def main() -> None:
        state = small_state(batches=8, config__client_timeout_s=20, config__total_steps=10)
        async with replicated_run(state, seed=1) as run:
            run.weather = Weather(delay_s=(0.5, 1.5))
            clients = run.start_clients(4)
            for replica in run.coordinator.all:
                await asyncio.sleep(12)
                run.coordinator.database.ahead_s += CLOCKS_APART_S
                replica.kill(0.1)
            assert not any(client.task is None or client.task.done() for client in clients)
            await run.ends(clients, BOUND_S)
            await prove(run)

    run_virtually(main(), ProcessLoop())
    changes = [vars(record)["change"] for record in caplog.records if record.message == "membership_changed"]
    assert not [change for change in changes if "silent" in change]


class ForgetfulDatabase(VouchingDatabase):
    """A broken database: one record that changed the run document is lost although it was acknowledged."""

    has_lost = False

    def _transact(self, statements: Sequence[Statement]) -> list[list[Row]]:
        version = max(self.kept, default=0)
        rows = super()._transact(statements)
        if not self.has_lost and max(self.kept, default=0) > version and self.sequence >= 10:
            self.has_lost, segments = True, self.segments
            self.segments = [*segments[:-1], replace(segments[-1], records=segments[-1].records[:-1])]
        return rows


def test_database_that_forgets_what_it_kept_is_caught() -> None:
    async def main() -> None:
        async with replicated_run(small_state(batches=6), seed=2, memory=ForgetfulDatabase()) as run:
            await run.ends(run.start_clients(4), BOUND_S)

    with pytest.raises(BaseExceptionGroup) as caught:
        run_virtually(main(), ProcessLoop())
    assert caught.group_contains(SafetyBroken)
