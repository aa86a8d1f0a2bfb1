"""The `torch` trainer on a mesh: real processes under FSDP2 over gloo, against the trainer of one process."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.open_data import open_provider
from epochal.data_providers.protocol import CorruptData, TokenBatch
from epochal.runtime.permissions import OWNERS
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidInput, TrainerFailed
from epochal.state.intervals import BatchId
from epochal.state.model.tensors import Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.learner import NOT_FINITE
from epochal.trainers.mesh import launcher
from epochal.trainers.mesh.mesh_options import MeshOptions
from epochal.trainers.mesh.mesh_trainer import MeshTrainer
from epochal.trainers.protocol import TrainedRound
from epochal.trainers.registry import TrainerOptions, open_mesh_trainer, open_trainer
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.data.packed_assignment import packed_data, write_answers
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.local_training import SEED, rounds
from tests.support.models.tiny_llama import LLAMA

SEQ_LEN = 16
SEQUENCES = 60
PLAN = RoundPlan(3, (BatchId(8, 11), BatchId(2, 2)), 3, (0.01, 0.02))
"""15 samples in two local steps, of 8 and of 7."""
HF = LLAMA | {"tie_word_embeddings": True, "intermediate_size": 63}
"""Tied weights, and matrices that four processes cannot share evenly."""
SMOOTH = {"AdamW": {"betas": [0.9, 0.95], "weight_decay": 0.01, "eps": 1e-3, "clip_grad_norm": 1.0}}
"""An optimizer whose steps do not magnify rounding as AdamW's first steps do."""

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(autouse=True)
def torch() -> None:
    need_module("torch")
    need_module("transformers")


