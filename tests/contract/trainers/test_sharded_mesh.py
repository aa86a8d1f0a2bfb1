"""The `torch` trainer on a mesh: real processes under FSDP2 over gloo, against the trainer of one process."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batching.round_plan import RoundPlan
from data_providers.opening import open_provider
from data_providers.protocol import TokenBatch
from runtime.worker_thread import InlineWorker
from state.config.state_file import StateFile
from state.intervals import BatchId
from state.tensors import Tensors
from tests.support.heavy import need_module
from tests.support.local_training import SEED, rounds
from tests.support.states import state_file
from tests.support.tiny_llama import LLAMA
from trainers.architectures import open_model
from trainers.mesh.options import MeshOptions
from trainers.mesh.trainer import MeshTrainer
from trainers.protocol import TrainedRound
from trainers.registry import TrainerOptions, open_mesh_trainer, open_trainer
from trainers.torch.options import TorchOptions

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


def run_state(folder: Path, bad_index: int | None = None) -> StateFile:
    tokens = (np.arange(SEQUENCES * SEQ_LEN) ** 2 // 7 % 256).astype("<u2")
    if bad_index is not None:
        tokens[bad_index * SEQ_LEN + 3] = 999
    tokens.tofile(folder / "tokens.bin")
    return state_file(
        config__data_indices_per_batch=3,
        merge__inner_state="keep",
        model__LLM__architecture="HfLlama",
        model__LLM__hf=HF,
        model__LLM__max_seq_len=SEQ_LEN,
        model__LLM__optimizer=SMOOTH,
        model__LLM__data_location={"Local": str(folder / "tokens.bin")},
    )


def start_of(state: StateFile) -> Tensors:
    return open_model(state.model.LLM.spec).initial_parameters(SEED)


async def rounds_alone(state: StateFile, count: int) -> list[TrainedRound]:
    """Rounds in one process."""

    async def data() -> AsyncIterator[TokenBatch]:
        provider = await open_provider(state, lambda: "")
        for interval in PLAN.assignment:
            yield await provider.get_samples(interval.to_data_ids(PLAN.data_indices_per_batch))
        await provider.aclose()

    options = TrainerOptions(torch=TorchOptions(device="cpu"))
    trainer = open_trainer("torch", state, state.model.LLM.spec, InlineWorker(), options)
    found, _ = await rounds(trainer, PLAN, start_of(state), data, count)
    return found


@contextlib.asynccontextmanager
async def opened(state: StateFile, mesh: str = "fsdp=2", count: int = 2, **options: Any) -> AsyncIterator[MeshTrainer]:
    chosen = MeshOptions(mesh, count, 2, trainer="torch", torch=TorchOptions(device="cpu", **options))
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
        assert one.token_count == other.token_count == 15 * (SEQ_LEN - 1)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert list(one.difference) == list(other.difference)
        for name, difference in other.difference.items():
            np.testing.assert_allclose(one.difference[name], difference, rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("mesh", "count", "options"),
    [("fsdp=2", 2, {}), ("data=2,fsdp=2", 4, {"micro_batch": 1})],
)
async def test_sharded_mesh_trains_as_one_process_does(
    tmp_path: Path, mesh: str, count: int, options: dict[str, Any]
) -> None:
    state = run_state(tmp_path)
    async with opened(state, mesh, count, **options) as trainer:
        found, _ = await rounds(trainer, PLAN, start_of(state), nothing, 2)
    assert_same(found, await rounds_alone(state, 2))
