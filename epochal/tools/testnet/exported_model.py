"""The last check of a run of a transformer: its model is exported, and loaded by `transformers` as anybody would."""

import asyncio
from pathlib import Path

import numpy as np

from epochal.coordinator.store.open import open_store_reader
from epochal.state.errors import EpochalError
from epochal.state.model.tensors import Tensors
from epochal.tools.checkpoints.checkpoint_parameters import read_parameters
from epochal.tools.checkpoints.readable_run import StoredRun
from epochal.tools.export.exporter import Exporter, ExportOptions
from epochal.trainers.first_parameters import model_layout
from epochal.trainers.sources.float_types import FloatType


async def export_and_load(store: str, out: Path) -> list[str]:
    """Export a store's newest checkpoint, load it again, and return what went wrong, each as a sentence.

    Args:
        store: holds the run; nobody serves it.
        out: the new folder.
    """
    run = StoredRun(open_store_reader(store))
    try:
        await Exporter(run, ExportOptions(out, FloatType.FLOAT32, {}), lambda _: None).once(None)
        view = await run.now()
        parameters = await read_parameters(run, view.checkpoints[-1], model_layout(view.spec))
    except EpochalError as error:
        return [f"the model could not be exported: {error.message}"]
    return await asyncio.to_thread(_differences, out, parameters)


def _differences(folder: Path, parameters: Tensors) -> list[str]:
    """Return how the parameters that `transformers` loads from a folder differ from those of the run."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        module = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        return [f"transformers does not load {folder}: {error}"]
    loaded = {name: one.detach().numpy() for name, one in module.named_parameters()}
    if loaded.keys() != parameters.keys():
        return [f"{folder} has other parameters than the run: {sorted(loaded.keys() ^ parameters.keys())}"]
    wrong = [name for name, one in loaded.items() if not np.array_equal(one, parameters[name])]
    return [f"{folder}: parameter {name} differs from the run's" for name in wrong]
