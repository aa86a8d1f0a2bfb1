"""What comes out of a run that trains an adapter: a folder of `peft`, a whole model, and a loss."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from epochal.runtime.permissions import OWNERS
from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InvalidInput
from epochal.state.model.replica import first_replica
from epochal.state.model.tensors import Tensors
from epochal.tools.evaluate.losses import EvaluationOptions, opened_evaluation
from epochal.tools.export.exporter import Exporter, ExportOptions
from epochal.trainers.sources.float_types import FloatType
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.data.states import state_file
from tests.support.drive.listed_run import ListedRun
from tests.support.heavy import need_module
from tests.support.models.adapted_llama import ROW_TOKENS, adapter_of, loss_elsewhere, spec_with, write_base


@dataclass(frozen=True)
class Trained:
    """A run that has a checkpoint, its base and its data."""

    spec: ModelSpec
    folder: Path

    @property
    def run(self) -> ListedRun:
        replica = first_replica(3, self.adapter)
        return ListedRun([replica], spec=self.spec, state=state_file(model__LLM__checkpoint={"Local": str(self.base)}))

    @property
    def adapter(self) -> Tensors:
        return adapter_of(self.spec, self.base, scale=0.3)

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @property
    def rows(self) -> Path:
        return self.folder / "data" / "rows.bin"

    async def export(self, name: str, **options: Any) -> Path:
        chosen = ExportOptions(self.folder / name, FloatType.FLOAT32, {"tokenizer.json": b"{}"}, **options)
        await Exporter(self.run, chosen, lambda _: None).once(None)
        return chosen.out

    async def evaluated(self) -> float:
        location = {"Local": str(self.rows.parent)}
        state = state_file(model__LLM__max_seq_len=ROW_TOKENS, model__LLM__data_location=location)
        options = EvaluationOptions(OWNERS, torch=TorchOptions(device="cpu", base=self.base))
        async with opened_evaluation(state, self.spec, options) as evaluation:
            await evaluation.load(3, self.adapter)
            loss = await evaluation.loss()
        return loss.finite_nats() / loss.token_count

    async def elsewhere(self, *folders: Path) -> float:
        return await asyncio.to_thread(loss_elsewhere, self.rows, *folders)


@pytest.fixture(params=["lora", "dora"])
def trained(request: pytest.FixtureRequest, tmp_path: Path) -> Trained:
    for module in ("torch", "transformers", "peft"):
        need_module(module)
    (tmp_path / "data").mkdir()
    np.random.default_rng(1).integers(0, 256, ROW_TOKENS * 12).astype("<u2").tofile(tmp_path / "data" / "rows.bin")
    return Trained(write_base(tmp_path / "base", spec_with(use_dora=request.param == "dora")), tmp_path)


@pytest.mark.nightly
async def test_exported_adapter_and_whole_model_have_the_evaluated_loss(trained: Trained) -> None:
    loss = await trained.evaluated()
    adapter = await trained.export("adapter")
    whole = await trained.export("whole", merged=True, base=trained.base)
    assert sorted(path.name for path in adapter.iterdir()) == [
        *("adapter_config.json", "adapter_model.safetensors", "epochal.json", "tokenizer.json")
    ]
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(trained.base)
    assert await trained.elsewhere(trained.base) != pytest.approx(loss, abs=1e-3)
    assert await trained.elsewhere(trained.base, adapter) == pytest.approx(loss, abs=1e-4)
    assert await trained.elsewhere(whole) == pytest.approx(loss, abs=1e-4)


async def test_merged_export_without_the_base_is_refused(trained: Trained) -> None:
    with pytest.raises(InvalidInput, match="name your copy with --base DIR"):
        await trained.export("whole", merged=True)
    (trained.base / "model.safetensors").unlink()
    with pytest.raises(InvalidInput, match="is missing"):
        await trained.export("whole", merged=True, base=trained.base)
    assert not (trained.folder / "whole").exists()


async def test_merged_export_of_a_whole_model_is_refused(tmp_path: Path) -> None:
    run = ListedRun([first_replica(1, {"a": np.zeros(3, np.float32)})])
    chosen = ExportOptions(tmp_path / "out", FloatType.FLOAT32, {}, merged=True)
    with pytest.raises(InvalidInput, match="--merged goes with a run that trains an adapter"):
        await Exporter(run, chosen, lambda _: None).once(None)
