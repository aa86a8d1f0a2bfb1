"""Runs that make checkpoints while rounds go on, under seeded faults, in virtual time."""

import pytest

from epochal.run_manager.events import ReplicaHeld
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_run import BOUND_S, prove, repeatedly, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

NUMPY = ClientSpec(trainer="numpy")
STORM = Weather(loss=0.03, repeat=0.1, delay_s=(0.0, 0.5))
EVERY = {
    "config__total_steps": 20,
    "config__checkpoint_every": 3,
    "config__epoch_time": 10_000,
    "blobs__part_bytes": 1024,
    "run__keep_journal": "compact",
}


@pytest.mark.nightly
@in_virtual_time
async def test_newcomer_starts_from_a_checkpoint_within_the_epoch() -> None:
    async with simulated_run(state_file(**EVERY), seed=0) as run:
        early = [run.start(run.client(number, NUMPY)) for number in (1, 2)]
        await run.coordinator.wait_for(lambda: any(ref.step >= 6 for ref in run.coordinator.run.models.checkpoints))
        assert run.coordinator.run.progress.epoch == 0
        late = run.start(run.client(3, NUMPY))
        ends = await run.ends([*early, late], BOUND_S)
        assert late.of(ReplicaHeld)[0].step >= 6
        assert late.of(ReplicaHeld)[0].origin == "checkpoint"
        assert len({end.replica_digest for end in ends}) == 1
        assert min(run.coordinator.run.models.outcomes) > 6
        await prove(run)


@pytest.mark.nightly
@in_virtual_time
async def test_checkpoints_within_the_epoch_survive_restarts_and_losses() -> None:
    async with simulated_run(state_file(**EVERY), 5, weather=STORM) as run:

        async def restart() -> None:
            await run.coordinator.restart_after(run.chance.choice([0.1, 5.0, 60.0]))

        trouble = run.tasks.create_task(repeatedly(restart, run.chance, (20, 80)))
        clients = run.start_clients(3, ("numpy",))
        ends = await run.ends(clients, BOUND_S)
        trouble.cancel()
        assert len({end.replica_digest for end in ends}) == 1
        await prove(run)
