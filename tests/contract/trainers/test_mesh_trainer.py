"""A client of several processes: real ones, over torch.distributed, against the trainer of one process."""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.open_data import open_provider
from epochal.data_providers.protocol import IGNORED_LABEL, CorruptData, TokenBatch
from epochal.runtime.permissions import OWNERS
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import NgramConfig
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput, TrainerFailed
from epochal.state.intervals import BatchId
from epochal.state.model.tensors import Tensors
from epochal.trainers.mesh import launcher
from epochal.trainers.mesh.mesh_messages import ENDED_WITH_AGENT, Start, write_document
from epochal.trainers.mesh.mesh_options import MeshOptions
from epochal.trainers.mesh.mesh_trainer import MeshTrainer
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.protocol import TrainedRound, Trainer
from epochal.trainers.registry import open_mesh_trainer, open_trainer
from tests.support.bounds import BOUND_S
from tests.support.data.packed_assignment import packed_data, write_answers
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.local_training import rounds

SEQ_LEN = 16
SEQUENCES = 200
PLAN = RoundPlan(3, (BatchId(8, 12), BatchId(2, 3)), 3, (0.01, 0.02))
"""21 samples in two local steps, of 11 and of 10."""
NGRAM = NgramConfig(context=2, embedding=4, hidden=8)
START = NgramModel(NGRAM).initial_parameters(b"seed")

pytestmark = pytest.mark.timeout(150)


def run_state(folder: Path, bad_index: int | None = None, **overrides: Any) -> StateFile:
    tokens = (np.arange(SEQUENCES * SEQ_LEN) ** 2 // 7 % 256).astype("<u2")
    if bad_index is not None:
        tokens[bad_index * SEQ_LEN + 3] = 999
    tokens.tofile(folder / "tokens.bin")
    return state_file(
        config__data_indices_per_batch=3,
        model__LLM__data_location={"Local": str(folder / "tokens.bin")},
        model__LLM__ngram=NGRAM.model_dump(),
        **overrides,
    )


def packed_state(folder: Path, bad: int | None = None, **overrides: Any) -> StateFile:
    write_answers(folder / "train.jsonl", SEQUENCES, bad)
    return state_file(
        config__data_indices_per_batch=3,
        model__LLM__data_type="Finetuning",
        model__LLM__max_seq_len=160,
        model__LLM__data_location={"Local": str(folder / "train.jsonl")},
        model__LLM__ngram=NGRAM.model_dump(),
        merge__inner_state="keep",
        **overrides,
    )


async def data_of(state: StateFile) -> AsyncIterator[TokenBatch]:
    provider = await open_provider(state, lambda: "", OWNERS)
    for interval in PLAN.assignment:
        yield await provider.get_samples(interval.to_data_ids(PLAN.data_indices_per_batch))
    await provider.aclose()


async def rounds_alone(state: StateFile, count: int) -> tuple[list[TrainedRound], Tensors]:
    """Rounds in one process."""
    return await rounds(
        open_trainer("numpy", state, state.model.LLM.spec, InlineWorker()), PLAN, START, lambda: data_of(state), count
    )


@contextlib.asynccontextmanager
async def opened(
    state: StateFile, mesh: str = "data=2", process_count: int = 2, batch_size: int = 2
) -> AsyncIterator[MeshTrainer]:
    trainer = await open_mesh_trainer(
        MeshOptions(mesh, process_count, batch_size, permissions=OWNERS),
        state,
        state.model.LLM.spec,
        lambda: "",
        InlineWorker(),
    )
    try:
        yield trainer
    finally:
        await trainer.aclose()


async def train(trainer: Trainer, plan: RoundPlan = PLAN, start: Tensors = START) -> TrainedRound:
    return await trainer.train(plan, start, nothing())


async def nothing() -> AsyncIterator[TokenBatch]:
    empty: tuple[TokenBatch, ...] = ()
    for batch in empty:
        yield batch


@pytest.fixture(autouse=True)
def torch() -> None:
    need_module("torch")


@dataclass(frozen=True)
class SharedMesh:
    """A mesh of two processes, its run's state file, and the folder of its temporary files."""

    trainer: MeshTrainer
    state: StateFile
    temporary: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedMesh]:
    """A mesh for the tests below, in their order; token 999 is at 100, and the last test ends a process."""
    need_module("torch")
    state = run_state(tmp_path_factory.mktemp("shared"), bad_index=100, merge__inner_state="keep")
    temporary = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(temporary))
        async with opened(state, "data=2,tensor=2") as trainer:
            yield SharedMesh(trainer, state, temporary)


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_mesh_trains_as_one_process_does_and_loads_each_row_once(
    shared: SharedMesh, caplog: pytest.LogCaptureFixture
) -> None:
    assert os.listdir(shared.temporary) == [], "what a killed agent would leave"
    await assert_trains_as_alone(shared.trainer, shared.state, MeshOptions("data=2,tensor=2", 2, 2), caplog)


