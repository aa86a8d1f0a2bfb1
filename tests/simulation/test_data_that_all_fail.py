"""Data that fail everywhere, in virtual time: few attempts, nothing quarantined, and an end once they are mended."""

import asyncio

import pytest

from epochal.coordinator.machine.parts.reliability import LONGEST_REST_S, MISSES_BEFORE_REST
from epochal.data_providers.protocol import CorruptData, DatasetSpec, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.agent import EndReason
from epochal.run_manager.events import RoundFailed
from epochal.state.intervals import DataIds
from epochal.state.phase_names import RunState
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import with_data
from tests.support.simulate.simulated_run import BOUND_S, TOTAL_STEPS, prove, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

HOURS_S = 2 * 3600.0
GROWING_RESTS = 8
"""Number of rests until they are the longest, and one more."""


class MendableData(DummyDataProvider):
    """Made-up data of which every sample is corrupt until somebody mends them."""

    mended = False

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        if not self.mended:
            raise CorruptData(f"a checksum differs in {data_ids}")
        return await super().get_samples(data_ids)


@pytest.mark.nightly
@in_virtual_time
async def test_run_holds_while_all_data_fail_and_finishes_once_they_are_mended() -> None:
    data = [MendableData(DatasetSpec(2, 16)) for _ in range(3)]
    async with simulated_run(state_file(config__total_steps=TOTAL_STEPS, config__init_min_clients=3), seed=7) as run:
        clients = [run.start(run.client(number, with_data(source))) for number, source in enumerate(data, 1)]
        await asyncio.sleep(HOURS_S)
        most = MISSES_BEFORE_REST + GROWING_RESTS + HOURS_S / LONGEST_REST_S
        assert all(0 < len(client.of(RoundFailed)) <= most for client in clients)
        held = run.coordinator.run
        assert (held.clock.phase, held.progress.step, held.work.quarantined) == (RunState.WAITING_FOR_MEMBERS, 1, ())
        assert "the data are damaged" in held.clock.reason
        for source in data:
            source.mended = True
        ends = await run.ends(clients, BOUND_S)
        assert {end.reason for end in ends} == {EndReason.FINISHED}
        assert run.coordinator.run.work.suspects == ()
        await prove(run)
