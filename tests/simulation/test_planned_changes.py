"""Settings that change in mid-run, in virtual time: replicas agree before and after, and the audit passes."""

import asyncio

from epochal.coordinator.machine.stimuli import ChangeAnnounced, PauseRequested, ResumeRequested
from epochal.run_manager.agent import EndReason
from epochal.run_manager.events import RoundTrained
from epochal.state.model.tensors import BYTES_TYPE, read_tensor_header
from epochal.state.phase_names import RunState
from tests.simulation.test_training_ahead import SLOW, delayed
from tests.support.data.stored_blobs import blob_bytes
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import BOUND_S, SimulatedRun, prove, simulated_run, small_state
from tests.support.simulate.virtual_time import in_virtual_time

NUMPY = ClientSpec(trainer="numpy")
CHANGED = {
    "merge.codec": "int2",
    "merge.error_feedback": True,
    "merge.outer_lr": 0.4,
    "merge.outer_momentum": 0.9,
    "merge.update": "int8",
    "merge.local_steps": 2,
    "config.global_batch_size_start": 9,
    "config.global_batch_size_end": 9,
    "model.LLM.lr_schedule": {"Constant": {"base_lr": 1e-4, "warmup_init_lr": 0.0, "warmup_steps": 0}},
}


async def batches_and_codecs(run: SimulatedRun) -> dict[int, tuple[int, str]]:
    """Return the number of batches and the codec of each step whose results are kept."""
    found = {}
    for step, outcome in run.coordinator.run.models.outcomes.items():
        data = await blob_bytes(run.coordinator.store.blobs, outcome.entries[0].result_sha256)
        batches = sum(part.count for entry in outcome.entries for part in entry.assignment)
        found[step] = (batches, read_tensor_header(data, (BYTES_TYPE,)).metadata["codec"])
    return found


@in_virtual_time
async def test_change_is_applied_by_everybody_from_its_step_on() -> None:
    state = small_state(6, config__total_steps=9, config__epoch_time=4000, merge__codec="int8")
    async with simulated_run(state, seed=1) as run:
        clients = [run.start(run.client(number, NUMPY)) for number in (1, 2, 3)]
        await run.coordinator.reached(RunState.ROUND_TRAIN, 2)
        await run.coordinator.service.submit(ChangeAnnounced(6, CHANGED))
        await run.coordinator.reached(RunState.ROUND_TRAIN, 5)
        clients[2].kill()
        await run.coordinator.reached(RunState.ROUND_TRAIN, 7)
        late = run.start(run.client(4, NUMPY))
        again = run.start(run.client(3, NUMPY))
        ends = await run.ends([*clients[:2], late, again], BOUND_S)
        assert [end.reason for end in ends] == [EndReason.FINISHED] * 4
        assert len({end.replica_digest for end in ends}) == 1
        assert {event.step for event in clients[0].of(RoundTrained)} == set(range(1, 10))
        found = await batches_and_codecs(run)
        assert {codec for step, (_, codec) in found.items() if step < 6} == {"int8"}
        assert {step for step, (_, codec) in found.items() if codec == "int2"} == {6, 7, 8, 9}
        assert (found[4][0], found[8][0], found[9][0]) == (6, 9, 9)
        await prove(run)


@in_virtual_time
async def test_change_to_training_ahead_and_back() -> None:
    async with simulated_run(delayed(config__total_steps=12, merge__delay=0), seed=2) as run:
        clients = [run.start(run.client(number, SLOW)) for number in (1, 2, 3)]
        await run.coordinator.reached(RunState.ROUND_TRAIN, 1)
        await run.coordinator.service.submit(ChangeAnnounced(4, {"merge.delay": 1}))
        await run.coordinator.service.submit(
            ChangeAnnounced(8, {"merge.delay": 0, "merge.outer_lr": 0.3, "config.global_batch_size_end": 8})
        )
        ends = await run.ends(clients, BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        found = await batches_and_codecs(run)
        assert (found[7][0], found[8][0]) == (6, 8)
        await prove(run)


@in_virtual_time
async def test_change_over_a_pause_and_a_restart() -> None:
    async with simulated_run(small_state(6, config__total_steps=8), seed=3) as run:
        clients = [run.start(run.client(number, NUMPY)) for number in (1, 2, 3)]
        await run.coordinator.reached(RunState.ROUND_TRAIN, 3)
        await run.coordinator.service.submit(PauseRequested())
        await run.coordinator.reached(RunState.PAUSED)
        step = run.coordinator.run.progress.step
        await run.coordinator.service.submit(ChangeAnnounced(step, CHANGED))
        await run.coordinator.restart_after(1.0)
        await asyncio.sleep(1)
        await run.coordinator.service.submit(ResumeRequested())
        ends = await run.ends(clients, BOUND_S)
        assert len({end.replica_digest for end in ends}) == 1
        assert run.coordinator.run.state_file.merge.outer_lr == 0.4
        assert run.coordinator.run.identity.state_file.merge.outer_lr == 0.7
        await prove(run)