@pytest.mark.asyncio(loop_scope="module")
async def test_data_that_cannot_be_trained_on_name_their_batch(shared: SharedMesh) -> None:
    trainer = shared.trainer
    pids = [process.pid for process in _processes_of(trainer)]
    with pytest.raises(CorruptData, match="data index 100 has token 999") as failed:
        await train(trainer, RoundPlan(3, (BatchId(32, 36), BatchId(2, 3)), 3, (0.01, 0.02)))
    assert failed.value.context["batch_id"] == BatchId(33, 33)
    without = RoundPlan(4, (BatchId(2, 3),), 3, (0.01,))
    assert (await train(trainer, without)).token_count == 6 * SEQ_LEN
    assert [process.pid for process in _processes_of(trainer)] == pids, "the same processes"


async def test_mesh_follows_a_mix_that_changes(tmp_path: Path) -> None:
    """The processes run on, and take the samples of the weights that the agent knows as each round begins."""
    run_state(tmp_path)
    (np.arange(SEQUENCES * SEQ_LEN) % 251).astype("<u2").tofile(tmp_path / "other.bin")
    sources = [{"location": {"Local": f"{name}.bin"}, "weight": 1.0} for name in ("tokens", "other")]
    (tmp_path / "mix.json").write_text(json.dumps(sources))
    mix = {"model__LLM__data_location": {"WeightedHttp": str(tmp_path / "mix.json")}}
    sizes = {"config__data_indices_per_batch": 3, "model__LLM__ngram": NGRAM.model_dump()}
    plain = state_file(**mix, **sizes)
    changed = state_file(**mix, **sizes, changes=[{"at_step": 2, "mix": {"1": 1.0}, "first_batch": 8}])
    wanted = [(await rounds_alone(state, 1))[0][0] for state in (plain, changed, plain)]
    assert wanted[0].loss != wanted[1].loss
    async with opened(plain) as trainer:
        pids, found = [process.pid for process in _processes_of(trainer)], []
        for state in (plain, changed, plain):
            trainer.mixes = lambda state=state: state.later_mixes  # type: ignore[misc]
            found.append(await train(trainer))
            trainer.roll_back_inner_state()
        assert_alike(found, wanted)
        assert [process.pid for process in _processes_of(trainer)] == pids, "the same processes"


@pytest.mark.asyncio(loop_scope="module")
async def test_process_that_dies_costs_its_round_and_none_is_left(shared: SharedMesh) -> None:
    running = _processes_of(shared.trainer)
    os.kill(running[1].pid, signal.SIGKILL)
    with pytest.raises(TrainerFailed, match=r"step 3: .*mesh"):
        await train(shared.trainer)
    assert all(process.returncode is not None for process in running), "none is left"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mesh", "process_count", "batch_size", "inner_state"),
    [
        ("data=4", 1, 1, "reset"),
        ("data=2,fsdp=2,tensor=2", 3, 3, "keep"),
        ("tensor=3,data=1", 3, 4, "reset"),
        # Each process receives from another, or sends to one.
        ("tensor=2,data=3", 3, 2, "reset"),
    ],
)
async def test_mesh_of_another_shape_trains_as_one_process_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mesh: str, process_count: int, batch_size: int, inner_state: str
) -> None:
    state = run_state(tmp_path, merge__inner_state=inner_state)
    async with opened(state, mesh, process_count, batch_size) as trainer:
        await assert_trains_as_alone(trainer, state, MeshOptions(mesh, process_count, batch_size), caplog)