def run_state(folder: Path, bad_index: int | None = None, **overrides: Any) -> StateFile:
    tokens = (np.arange(SEQUENCES * SEQ_LEN) ** 2 // 7 % 256).astype("<u2")
    if bad_index is not None:
        tokens[bad_index * SEQ_LEN + 3] = 999
    tokens.tofile(folder / "tokens.bin")
    values = {
        "config__data_indices_per_batch": 3,
        "merge__inner_state": "keep",
        "model__LLM__architecture": "HfLlama",
        "model__LLM__hf": HF,
        "model__LLM__max_seq_len": SEQ_LEN,
        "model__LLM__optimizer": SMOOTH,
        "model__LLM__data_location": {"Local": str(folder / "tokens.bin")},
    }
    return state_file(**values | overrides)


def start_of(state: StateFile) -> Tensors:
    return open_model(state.model.LLM.spec).initial_parameters(SEED)


async def rounds_alone(state: StateFile, count: int) -> list[TrainedRound]:
    """Rounds in one process."""

    async def data() -> AsyncIterator[TokenBatch]:
        provider = await open_provider(state, lambda: "", OWNERS)
        for interval in PLAN.assignment:
            yield await provider.get_samples(interval.to_data_ids(PLAN.data_indices_per_batch))
        await provider.aclose()

    options = TrainerOptions(torch=TorchOptions(device="cpu"))
    trainer = open_trainer("torch", state, state.model.LLM.spec, InlineWorker(), options)
    found, _ = await rounds(trainer, PLAN, start_of(state), data, count)
    return found


@contextlib.asynccontextmanager
async def opened(state: StateFile, mesh: str = "fsdp=2", count: int = 2, **options: Any) -> AsyncIterator[MeshTrainer]:
    chosen = MeshOptions(
        mesh, count, 2, trainer="torch", permissions=OWNERS, torch=TorchOptions(device="cpu", **options)
    )
    trainer = await open_mesh_trainer(chosen, state, state.model.LLM.spec, lambda: "", InlineWorker())
    try:
        yield trainer
    finally:
        await trainer.aclose()


async def nothing() -> AsyncIterator[TokenBatch]:
    empty: tuple[TokenBatch, ...] = ()
    for batch in empty:
        yield batch


def assert_same(found: list[TrainedRound], wanted: list[TrainedRound]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.token_count == other.token_count
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-3)
        assert list(one.difference) == list(other.difference)
        for name, difference in other.difference.items():
            np.testing.assert_allclose(one.difference[name], difference, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.nightly
async def test_sharded_mesh_trains_as_one_process_does(tmp_path: Path) -> None:
    state = run_state(tmp_path)
    async with opened(state, "data=2,fsdp=2", 4, micro_batch=1) as trainer:
        found, _ = await rounds(trainer, PLAN, start_of(state), nothing, 2)
    assert_same(found, await rounds_alone(state, 2))
    assert {one.token_count for one in found} == {15 * (SEQ_LEN - 1)}


@pytest.mark.nightly
async def test_sharded_mesh_trains_on_packed_rows_as_one_process_does(tmp_path: Path) -> None:
    write_answers(tmp_path / "train.jsonl", SEQUENCES)
    state = run_state(
        tmp_path,
        model__LLM__data_type="Finetuning",
        model__LLM__max_seq_len=64,
        model__LLM__data_location={"Local": str(tmp_path / "train.jsonl")},
    )
    one_row = RoundPlan(4, (BatchId(2, 2),), 3, (0.01,))
    async with opened(state, "data=2") as trainer:
        found, _ = await rounds(trainer, PLAN, start_of(state), nothing, 2)
        few, _ = await rounds(trainer, one_row, start_of(state), nothing, 1)
    options = TrainerOptions(torch=TorchOptions(device="cpu"))
    alone = open_trainer("torch", state, state.model.LLM.spec, InlineWorker(), options)
    wanted, _ = await rounds(alone, PLAN, start_of(state), lambda: packed_data(state, PLAN), 2)
    fewer, _ = await rounds(alone, one_row, start_of(state), lambda: packed_data(state, one_row), 1)
    assert_same([*found, *few], [*wanted, *fewer])


class SharedMesh:
    """A mesh of two processes, and the rounds that it has trained so far, each from the end of the one before."""

    def __init__(self, trainer: MeshTrainer, state: StateFile) -> None:
        self.trainer = trainer
        self.state = state
        self.trained: list[TrainedRound] = []
        self.parameters = start_of(state)

    async def train(self, count: int) -> None:
        found, self.parameters = await rounds(self.trainer, PLAN, self.parameters, nothing, count)
        self.trained += found

    async def assert_trained_as_alone(self) -> None:
        assert_same(self.trained, await rounds_alone(self.state, len(self.trained)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedMesh]:
    """A mesh whose second process has room for two rows; token 999 is at 45. Tests may replace its processes."""
    need_module("torch")
    need_module("transformers")
    state = run_state(tmp_path_factory.mktemp("shared"), bad_index=45)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(launcher, "MODULE", "tests.support.models.tight_worker")
        async with opened(state) as trainer:
            yield SharedMesh(trainer, state)


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_failed_round_of_a_sharded_mesh_leaves_its_processes_as_they_are(shared: SharedMesh) -> None:
    trainer, start = shared.trainer, start_of(shared.state)
    bad = RoundPlan(3, (BatchId(14, 17), BatchId(2, 2)), 3, (0.01, 0.02))
    good = RoundPlan(4, (BatchId(2, 2),), 3, (0.01,))
    pids = pids_of(trainer)
    with pytest.raises(CorruptData, match="data index 45 has token 999") as failed:
        await trainer.train(bad, start, nothing())
    assert failed.value.context["batch_id"] == BatchId(15, 15)
    broken = start | {"model.norm.weight": np.full(32, np.nan, np.float32)}
    with pytest.raises(TrainerFailed, match="step 4: local step 1: the loss is nan") as not_finite:
        await trainer.train(good, broken, nothing())
    assert not_finite.value.context["failure"] == NOT_FINITE
    trained = await trainer.train(good, start, nothing())
    trainer.roll_back_inner_state()
    assert trained.token_count == 3 * (SEQ_LEN - 1)
    assert pids_of(trainer) == pids, "the same processes"


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_sharded_mesh_out_of_memory_repeats_in_smaller_micro_batches(
    shared: SharedMesh, caplog: pytest.LogCaptureFixture
) -> None:
    pids = pids_of(shared.trainer)
    await shared.train(2)
    assert not set(pids_of(shared.trainer)) & set(pids), "others could only wait"
    halved = [record.__dict__["places"] for record in caplog.records if record.getMessage() == "micro_batch_halved"]
    assert halved == [2 * SEQ_LEN]
    await shared.assert_trained_as_alone()


@pytest.mark.nightly
@pytest.mark.asyncio(loop_scope="module")
async def test_sharded_mesh_that_lost_a_process_goes_on_with_the_kept_state(shared: SharedMesh) -> None:
    await shared.train(1)
    running = processes_of(shared.trainer)
    os.kill(running[1].pid, signal.SIGKILL)
    with pytest.raises(TrainerFailed, match=r"step 3: .*mesh"):
        await shared.trainer.train(PLAN, shared.parameters, nothing())
    assert all(process.returncode is not None for process in running), "none is left"
    await shared.train(1)
    await shared.assert_trained_as_alone()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data=2,tensor=2", 4), "axis 'tensor'; allowed: fsdp, which shards the model, and data and replica"),
        (("fsdp=4", 2), "2 processes for mesh fsdp=4 with --trainer torch; allowed: 4"),
    ],
)
def test_mesh_that_cannot_be_sharded_is_refused(arguments: tuple[str, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MeshOptions(*arguments, trainer="torch")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TorchOptions(device="cuda:1"), "--device cuda:1 with --mesh; allowed: auto, cpu, cuda"),
        (TorchOptions(compiles=True), "--compile does not go with --mesh"),
    ],
)
def test_option_of_torch_that_a_mesh_does_not_take_is_refused(options: TorchOptions, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        MeshOptions("fsdp=2", 2, trainer="torch", torch=options)


@pytest.mark.nightly  # importing FSDP takes seconds
def test_mesh_with_fewer_gpus_than_processes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from epochal.trainers.torch.sharding import check_devices

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InvalidInput, match="of which this machine has 1; or --device cpu"):
        check_devices(TorchOptions(), 2)
    assert not check_devices(TorchOptions(device="cpu"), 2)


