"""The base class of trainers of one's own in torch: it does everything but the model, its batches and its loss."""

import importlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.batching.chunking.datum_records import DatumBatch, datum_of
from epochal.batching.chunking.datums import ImageAssetPointerChunk, ImageChunk
from epochal.data_providers.protocol import IGNORED_LABEL, TokenBatch
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.errors import InvalidInput, TrainerFailed
from epochal.state.model.tensors import Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.learner import Model
from epochal.trainers.protocol import Trainer
from epochal.trainers.registry import TrainerOptions, open_trainer
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.data.image_samples import PNG, image, sample
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.installed_trainers import register
from tests.support.models.local_training import SEED, bytes_of, plan_of, rounds
from tests.support.thinned import thinned

SAMPLES = 24


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("torch")
    module = importlib.import_module("tests.support.models.torch_tasks")
    names = [name for name, found in vars(module).items() if isinstance(found, type)]
    places = {name: f"tests.support.models.torch_tasks:{name}" for name in names}
    register(tmp_path / "site", "tasks", "epochal.trainers", **places)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def table(kind: str, **options: Any) -> dict[str, Any]:
    return {"trainer": kind, "width": 5} | options


def task_class(kind: str) -> Any:
    return getattr(importlib.import_module("tests.support.models.torch_tasks"), kind)


def model_of(kind: str, **options: Any) -> Model:
    return open_model(ModelSpec(architecture=Architecture.CUSTOM, custom=table(kind, **options)))


def task_trainer(kind: str, inner_state: str = "keep", torch: TorchOptions | None = None, **options: Any) -> Trainer:
    custom = table(kind, **options)
    state = state_file(model__LLM__architecture="Custom", model__LLM__custom=custom, merge__inner_state=inner_state)
    chosen = TrainerOptions(torch=torch or TorchOptions(device="cpu"))
    return open_trainer(custom["trainer"], state, state.model.LLM.spec, InlineWorker(), chosen)


async def samples() -> AsyncIterator[TokenBatch]:
    tokens = np.random.default_rng(1).integers(0, 256, (SAMPLES, 4)).astype(np.uint32)
    labels = np.full(tokens.shape, IGNORED_LABEL)
    labels[:, -1] = tokens[:, 0] > 127
    offsets = np.arange(0, tokens.size + 1, 4, dtype=np.int64)
    yield TokenBatch(tokens.reshape(-1), offsets, labels.reshape(-1))


async def trained(trainer: Trainer, count: int = 1) -> tuple[list[float], Tensors]:
    """Return the losses of rounds, and the parameters at the end."""
    start = await trainer.initial_parameters(SEED)
    found, end = await rounds(trainer, plan_of(SAMPLES, 4, 0.05), start, samples, count)
    await trainer.aclose()
    assert {one.token_count for one in found} == {SAMPLES}
    return [one.loss or 0.0 for one in found], end


def assert_close(found: Tensors, wanted: Tensors) -> None:
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3, atol=1e-5)


async def test_task_learns_and_keeps_its_inner_state() -> None:
    losses, end = await trained(task_trainer("Sides"), 6)
    assert losses[0] == pytest.approx(np.log(2), abs=0.2)
    assert losses[-1] < 0.3 * losses[0]
    _, afresh = await trained(task_trainer("Sides", inner_state="reset"), 6)
    assert bytes_of(end) != bytes_of(afresh)


@pytest.mark.parametrize("kind", ["Named", "Alone"])
async def test_batch_may_be_a_dictionary_or_one_tensor(kind: str) -> None:
    assert_close((await trained(task_trainer(kind)))[1], (await trained(task_trainer("Sides")))[1])


async def test_micro_batches_change_nothing_but_the_speed() -> None:
    losses, end = await trained(task_trainer("Sides"), 2)
    for rows in (1, 4):
        options = TorchOptions(device="cpu", micro_batch=rows)
        found, others = await trained(task_trainer("Sides", torch=options), 2)
        assert found == pytest.approx(losses, rel=1e-5)
        assert_close(others, end)