async def assert_trains_as_alone(
    trainer: MeshTrainer, state: StateFile, options: MeshOptions, caplog: pytest.LogCaptureFixture
) -> None:
    wanted, _ = await rounds_alone(state, 2)
    with caplog.at_level("INFO"):
        found, _ = await rounds(trainer, PLAN, START, nothing, 2)
    trainer.roll_back_inner_state()
    assert_alike(found, wanted)
    assert {(one.token_count, one.sample_tokens) for one in found} == {(21 * SEQ_LEN, 21 * SEQ_LEN)}
    loaded = [record.__dict__["rows_loaded"] for record in caplog.records if record.getMessage() == "mesh_round"]
    assert [sum(rows) for rows in loaded] == [21, 21], "each row once"
    for number in range(options.process_count):
        assert (loaded[0][number] > 0) == options.layout.loading(number).should_load


def assert_alike(found: list[TrainedRound], wanted: list[TrainedRound]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.token_count == other.token_count
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        for name, difference in other.difference.items():
            np.testing.assert_allclose(one.difference[name], difference, rtol=1e-3, atol=1e-6)


@pytest.mark.nightly
async def test_cancelled_round_leaves_no_process_and_the_next_one_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(run_state(tmp_path)) as trainer:
        running = _processes_of(trainer)
        os.kill(running[0].pid, signal.SIGSTOP)  # a round that does not end
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await train(trainer)
        assert all(process.returncode is not None for process in running)
        assert (0, running[0].pid) in silent_in(caplog), "the log says which process to look at"
        caplog.clear()
        assert (await train(trainer)).token_count == 21 * SEQ_LEN
        assert silent_in(caplog) == []
        last = _processes_of(trainer)
    assert all(process.returncode is not None for process in last), "a closed mesh has left a process"


def silent_in(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int]]:
    fields = [one.__dict__ for one in caplog.records if one.getMessage() == "mesh_process_silent"]
    return [(one["number"], one["pid"]) for one in fields]


@pytest.mark.nightly
async def test_process_that_hangs_is_waited_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launcher, "WAIT_FOR_OTHERS_S", 10.0)  # they need some of it to find each other
    monkeypatch.setattr(launcher, "MAX_DELAY_S", 0.0)
    state = run_state(tmp_path, client__fetch_timeout_s=0.1, client__fetch_attempts=1)
    async with opened(state, batch_size=32) as trainer:
        pid = _processes_of(trainer)[1].pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(TrainerFailed, match=r"step 3: the mesh fell apart"):
            await train(trainer)
        assert silent_in(caplog) == [(1, pid)]


@pytest.mark.nightly
async def test_process_whose_agent_goes_while_it_waits_for_the_others_goes_too(tmp_path: Path) -> None:
    start = Start(
        state=run_state(tmp_path).model_dump(mode="json", exclude={"run_state", "progress", "access"}),
        model=run_state(tmp_path).model.LLM.spec.to_plain(),
        options=MeshOptions("data=2", 2, 1),  # the other process is never started
        process=0,
        store=str(tmp_path / "store"),
        timeout_s=140.0,
    )
    process = await launcher._spawn(2)
    assert process.stdin is not None
    await write_document(process.stdin, start)
    process.stdin.close()
    async with asyncio.timeout(BOUND_S):
        assert await process.wait() == ENDED_WITH_AGENT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("data=2,tensor=2", 5), "5 processes for a mesh of 4 devices"),
        (("tensor=2", 2), "one must be a batch axis"),
        (("data=2", 2, 0), "batch size of 0"),
        (("data=128", 65), "65 processes; allowed: 1 to 64"),
    ],
)
def test_impossible_mesh_is_refused(options: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MeshOptions(*options)


def test_mesh_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"install epochal\[torch\]"):
        MeshOptions("data=2", 2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def packing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedMesh]:
    """A mesh of two processes for the tests of a run that packs; record 150 cannot be encoded."""
    need_module("torch")
    folder = tmp_path_factory.mktemp("packing")
    state = packed_state(folder, bad=150)
    async with opened(state) as trainer:
        yield SharedMesh(trainer, state, folder)


