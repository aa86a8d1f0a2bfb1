"""A run loses its coordinator or its clients at a chosen moment, in virtual time; it goes on, and its audit passes."""

import pytest

from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.transitions import DRAIN_ROUNDS
from epochal.run_manager.agent import ClientEnd, EndReason
from epochal.run_manager.events import ReplicaHeld
from epochal.state.phase_names import RunState
from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_run import BOUND_S, TOTAL_STEPS, SimulatedRun, prove, simulated_run, small_state
from tests.support.simulate.virtual_time import in_virtual_time, run_virtually
from tests.support.thinned import thinned

SLOW = Weather(delay_s=(0.05, 0.4))
"""Slow enough that every phase lasts for a while."""
LONGER_THAN_EVERY_DEADLINE_S = 4_000.0
"""Longer than a session lasts, and than any timer of the state file."""
PHASES = (
    (RunState.WAITING_FOR_MEMBERS, 1),
    (RunState.WARMUP, 1),
    (RunState.ROUND_TRAIN, 1),
    (RunState.ROUND_TRAIN, 3),
    (RunState.ROUND_WITNESS, 3),
    (RunState.COOLDOWN, 1),
    (RunState.FINISHED, 1),
)


def all_finished(ends: list[ClientEnd]) -> bool:
    """Return whether all finished with one step: the last, or one of those that drain what earlier ones left over."""
    lasts = {(end.reason, end.step) for end in ends}
    return len(lasts) == 1 and lasts <= {(EndReason.FINISHED, TOTAL_STEPS + more) for more in range(DRAIN_ROUNDS + 1)}


def silences(run: SimulatedRun) -> int:
    """Return how often the coordinator dropped members for silence."""
    records = [record for segment in run.coordinator.journal.segments for record in segment.records]
    return sum(b"clients_fell_silent" in record.body for record in records)


async def reach(run: SimulatedRun, phase: RunState, step: int) -> None:
    """Wait until the run is in this phase of this step.

    RoundWitness is over at once where everybody delivers, so for it one of the clients is cut off during RoundTrain.
    """
    if phase is not RunState.ROUND_WITNESS:
        await run.coordinator.reached(phase, step)
        return
    await run.coordinator.reached(RunState.ROUND_TRAIN, step)
    link = run.clients[step % len(run.clients)].link
    link.cut = True
    await run.coordinator.reached(phase, step)
    link.cut = False


async def finish(run: SimulatedRun, count: int) -> None:
    """Wait until the last `count` clients have finished with one replica, and audit the run."""
    ends = await run.ends(run.clients[-count:], BOUND_S)
    assert all_finished(ends)
    assert len({end.replica_digest for end in ends}) == 1
    await prove(run)


@thinned("away_s", [LONGER_THAN_EVERY_DEADLINE_S, 0.5], kept=1)
@thinned(("phase", "step"), PHASES)
@in_virtual_time
async def test_coordinator_killed_in_a_phase_goes_on_with_every_member(
    phase: RunState, step: int, away_s: float
) -> None:
    async with simulated_run(small_state(batches=6), seed=1, weather=SLOW) as run:
        run.start_clients(4, ("numpy", "null"))
        await reach(run, phase, step)
        before: Run = run.coordinator.run
        await run.coordinator.restart_after(away_s)
        await run.coordinator.reached(RunState.FINISHED)
        assert before.members.by_id.keys() <= run.coordinator.run.members.by_id.keys()
        assert not silences(run)
        await finish(run, 4)
        assert run.coordinator.starts == 2


@pytest.mark.nightly
@thinned(("phase", "step"), PHASES[:-1])
@in_virtual_time
async def test_client_killed_in_a_phase_leaves_a_run_that_goes_on(phase: RunState, step: int) -> None:
    async with simulated_run(small_state(batches=6), seed=3, weather=SLOW) as run:
        victim = run.start_client(99, "numpy")
        run.start_clients(4, ("numpy", "null"))
        await reach(run, phase, step)
        victim.kill()
        await finish(run, 4)


@pytest.mark.nightly
@thinned("phase", [RunState.ROUND_TRAIN, RunState.ROUND_WITNESS], kept=1)
@in_virtual_time
async def test_all_clients_gone_mid_epoch_come_back_to_the_replica_that_was_lost(phase: RunState) -> None:
    async with simulated_run(small_state(batches=6, config__min_clients=1), seed=4, weather=SLOW) as run:
        run.start_clients(4, ("numpy", "null"))
        await reach(run, phase, 5)
        held = dict(run.witness.digests)
        lost = max(held)
        assert lost >= 3
        for client in run.clients:
            client.kill()
        await run.coordinator.reached(RunState.WAITING_FOR_MEMBERS)
        assert run.coordinator.run.members.by_id == {}
        newcomers = [run.start_client(number, "numpy") for number in range(10, 14)]
        await finish(run, 4)
        rebuilt = [event for client in newcomers for event in client.of(ReplicaHeld)]
        assert {event.replica_digest for event in rebuilt if event.step == lost} == {held[lost]}


def lone_run(interrupted_at: int | None) -> str:
    """Return the last replica of a run whose one client is killed in this step and replaced by another."""
    state = small_state(
        batches=3,
        config__min_clients=1,
        config__init_min_clients=1,
        merge__inner_state="reset",
        config__epoch_time=3000,
    )

    async def main() -> str:
        async with simulated_run(state, seed=5) as run:
            client = run.start_client(1, "numpy")
            if interrupted_at is not None:
                await run.coordinator.reached(RunState.ROUND_TRAIN, interrupted_at)
                client.kill()
                await run.coordinator.reached(RunState.WAITING_FOR_MEMBERS)
                client = run.start_client(2, "numpy")
            (end,) = await run.ends([client], BOUND_S)
            assert all_finished([end])
            await prove(run)
            return str(end.replica_digest)

    return run_virtually(main())


@pytest.mark.nightly
def test_only_client_replaced_mid_epoch_ends_like_an_uninterrupted_run() -> None:
    uninterrupted = lone_run(None)
    assert [lone_run(step) for step in (2, 5)] == [uninterrupted] * 2


@pytest.mark.nightly
@in_virtual_time
async def test_client_that_stops_answering_comes_back_to_the_same_replica() -> None:
    async with simulated_run(small_state(batches=6, config__epoch_time=3000), seed=6, weather=SLOW) as run:
        clients = run.start_clients(4, ("numpy", "null"))
        await run.coordinator.reached(RunState.ROUND_TRAIN, 3)
        frozen = clients[0]
        frozen.link.cut = True
        before = len(run.coordinator.run.members)
        await run.coordinator.reached(RunState.ROUND_TRAIN, 5)
        current = run.coordinator.run.round
        assert current is not None
        assert len(current.tasks.roster.clients) == before - 1
        assert silences(run)
        frozen.link.cut = False
        await finish(run, 4)
