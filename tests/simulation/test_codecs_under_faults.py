"""Runs of clients with codecs and error feedback under seeded faults, in virtual time."""

from typing import Any

import pytest

from tests.support.simulate.simulated_network import Weather
from tests.support.simulate.simulated_run import BOUND_S, prove, repeatedly, simulated_run, small_state
from tests.support.simulate.virtual_time import in_virtual_time

CODECS: dict[str, dict[str, Any]] = {
    "int8": {"merge__codec": "int8"},
    "int4": {"merge__codec": "int4", "merge__error_feedback": True},
    "sparse": {"merge__codec": "sparse", "merge__error_feedback": True},
    "senders": {"merge__codec": "sparse", "merge__error_feedback": True, "merge__mean": "senders"},
}
STORM = Weather(loss=0.05, repeat=0.1, delay_s=(0.0, 0.5))


@pytest.mark.parametrize("codec", CODECS)
@in_virtual_time
async def test_run_of_a_codec_survives_restarts_and_lost_messages(codec: str) -> None:
    async with simulated_run(small_state(12, **CODECS[codec]), 7, weather=STORM) as run:

        async def restart() -> None:
            await run.coordinator.restart_after(run.chance.choice([0.1, 5.0, 100.0]))

        trouble = run.tasks.create_task(repeatedly(restart, run.chance, (20, 80)))
        clients = run.start_clients(3, ("numpy", "numpy", "null"))
        ends = await run.ends(clients, BOUND_S)
        trouble.cancel()
        assert len({end.replica_digest for end in ends}) == 1
        await prove(run)
