"""`run_manager/steps/warmup.py`, and opening a client's part of a run: when a client becomes ready."""

import asyncio
from typing import Any

import pytest

from epochal.coordinator.machine.stimuli import ClientsFellSilent
from epochal.coordinator_client.session import Joined
from epochal.data_providers.protocol import CorruptData, DataProvider, SourceUnavailable, TokenBatch
from epochal.run_manager.context import RunAccess
from epochal.run_manager.events import BecameReady, DocumentArrived, RoundTrained
from epochal.state.config.state_file import StateFile
from epochal.state.documents import RunDocument
from epochal.state.errors import CoordinatorUnreachable, InvalidInput, Refused
from epochal.state.intervals import DataIds
from epochal.state.phase_names import RunState
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec, FaultyData, SimulatedClient, key_of, with_data
from tests.support.simulate.simulated_run import BOUND_S, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time


@in_virtual_time
async def test_dataset_with_another_fingerprint_ends_the_client() -> None:
    async with simulated_run(state_file(config__init_min_clients=2), seed=0) as run:
        for number in (1, 2):
            run.start(run.client(number))
        await run.coordinator.reached(RunState.ROUND_TRAIN)
        data = FaultyData(fingerprint="ff" * 32)
        with pytest.raises(Refused) as caught:
            await run.client(3, with_data(data)).agent.run()
        assert caught.value.kind == "fingerprint-differs"
        assert "ff" * 32 in caught.value.message
        assert str(run.coordinator.document.data_fingerprint) in caught.value.message
        assert key_of(3).client_id not in run.coordinator.run.members
        assert data.closed_count == 1


@in_virtual_time
async def test_data_that_the_model_cannot_take_end_the_client_before_it_is_ready() -> None:
    async with simulated_run(state_file(), seed=0) as run:
        data = FaultyData(frozenset(range(1_000_000)))
        client = run.client(1, with_data(data, trainer="numpy"))
        with pytest.raises(InvalidInput, match="the run's model cannot be trained on these data"):
            await client.agent.run()
        assert not client.of(BecameReady)


@pytest.mark.nightly
@in_virtual_time
async def test_init_run_data_source_that_comes_later_is_waited_for() -> None:
    opened: list[float] = []

    async def open_provider(request: RunAccess) -> DataProvider:
        opened.append(asyncio.get_running_loop().time())
        if len(opened) < 4:
            raise SourceUnavailable("the data server is not up")
        return FaultyData()

    async with simulated_run(state_file(config__total_steps=40), seed=0) as run:
        ends = await run.play(ClientSpec(), ClientSpec(open_provider=open_provider))
        assert len(opened) == 4
        assert ends[0].replica_digest == ends[1].replica_digest
        assert run.clients[1].of(BecameReady)


@in_virtual_time
async def test_init_run_data_that_cannot_be_opened_ends_the_client() -> None:
    async def open_provider(request: RunAccess) -> DataProvider:
        raise CorruptData("there are no token files")

    async with simulated_run(state_file(config__init_min_clients=1), seed=0) as run:
        with pytest.raises(CorruptData):
            await run.client(1, ClientSpec(open_provider=open_provider)).agent.run()
        assert not run.coordinator.run.members.by_id


@in_virtual_time
async def test_warmup_member_that_had_to_join_again_reports_ready_again() -> None:
    async def open_late(request: RunAccess) -> DataProvider:
        await asyncio.sleep(15)
        return FaultyData()

    async with simulated_run(state_file(config__total_steps=1), seed=0) as run:
        for client in (run.client(1, ClientSpec(open_provider=open_late)), run.client(2)):
            run.start(client)
        await run.coordinator.wait_for(lambda: len(run.coordinator.run.ready_members()) == 1)
        await asyncio.sleep(1)
        assert run.coordinator.run.clock.phase is RunState.WARMUP
        await run.coordinator.service.submit(ClientsFellSilent((key_of(2).client_id,)))
        await run.coordinator.reached(RunState.ROUND_TRAIN)
        document = run.coordinator.document
        assert document.reason == "all 2 members are ready"
        assert document.round is not None
        assert document.round.roster_count == 2


def _epochs_of_30_s(**fields: Any) -> StateFile:
    """Return a state of short epochs; a round takes about a second, the time of its data."""
    times = {"config__warmup_time": 3, "config__max_round_train_time": 5, "config__epoch_time": 30}
    return state_file(**times, **fields)


class _SlowData(FaultyData):
    def __init__(self, takes_s: float = 1.0) -> None:
        super().__init__()
        self._takes_s = takes_s

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        await asyncio.sleep(self._takes_s)
        return await super().get_samples(data_ids)


def _epoch_starts(client: SimulatedClient) -> list[RunDocument]:
    """The first document of each epoch's first round; others of the round may follow it."""
    documents = [event.document for event in client.of(DocumentArrived)]
    firsts = [d for d in documents if d.run_state is RunState.ROUND_TRAIN and d.round and d.round.height == 0]
    return list({d.epoch: d for d in reversed(firsts)}.values())[::-1]


@pytest.mark.nightly
@in_virtual_time
async def test_every_epoch_begins_as_soon_as_all_are_ready_again() -> None:
    async with simulated_run(_epochs_of_30_s(config__total_steps=70), seed=0) as run:
        await run.play(with_data(_SlowData()), with_data(_SlowData()))
        starts = _epoch_starts(run.clients[0])
        assert len(starts) >= 3
        assert {document.reason for document in starts} == {"all 2 members are ready"}


@pytest.mark.nightly
@in_virtual_time
async def test_warmup_does_not_wait_for_a_client_that_was_killed_before_it() -> None:
    state = state_file(config__total_steps=30, config__epoch_time=90, config__warmup_time=60)
    async with simulated_run(state, seed=0) as run:
        clients = [run.start(run.client(number, with_data(_SlowData(8.0)))) for number in (1, 2, 3)]
        await run.coordinator.reached(RunState.COOLDOWN)
        clients[2].kill()
        killed_s = asyncio.get_running_loop().time()
        epoch = run.coordinator.document.epoch
        await run.coordinator.wait_for(lambda: run.coordinator.document.epoch > epoch)
        await run.coordinator.reached(RunState.ROUND_TRAIN)
        assert asyncio.get_running_loop().time() - killed_s < 20.0
        assert run.coordinator.document.round is not None
        assert run.coordinator.document.round.roster_count == 2


@pytest.mark.nightly
@in_virtual_time
async def test_client_that_slept_through_a_warmup_is_taken_back() -> None:
    state = _epochs_of_30_s(config__total_steps=55, config__client_timeout_s=600)
    async with simulated_run(state, seed=0) as run:

        def asleep_once(name: str, leg: str) -> None:
            rounds = (RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
            if (
                leg == "request"
                and 20 < run.coordinator.run.progress.step < 40
                and run.coordinator.run.clock.phase not in rounds
            ):
                raise CoordinatorUnreachable("asleep")

        awake = run.start(run.client(1, with_data(_SlowData())))
        asleep = run.start(run.client(2, with_data(_SlowData()), asleep_once))
        ends = await run.ends([awake, asleep], BOUND_S)
        assert ends[0].replica_digest == ends[1].replica_digest
        assert len(asleep.of(Joined)) == 1
        (late,) = [document for document in _epoch_starts(awake) if "1 of 2 members" in document.reason]
        trained = {event.step for event in asleep.of(RoundTrained)}
        assert late.step not in trained
        assert trained & set(range(late.step, late.step + 15))