@pytest.mark.parametrize(
    ("mesh", "grid"),
    [
        ("fsdp=2", [[0, 1]]),
        ("data=3", [[0], [1], [2]]),
        ("data=2,fsdp=2", [[0, 1], [2, 3]]),
        ("fsdp=2,data=2", [[0, 2], [1, 3]]),
    ],
)
def test_shards_lie_along_fsdp_whatever_the_order_of_axes(mesh: str, grid: list[list[int]]) -> None:
    assert MeshOptions(mesh, len(grid) * len(grid[0]), trainer="torch").shard_grid == grid


@pytest.mark.nightly  # importing FSDP takes seconds
def test_blocks_are_the_layers_that_share_no_parameter() -> None:
    from torch import nn

    from epochal.trainers.torch.sharding import blocks_of

    shared, inner = nn.Linear(2, 2), nn.Sequential(nn.ModuleList([nn.Linear(2, 2)]))
    layers = nn.ModuleList([nn.Linear(2, 2), shared, inner, nn.Identity(), nn.Sequential(shared)])
    model = nn.ModuleDict({"head": nn.Linear(2, 2), "body": nn.Sequential(layers)})
    assert blocks_of(model) == [layers[0], inner]


def processes_of(trainer: Any) -> list[asyncio.subprocess.Process]:
    found: list[asyncio.subprocess.Process] = trainer._processes._processes
    return list(found)


def pids_of(trainer: MeshTrainer) -> list[int]:
    return [process.pid for process in processes_of(trainer)]
