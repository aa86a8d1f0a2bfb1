"""Replays of a played run's results: honest ones are at no distance, others are far away."""

from dataclasses import replace

import pytest

from epochal.data_providers.protocol import DataProvider, DatasetSpec, SourceUnavailable, TokenBatch
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.context import ClientDependencies, RunAccess
from epochal.run_manager.events import ignore
from epochal.runtime.permissions import Permissions
from epochal.runtime.retry import RetryPolicy
from epochal.runtime.worker_thread import InlineWorker, Worker
from epochal.state.config.state_file import StateFile
from epochal.state.errors import DataError, InvalidInput
from epochal.state.intervals import DataIds
from epochal.state.model.replica import Replica, parse_checkpoint
from epochal.state.wire import Sha256
from epochal.tools.replays.replay import Replay, WorkOfRound, opened_replays
from epochal.trainers.architectures import open_model
from epochal.trainers.protocol import Trainer
from epochal.trainers.registry import open_trainer
from tests.support.data.spooled import SPOOL_PARENT
from tests.support.data.stored_blobs import blob_bytes
from tests.support.models.lying_trainer import LyingTrainer
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import SimulatedRun, simulated_run, small_state
from tests.support.thinned import thinned

RESET: dict[str, object] = {"merge__inner_state": "reset", "merge__local_steps": 4}
LIAR = 3


def lying(state: StateFile, worker: Worker) -> LyingTrainer:
    return LyingTrainer(open_model(state.model.LLM.spec), state.model.LLM.optimizer, False, worker)  # type: ignore[arg-type]


async def open_dummy(access: RunAccess) -> DataProvider:
    return DummyDataProvider(DatasetSpec(2, access.state.model.LLM.max_seq_len))


async def open_numpy(access: RunAccess, worker: Worker) -> Trainer:
    return open_trainer("numpy", access.state, access.spec, worker)


DEPENDENCIES = ClientDependencies(
    RetryPolicy(bound_s=0.0),
    lambda _: InlineWorker(),
    open_dummy,
    open_numpy,
    ignore,
    SPOOL_PARENT,
    Permissions.of_volunteer(),
)


async def replays_of(run: SimulatedRun) -> dict[bool, list[Replay]]:
    """Return replays of all results of the round after the older kept checkpoint: the liar's (True), and others'."""
    models, blobs = run.coordinator.run.models, run.coordinator.store.blobs
    start: Replica = parse_checkpoint(await blob_bytes(blobs, models.checkpoints[0].blob_sha256))
    outcome = models.outcomes[start.step + 1]
    state = run.coordinator.run.state_file
    found: dict[bool, list[Replay]] = {True: [], False: []}
    async with opened_replays(RunAccess(state, state.model.LLM.spec, lambda: ""), DEPENDENCIES) as replays:
        for entry in outcome.entries:
            work = WorkOfRound(outcome.step, entry.assignment, models.cold_start_step)
            result = await blob_bytes(blobs, Sha256(entry.result_sha256))
            found[entry.client_id == run.clients[LIAR - 1].client_id].append(await replays.replay(work, start, result))
    return found


@thinned("codec", ["float32", "int8", "int4"])
async def test_honest_results_are_at_no_distance_and_a_lie_is_far_away(codec: str) -> None:
    state = small_state(12, merge__codec=codec, merge__norm_limit=0.0, **RESET)
    async with simulated_run(state, seed=5) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec(open_trainer=lying))
        found = await replays_of(run)
    assert [replay.distance.excess for replay in found[False]] == [0.0] * len(found[False])
    assert found[False]
    for replay in found[True]:
        assert replay.distance.excess > 1.8
        assert replay.distance.cosine < -0.95
    assert len(found[True]) == 1
    assert {(one.result_class, one.replay_class) for one in found[False]} == {("float32/cpu", "float32/cpu")}


@pytest.mark.nightly
async def test_failure_of_the_data_is_raised_and_the_next_replay_goes_on() -> None:
    state = small_state(12, **RESET, client__fetch_attempts=1)
    is_gone = True

    class Sometimes(DummyDataProvider):
        async def get_samples(self, data_ids: DataIds) -> TokenBatch:
            if is_gone:
                raise SourceUnavailable(f"no samples {data_ids}")
            return await super().get_samples(data_ids)

    async def open_provider(access: RunAccess) -> DataProvider:
        return Sometimes(DatasetSpec(2, access.state.model.LLM.max_seq_len))

    async with simulated_run(state, seed=5) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec("numpy"))
        models, blobs = run.coordinator.run.models, run.coordinator.store.blobs
        start = parse_checkpoint(await blob_bytes(blobs, models.checkpoints[0].blob_sha256))
        outcome = models.outcomes[start.step + 1]
        entry = outcome.entries[0]
        work = WorkOfRound(outcome.step, entry.assignment, models.cold_start_step)
        access = RunAccess(state, state.model.LLM.spec, lambda: "")
        async with opened_replays(access, replace(DEPENDENCIES, open_provider=open_provider)) as replays:
            result = await blob_bytes(blobs, Sha256(entry.result_sha256))
            with pytest.raises(DataError):
                await replays.replay(work, start, result)
            with pytest.raises(InvalidInput, match="begins with replica"):
                await replays.replay(replace(work, step=work.step + 1), start, result)
            is_gone = False
            assert (await replays.replay(work, start, result)).distance.excess == 0.0


async def test_run_whose_results_leave_most_values_out_cannot_be_replayed() -> None:
    state = small_state(12, merge__codec="sparse", merge__error_feedback=True, **RESET)
    with pytest.raises(InvalidInput, match="codec sparse-"):
        async with opened_replays(RunAccess(state, state.model.LLM.spec, lambda: ""), DEPENDENCIES):
            pytest.fail("it was opened")
