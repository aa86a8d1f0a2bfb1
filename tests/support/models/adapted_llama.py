"""A base on the disk, adapters of it, and what `peft` itself makes of them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from epochal.state.config.adapter_table import Lora
from epochal.state.config.model_table import Architecture, ModelSpec
from epochal.state.model.tensors import Tensors
from epochal.trainers.architectures import open_model
from epochal.trainers.sources.folder_source import FolderSource
from epochal.trainers.sources.local_model import LocalFolder
from epochal.trainers.torch.torch_options import TorchOptions
from tests.support.models.local_training import SEED
from tests.support.models.model_files import write_model
from tests.support.models.tiny_llama import LLAMA

GPT2: dict[str, Any] = {
    **{"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    **{"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0},
}
"""A model whose layers keep their matrices transposed, and whose head is its embedding."""
ROW_TOKENS = 16
WITH_PEFT = f"""
import sys
sys.modules["epochal"] = None  # an import of it fails
import numpy, torch
from transformers import AutoModelForCausalLM
rows = torch.from_numpy(numpy.fromfile(sys.argv[1], "<u2").astype("int64")).view(-1, {ROW_TOKENS})
model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
if len(sys.argv) > 3:
    from peft import PeftModel
    model = PeftModel.from_pretrained(model, sys.argv[3])
with torch.no_grad():
    logits = model(input_ids=rows).logits[:, :-1]
print(float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())))
"""
"""A program of somebody else: the mean loss of rows in a file, by a base and maybe an adapter."""


def spec_with(config: dict[str, Any] = LLAMA, **lora: Any) -> ModelSpec:
    """Return the model of a run that trains an adapter; its base's files are not known yet."""
    return ModelSpec(architecture=Architecture.HF_AUTO, hf=config, adapter=Lora(**{"r": 4, "alpha": 8.0} | lora))


def loss_elsewhere(rows: Path, *folders: Path) -> float:
    """Return what a process without Epochal computes: the mean loss of rows of `ROW_TOKENS` tokens of two bytes.

    Args:
        rows: the file.
        folders: of a model, and maybe of an adapter of it.
    """
    command = [sys.executable, "-c", WITH_PEFT, str(rows), *map(str, folders)]
    ran = subprocess.run(command, cwd=rows.parent, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return float(ran.stdout)


def write_base(folder: Path, spec: ModelSpec, dtype: str = "F32", shards: int = 1) -> ModelSpec:
    """Write a base with random weights, and return the spec with its files."""
    weights = open_model(spec.whole).initial_parameters(SEED)
    names = list(weights)
    parts = [{name: weights[name] for name in names[number::shards]} for number in range(shards)]
    write_model(folder, *parts, code=dtype, config=spec.hf or {})
    return spec.model_copy(update={"base": FolderSource(LocalFolder(folder)).weight_files()})


def adapter_of(spec: ModelSpec, base: Path, scale: float = 0.05) -> Tensors:
    """Return an adapter's first tensors, moved at random, so that it changes what the base computes."""
    random = np.random.default_rng(7)
    first = open_model(spec, options=TorchOptions(base=base)).initial_parameters(SEED)
    return {
        name: (values + scale * random.standard_normal(values.shape)).astype(np.float32)
        for name, values in first.items()
    }
