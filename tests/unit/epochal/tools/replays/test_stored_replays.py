"""Results of a stored run that anybody computes again: honest ones pass, and a liar's do not."""

import contextlib
import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.coordinator.machine.parts.verification import Verification
from epochal.coordinator.proof.backup import last_of
from epochal.coordinator.proof.publishing import Versions, publish
from epochal.coordinator.store.files.blobs import BLOBS_FOLDER
from epochal.coordinator.store.files.folder import DATABASE_FILE
from epochal.coordinator.store.open import open_store_reader
from epochal.coordinator.store.published_files import FolderFiles
from epochal.data_providers.protocol import DataProvider, DatasetSpec
from epochal.data_providers.providers.dummy import DummyDataProvider
from epochal.run_manager.context import RunAccess
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import AdamW
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidConfig, InvalidInput
from epochal.tools.replays.stored_replays import computable, replay_stored
from epochal.trainers.ngram.learner import NgramModel
from tests.support.data.stored_blobs import blob_bytes
from tests.support.drive.cli import run_main_in_thread
from tests.support.drive.journaled_run import KeptRun, compact_state, keep_in
from tests.support.models.lying_trainer import BoastingTrainer
from tests.support.simulate.simulated_client import ClientSpec
from tests.support.simulate.simulated_run import SimulatedRun, simulated_run, small_state
from tests.unit.epochal.tools.replays.test_replay import DEPENDENCIES, LIAR, RESET, lying

ALL = 10_000
KEEPING: dict[str, object] = {"verify": {"percent": 50}, "merge__inner_state": "keep", "merge__local_steps": 3}


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
    found = (await replay_stored(to, ALL, DEPENDENCIES, seed=1)).replays
    assert {one.client_id for one in found if not one.passes} == {liar}
    assert {one.excess for one in found if one.client_id != liar} == {0.0}
    assert {one.tolerance for one in found} == {0.30}  # nobody has calibrated
    few = await replay_stored(to, 3, DEPENDENCIES, seed=1)
    assert (len(few.replays), few.computable_count, few.kept_count) == (3, len(found), len(found))
    assert set(few.replays) < set(found)
    assert few == await replay_stored(to, 3, DEPENDENCIES, seed=1)


async def test_results_before_and_after_a_change_are_at_no_distance(tmp_path: Path) -> None:
    """Each is computed again with the local steps, the learning rate and the codec of its own step."""
    rate = {"Constant": {"base_lr": 1e-4, "warmup_init_lr": 0.0, "warmup_steps": 0}}
    values = {"merge.local_steps": 2, "merge.codec": "int8", "merge.outer_lr": 0.4, "model.LLM.lr_schedule": rate}
    state = small_state(8, merge__codec="int4", changes=[{"at_step": 3, "values": values}], **RESET)
    async with simulated_run(state, seed=5) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec("numpy"))
        to = await published(run, tmp_path)
    found = (await replay_stored(to, ALL, DEPENDENCIES, seed=1)).replays
    assert {one.step for one in found} >= {2, 3, 4}
    assert {(one.excess, one.obstacle) for one in found} == {(0.0, "")}


async def test_results_of_clients_that_keep_moments_unrevealed_are_refused(tmp_path: Path) -> None:
    async with simulated_run(small_state(8), seed=5) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec("numpy"))
        to = await published(run, tmp_path)
    with pytest.raises(InvalidConfig, match="whose results nobody can compute again") as caught:
        await replay_stored(to, ALL, DEPENDENCIES, seed=1)
    (mistake,) = caught.value.mistakes
    assert (mistake.path, mistake.value) == ("merge.inner_state", '"keep"')
    assert mistake.allowed.startswith('`inner_state = "reset"` where results are computed again: clients reveal')
    page = (Path(to) / "README.md").read_text(encoding="utf-8")
    assert "Nobody can train its results again to see whether the work was done: `merge.inner_state` is" in page
    assert "--retrain" not in page