async def test_batch_that_does_not_fit_into_memory_is_halved(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = await trained(task_trainer("Small"), 2)
    assert_close(found[1], (await trained(task_trainer("Sides"), 2))[1])
    assert [record.__dict__["rows"] for record in caplog.records if record.msg == "micro_batch_halved"] == [3, 1]


SIZES = (2_000_000, 2_000_000, 2_000_000, 20, 30)
"""Of images: the third does not fit into a request of training with the first two."""


@pytest.mark.parametrize(("rows", "batches"), [(None, [2, 3]), (2, [2, 2, 1]), (1, [1, 1, 1, 1, 1])])
async def test_local_step_with_images_is_cut_as_requests_of_training_are(rows: int | None, batches: list[int]) -> None:
    records = [sample(image(size), weights=[number % 2]) for number, size in enumerate(SIZES)]
    batch = DatumBatch.of([datum_of(record, 0, 8, None) for record in records])

    async def arriving() -> AsyncIterator[TokenBatch]:
        yield batch

    ends = []
    for chosen in (rows, 1):
        seen = task_class("Images").batches
        seen.clear()
        trainer = task_trainer("Images", torch=TorchOptions(device="cpu", micro_batch=chosen))
        start = await trainer.initial_parameters(SEED)
        (found,), end = await rounds(trainer, plan_of(len(SIZES), 1, 0.05), start, arriving, 1)
        assert found.token_count == len(SIZES)
        assert found.gradient_norm is not None, "one optimizer step"
        ends.append(end)
        if chosen is rows:
            assert seen == batches
    assert_close(*ends)


def test_task_reads_the_images_of_locations_below_the_folder_of_the_owner(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    task = task_class("Images")(ModelSpec(architecture=Architecture.CUSTOM, custom=table("Images")))
    assert task.image_bytes(ImageChunk(b"own")) == b"own"
    with pytest.raises(TrainerFailed, match="allowed: --assets DIR"):
        task.image_bytes(ImageAssetPointerChunk("a.png"))
    task.assets = tmp_path
    assert task.image_bytes(ImageAssetPointerChunk("a.png")) == PNG


def test_first_values_are_a_function_of_the_seed() -> None:
    import torch

    model, before = model_of("Sides"), torch.get_rng_state()
    first = bytes_of(model.initial_parameters(SEED))
    assert bytes_of(model.initial_parameters(SEED)) == first
    assert bytes_of(model.initial_parameters(bytes(32))) != first
    assert torch.equal(torch.get_rng_state(), before)
    assert {name: values.shape for name, values in model.initial_parameters(SEED).items()} == model.shapes


def test_model_takes_its_sizes_from_the_table_and_has_a_vocabulary() -> None:
    assert model_of("Sides", width=9).shapes["0.weight"] == (9, 4)
    assert model_of("Sides").vocabulary == 256
    assert task_trainer("Sides").vocabulary == 256


async def test_model_of_16_bit_numbers_with_tied_layers_is_shared_in_float32() -> None:
    assert model_of("Half").shapes == {"0.bias": (4,), "0.weight": (4, 4), "1.bias": (4,)}
    _, end = await trained(task_trainer("Half"))
    assert {values.dtype for values in end.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no module", r"Wrong\.build_model returned a int; allowed: a torch\.nn\.Module"),
        ("nothing to learn", r"Wrong\.build_model: the model has no parameters"),
        ("lazy", r"Wrong\.build_model: parameter 'weight' has no shape yet"),
        ("statistics", r"Wrong\.build_model: 1 \(BatchNorm1d\) keeps running statistics.*GroupNorm or LayerNorm"),
        ("option", r"Wrong\.build_model failed: KeyError: 'absent'"),
        ("torch", r"Wrong\.build_model failed: .*shapes"),
    ],
)
def test_model_that_clients_cannot_share_is_refused_by_name(model: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        task_trainer("Wrong", model=model)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("Unmade", r"Unmade cannot be made: KeyError: 'hidden'"), ("Unfinished", r"Unfinished cannot be made: TypeError")],
)
def test_class_that_cannot_be_made_is_named(kind: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        task_trainer(kind)


@thinned(
    ("options", "message"),
    [
        ({"batch": "list"}, r"batch_of returned \(a int, a int\); allowed: a tensor, or a tuple or a dictionary"),
        ({"batch": "empty"}, r"batch_of returned \(\); allowed"),
        ({"batch": "error"}, r"batch_of failed: IndexError"),
        ({"loss": "alone"}, r"loss returned a tensor of shape \(\); allowed: the summed loss"),
        ({"loss": "unsummed"}, r"loss returned \(a tensor of shape \(1,\), a int\)"),
        ({"loss": "tensor"}, r"loss returned \(a tensor of shape \(\), a tensor of shape \(\)\)"),
        ({"loss": "negative"}, r"loss returned \(a tensor of shape \(\), a int\)"),
        ({"loss": "error"}, r"Wrong\.loss failed: KeyError: 'absent'"),
        ({"loss": "torch"}, r"Wrong\.loss failed: RuntimeError: .*shapes"),
        ({"batch": "torch"}, r"Wrong\.batch_of failed: RuntimeError: boom"),
        ({"loss": "device"}, r"torch failed on cpu: CUDA error: the device is gone"),
        ({"loss": "nan"}, r"the loss is nan"),
    ],
)
async def test_failure_of_the_tasks_code_fails_the_step_by_name(options: dict[str, Any], message: str) -> None:
    trainer = task_trainer("Wrong", **options)
    start = await trainer.initial_parameters(SEED)
    with pytest.raises(TrainerFailed, match=rf"^step 1, local step 1: .*{message}"):
        await trainer.train(plan_of(SAMPLES, 4), start, samples())
