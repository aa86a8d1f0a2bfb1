"""Runs whose checkpoints have several parts, under seeded faults, in virtual time."""

import pytest

from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_run import BOUND_S, prove, repeatedly, simulated_run, small_state
from tests.support.simulate.virtual_time import in_virtual_time

STORM = Weather(loss=0.05, repeat=0.1, delay_s=(0.0, 0.5))
PART_BYTES = 1024


@pytest.mark.nightly
@in_virtual_time
async def test_run_with_parts_survives_restarts_and_lost_messages() -> None:
    state = small_state(12, blobs__part_bytes=PART_BYTES, config__epoch_time=200)
    async with simulated_run(state, 3, weather=STORM) as run:

        async def restart() -> None:
            await run.coordinator.restart_after(run.chance.choice([0.1, 5.0, 100.0]))

        trouble = run.tasks.create_task(repeatedly(restart, run.chance, (20, 80)))
        clients = run.start_clients(3, ("numpy",))
        ends = await run.ends(clients, BOUND_S)
        trouble.cancel()
        assert len({end.replica_digest for end in ends}) == 1
        checkpoint = run.coordinator.run.models.checkpoint
        assert checkpoint is not None
        assert checkpoint.part_count > 2
        assert checkpoint.size_bytes > (checkpoint.part_count - 1) * PART_BYTES
        await prove(run)
