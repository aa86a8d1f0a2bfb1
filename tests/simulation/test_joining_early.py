"""Clients that join outside of an epoch: they fetch the model before Warmup."""

import asyncio

from epochal.run_manager.events import BlobFetched, ReplicaHeld, StepEntered
from epochal.state.phase_names import RunState
from tests.support.data.states import state_file
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import BOUND_S, simulated_run
from tests.support.simulate.virtual_time import in_virtual_time

NUMPY = ClientSpec(trainer="numpy")


@in_virtual_time
async def test_client_that_waits_for_others_holds_the_model_before_warmup() -> None:
    state = state_file(config__total_steps=2, config__init_min_clients=2)
    async with simulated_run(state, seed=0) as run:
        first = run.start(run.client(1, NUMPY))
        await asyncio.sleep(5)
        assert [event.step for event in first.of(ReplicaHeld)] == [0]
        assert run.coordinator.run.clock.phase is RunState.WAITING_FOR_MEMBERS
        assert [event.step_name for event in first.of(StepEntered)] == ["Observing"]
        second = run.start(run.client(2, NUMPY))
        await run.ends([first, second], BOUND_S)
        checkpoint = run.coordinator.run.models.checkpoints[0]
        fetched = [event for event in first.of(BlobFetched) if event.size_bytes == checkpoint.size_bytes]
        assert len(fetched) == 1, "once, and not again by the keeper"