@pytest.mark.asyncio(loop_scope="module")
async def test_mesh_trains_on_packed_rows_as_one_process_does(
    packing: SharedMesh, caplog: pytest.LogCaptureFixture
) -> None:
    await assert_packs_as_alone(packing.trainer, packing.state, packing.temporary, caplog)


@pytest.mark.asyncio(loop_scope="module")
async def test_process_without_a_packed_row_takes_part(packing: SharedMesh, caplog: pytest.LogCaptureFixture) -> None:
    plan = RoundPlan(5, (BatchId(2, 2),), 3, (0.01,))
    (row,) = [row async for row in packed_data(packing.state, plan) if row.sample_count]
    with caplog.at_level("INFO"):
        trained = await train(packing.trainer, plan)
    packing.trainer.roll_back_inner_state()
    assert [one.__dict__["rows_loaded"] for one in caplog.records if one.getMessage() == "mesh_round"] == [[1, 0]]
    assert row.labels is not None
    assert 0 < trained.token_count == np.count_nonzero(row.labels != IGNORED_LABEL) < len(row.labels)


@pytest.mark.asyncio(loop_scope="module")
async def test_sample_that_a_mesh_cannot_pack_names_its_batch(packing: SharedMesh) -> None:
    pids = [process.pid for process in _processes_of(packing.trainer)]
    with pytest.raises(CorruptData, match="data index 150 is a record of question") as failed:
        await train(packing.trainer, RoundPlan(3, (BatchId(2, 3), BatchId(48, 52)), 3, (0.01, 0.02)))
    assert failed.value.context["batch_id"] == BatchId(50, 50)
    assert (await train(packing.trainer)).token_count, "the mesh goes on"
    assert [process.pid for process in _processes_of(packing.trainer)] == pids, "the same processes"


@pytest.mark.nightly
async def test_mesh_of_another_shape_trains_on_packed_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = packed_state(tmp_path, packing={"method": "padded"})
    async with opened(state, "data=2,tensor=2", 3) as trainer:
        await assert_packs_as_alone(trainer, state, tmp_path, caplog)


async def assert_packs_as_alone(
    trainer: MeshTrainer, state: StateFile, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = open_trainer("numpy", state, state.model.LLM.spec, InlineWorker())
    wanted, _ = await rounds(alone, PLAN, START, lambda: packed_data(state, PLAN), 2)
    rows = [row async for row in packed_data(state, PLAN) if row.sample_count]
    with caplog.at_level("INFO"):
        found, _ = await rounds(trainer, PLAN, START, nothing, 2)
    trainer.roll_back_inner_state()
    assert_alike(found, wanted)
    lines = (folder / "train.jsonl").read_text().splitlines()
    records = [json.loads(lines[one]) for part in PLAN.assignment for one in part.to_data_ids(3)]
    tokens = sum(len(record["prompt"] + record["completion"]) for record in records)
    assert {one.sample_tokens for one in found} == {tokens}, "without padding"
    for log in [one.__dict__ for one in caplog.records if one.getMessage() == "mesh_round"]:
        assert log["rows"] == sum(log["rows_loaded"]) == len(rows), "each row once"
        assert min(log["rows_loaded"]) > 0, "no process is idle"


def _processes_of(trainer: Any) -> list[asyncio.subprocess.Process]:
    found: list[asyncio.subprocess.Process] = trainer._processes._processes
    return list(found)
