"""A burst of messages of all members at once is taken in turn: none is refused for their number."""

import asyncio

import pytest

from epochal.coordinator.machine import stimuli
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.messages.requests import Capabilities, ReadyReport
from epochal.state.model.replica import replica_digest
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, client_id_of
from tests.support.bounds import BOUND_S
from tests.support.data.states import state_file
from tests.support.drive.served import REPLICA, Served, served

BURST = 2_000
"""More than a group of messages holds that are kept together."""


async def joined(run: Served, number: int) -> ClientId:
    key, now_s = number.to_bytes(32, "big"), run.service.now_s()
    client_id = client_id_of(key)
    capabilities = Capabilities(codecs=SPOKEN)
    await run.service.submit(stimuli.ClientJoined(client_id, key.hex(), capabilities, f"nonce {number}", now_s + 600))
    return client_id


async def in_phase(run: Served, phase: RunState) -> None:
    version = -1
    async with asyncio.timeout(BOUND_S):
        while run.service.run.clock.phase is not phase:
            published = await run.service.readers.wait_published(version, None, 1.0)
            version = version if published is None else published.version


@pytest.mark.nightly
async def test_burst_of_joins_and_ready_reports_is_taken_in_turn() -> None:
    numbers = dict.fromkeys(("init_min_clients", "min_clients"), BURST)
    numbers |= dict.fromkeys(("global_batch_size_start", "global_batch_size_end"), BURST)
    numbers |= dict.fromkeys(("warmup_time", "max_round_train_time", "client_timeout_s"), 600)
    fields = {f"config__{name}": value for name, value in numbers.items()}
    state = state_file(config__waiting_for_members_extra_time=0.001, config__epoch_time=10_000, **fields)
    async with served(state) as run:
        async with asyncio.TaskGroup() as tasks:
            joining = [tasks.create_task(joined(run, number)) for number in range(BURST)]
        await in_phase(run, RunState.WARMUP)
        report = ReadyReport(REPLICA.step, replica_digest(REPLICA), "data")
        async with asyncio.TaskGroup() as tasks:
            reporting = [tasks.create_task(run.handlers.report(task.result(), report)) for task in joining]
        assert {task.result().ready for task in reporting} == {True}
        await in_phase(run, RunState.ROUND_TRAIN)
        current = run.service.run.round
        assert current is not None
        assert len(current.tasks.roster.clients) == BURST
