"""Results of a stored run that anybody computes again: honest ones pass, and a liar's do not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.coordinator.proof.publishing import Versions, publish
from epochal.coordinator.store.published_files import FolderFiles
from epochal.data_providers.protocol import DataProvider, DatasetSpec
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.context import RunAccess
from epochal.state.errors import InvalidInput
from epochal.tools.replays.stored_replays import replay_stored
from tests.support.data.stored_blobs import blob_bytes
from tests.support.drive.cli import run_main_in_thread
from tests.support.drive.journaled_run import KeptRun, keep_in
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import SimulatedRun, simulated_run, small_state
from tests.unit.epochal.tools.replays.test_replay import DEPENDENCIES, LIAR, RESET, lying

ALL = 10_000


async def published(run: SimulatedRun, folder: Path) -> str:
    """Keep a run that was played, and publish it; return where."""
    store = run.coordinator.store
    blobs = {sha256: await blob_bytes(store.blobs, sha256) for sha256 in await store.blobs.held()}
    key = await store.keys.private_key()
    assert key is not None
    await keep_in(folder / "run", KeptRun(tuple(run.coordinator.journal.segments), blobs, key))
    await publish(str(folder / "run"), FolderFiles(folder / "out"), Versions.here("0.1.0"), lambda _: None)
    return str(folder / "out")


@pytest.mark.nightly
async def test_outsider_finds_the_liar_and_nobody_else(tmp_path: Path) -> None:
    state = small_state(8, merge__codec="int4", merge__norm_limit=0.0, **RESET)
    async with simulated_run(state, seed=5) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec(open_trainer=lying))
        to, liar = await published(run, tmp_path), run.clients[LIAR - 1].client_id
    found = await replay_stored(to, ALL, DEPENDENCIES, seed=1)
    assert {one.client_id for one in found if not one.passes} == {liar}
    assert {one.excess for one in found if one.client_id != liar} == {0.0}
    assert {one.tolerance for one in found} == {0.30}  # nobody has calibrated
    few = await replay_stored(to, 3, DEPENDENCIES, seed=1)
    assert len(few) == 3
    assert set(few) < set(found)
    assert few == await replay_stored(to, 3, DEPENDENCIES, seed=1)


async def test_results_before_and_after_a_change_are_at_no_distance(tmp_path: Path) -> None:
    """Each is computed again with the local steps, the learning rate and the codec of its own step."""
    rate = {"Constant": {"base_lr": 1e-4, "warmup_init_lr": 0.0, "warmup_steps": 0}}
    values = {"merge.local_steps": 2, "merge.codec": "int8", "merge.outer_lr": 0.4, "model.LLM.lr_schedule": rate}
    state = small_state(8, merge__codec="int4", changes=[{"at_step": 3, "values": values}], **RESET)
    async with simulated_run(state, seed=5) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec("numpy"))
        to = await published(run, tmp_path)
    found = await replay_stored(to, ALL, DEPENDENCIES, seed=1)
    assert {one.step for one in found} >= {2, 3, 4}
    assert {(one.excess, one.obstacle) for one in found} == {(0.0, "")}


@pytest.mark.nightly
async def test_other_data_accuse_nobody(tmp_path: Path) -> None:
    async def open_shifted(access: RunAccess) -> DataProvider:
        return DummyDataProvider(DatasetSpec(4, access.state.model.LLM.max_seq_len))

    async with simulated_run(small_state(8, **RESET), seed=5) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec("numpy"))
        to = await published(run, tmp_path)
    with pytest.raises(InvalidInput, match="the run's have"):
        await replay_stored(to, 2, replace(DEPENDENCIES, open_provider=open_shifted), seed=1)


@pytest.mark.nightly
async def test_command_prints_distances_beside_tolerances(tmp_path: Path) -> None:
    async with simulated_run(small_state(8, **RESET), seed=5) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec("numpy"))
        to = await published(run, tmp_path)
    ran = await run_main_in_thread("audit", "--recompute", "--retrain", "2", to, environment={})
    ran.expect(0, "2 results trained again", "excess distance 0.0000, tolerance 0.3000", "(float32/cpu by float32/cpu)")
    asked = ("audit", "--recompute", "--retrain", "2", "--seed", "3", "--json", to)
    assert json.loads((await run_main_in_thread(*asked, environment={})).out)["seed"] == 3
    (await run_main_in_thread("audit", "--retrain", "2", to, environment={})).expect(
        2, "--retrain goes with --recompute"
    )
    missing = ("audit", "--recompute", "--retrain", "2", "--data", str(tmp_path / "gone"), to)
    (await run_main_in_thread(*missing, environment={})).expect(2, "there is no such file or folder")
