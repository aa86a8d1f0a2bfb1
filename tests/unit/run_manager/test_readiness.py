"""`run_manager/readiness.py`: a client whose data are not the run's says how they differ, whatever it hears first."""

import asyncio

import pytest

from coordinator.machine.stimuli import DataFingerprintSet
from data_providers.dummy import DummyDataProvider
from data_providers.protocol import DataProvider, DatasetSpec, TokenBatch
from run_manager.context import RunAccess
from run_manager.events import BecameReady, DataDiffers
from state.errors import CoordinatorUnreachable, Refused
from state.intervals import DataIds
from state.phases import RunState
from tests.support.simulated_client import ClientSpec, with_data
from tests.support.simulated_run import simulated_run
from tests.support.states import state_file
from tests.support.virtual_time import in_virtual_time

PINNED = "ab" * 32
ROUND_S = 5.0
HOW = "the client's data have tokens of 4 bytes, the run's 2"


class SlowData(DummyDataProvider):
    """Made-up data whose rounds take `ROUND_S`."""

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        await asyncio.sleep(ROUND_S)
        return await super().get_samples(data_ids)


async def open_late(request: RunAccess) -> DataProvider:
    """Return the run's data, after a client that has its own at once was ready."""
    await asyncio.sleep(5)
    return SlowData(DatasetSpec(2, 16))


@in_virtual_time
async def test_client_that_missed_a_vote_is_told_how_its_data_differ() -> None:
    async with simulated_run(state_file(config__init_min_clients=3, config__min_clients=2), seed=0) as run:

        def deaf_to_the_vote(name: str, leg: str) -> None:
            if leg == "answer" and len(run.coordinator.run.data_votes) > 1 and run.coordinator.run.round is None:
                raise CoordinatorUnreachable("the others' votes are not heard of")

        astray = run.client(1, with_data(SlowData(DatasetSpec(4, 16))), deaf_to_the_vote)
        for number in (2, 3):
            run.start(run.client(number, ClientSpec(open_provider=open_late)))
        with pytest.raises(Refused, match=HOW) as refused:
            await astray.agent.run()
        assert refused.value.kind == "fingerprint-differs"
        assert astray.of(BecameReady), "it was the first"
        warned = [event.message for event in astray.of(DataDiffers)]
        assert warned
        assert all(HOW in message for message in warned)


@in_virtual_time
async def test_client_of_a_round_whose_data_are_pinned_away_is_told_twice() -> None:
    async with simulated_run(state_file(config__init_min_clients=1), seed=0) as run:
        client = run.client(1, with_data(SlowData(DatasetSpec(2, 16))))
        training = asyncio.create_task(client.agent.run())
        await run.coordinator.reached(RunState.ROUND_TRAIN)
        await asyncio.sleep(1)
        await run.coordinator.service.submit(DataFingerprintSet(PINNED))
        with pytest.raises(Refused, match="no member has described the run's data") as refused:
            await training
        assert refused.value.kind == "fingerprint-differs"
        (warned,) = client.of(DataDiffers)
        assert f"the run's now has {PINNED}" in warned.message
        assert "said after the round" in warned.message