async def test_results_whose_moments_are_kept_are_drawn_and_pass(tmp_path: Path) -> None:
    async with simulated_run(small_state(8, **KEEPING), seed=5) as run:
        await run.play(*(ClientSpec("numpy", spool_folder=tmp_path / str(number)) for number in range(3)))
        to = await published(run, tmp_path)
    found = await replay_stored(to, ALL, DEPENDENCIES, seed=1)
    assert 0 < found.computable_count == len(found.replays) < found.kept_count
    assert {(one.excess, one.obstacle) for one in found.replays} == {(0.0, "")}
    assert {one.state_excess for one in found.replays} - {None} == {0.0}, "None where the last one is not revealed yet"
    ran = await run_main_in_thread("audit", "--recompute", "--retrain", "2", to, environment={})
    ran.expect(0, f"; {found.computable_count} of {found.kept_count} kept results can be computed:")
    assert "--retrain 20" in (Path(to) / "README.md").read_text(encoding="utf-8")
    run_then = (await last_of(open_store_reader(to))).run
    outcomes = list(run_then.models.outcomes.values())
    forgotten = run_then.with_parts(run_then.members.verified_as(Verification()))
    with pytest.raises(InvalidInput, match="keeps no inner state of the rounds since the older kept checkpoint"):
        list(computable(forgotten, outcomes[-1:], "store"))
    assert list(computable(forgotten, [], "store")) == []


async def test_member_that_lies_in_its_moments_is_found(tmp_path: Path) -> None:
    def boasting(state: StateFile, worker: Worker) -> BoastingTrainer:
        optimizer = state.model.LLM.optimizer
        assert isinstance(optimizer, AdamW)
        return BoastingTrainer(NgramModel(state.model.LLM.ngram), optimizer, True, worker)

    async with simulated_run(small_state(8, **KEEPING), seed=5) as run:
        specs = [ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec(open_trainer=boasting)]
        await run.play(*(replace(one, spool_folder=tmp_path / str(place)) for place, one in enumerate(specs)))
        to, liar = await published(run, tmp_path), run.clients[2].client_id
    found = (await replay_stored(to, ALL, DEPENDENCIES, seed=1)).replays
    assert {one.client_id for one in found if not one.passes} == {liar}
    first = min((one for one in found if not one.passes), key=lambda one: one.step)
    assert first.excess == 0.0, "its result is honest"
    assert first.state_excess is not None
    assert first.state_excess > 1.0 > first.state_tolerance == 0.30
    ran = await run_main_in_thread("audit", "--recompute", "--retrain", str(ALL), to, environment={})
    ran.expect(1, f"of moments {first.state_excess:.4f}, tolerance 0.3000, NOT within it")


@pytest.mark.nightly
async def test_other_data_accuse_nobody(tmp_path: Path) -> None:
    async def open_shifted(access: RunAccess) -> DataProvider:
        return DummyDataProvider(DatasetSpec(4, access.state.model.LLM.max_seq_len))

    async with simulated_run(small_state(8, **RESET), seed=5) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec("numpy"))
        to = await published(run, tmp_path)
    with pytest.raises(InvalidInput, match="the run's have"):
        await replay_stored(to, 2, replace(DEPENDENCIES, open_provider=open_shifted), seed=1)


async def test_run_that_cannot_be_computed_is_refused_before_its_audit(tmp_path: Path) -> None:
    """The journal's beginning is damaged, which an audit would have found."""
    async with simulated_run(compact_state(run__keep_journal="all", config__total_steps=8), seed=5) as run:
        await run.play(*(ClientSpec(),) * 3)
        to = await published(run, tmp_path)
    with contextlib.closing(sqlite3.connect(Path(to) / DATABASE_FILE)) as database, database:
        database.execute("UPDATE epochal_segments SET hash = x'00' WHERE number = 0")
    (await run_main_in_thread("audit", to, environment={})).expect(1, "is damaged")
    ran = await run_main_in_thread("audit", "--recompute", "--retrain", "2", to, environment={})
    ran.expect(2, "whose results nobody can compute again")


async def test_audit_is_shown_although_no_result_can_be_trained_again(tmp_path: Path) -> None:
    async with simulated_run(small_state(8, **RESET), seed=5) as run:
        await run.play(ClientSpec("numpy"), ClientSpec("numpy"), ClientSpec("numpy"))
        to = await published(run, tmp_path)
    shutil.rmtree(Path(to) / BLOBS_FOLDER)
    ran = await run_main_in_thread("audit", "--recompute", "--retrain", "2", "--json", to, environment={})
    ran.expect(1)
    assert [problem for problem in json.loads(ran.out)["problems"] if "no result was trained again: " in problem]


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
