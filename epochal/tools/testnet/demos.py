"""The runs of `epochal up`, by trainer: their state files, and how their clients compute."""

import json
import os
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import tomli

from epochal.state.config.model_table import Architecture
from epochal.state.errors import ExtraMissing, InvalidInput
from epochal.trainers.architectures import ARCHITECTURES, TORCH
from epochal.trainers.registry import REMOTE, check_trainer_name

THREADS_VARIABLE = "OMP_NUM_THREADS"
EXTRA = "pip install 'epochal[torch]'"


@dataclass(frozen=True, slots=True)
class Demo:
    """A run that `epochal up` starts.

    Attributes:
        state_name: the name of its state file in this folder.
        config_name: the name of its model's Hugging Face config in this folder; None for the embedded model.
    """

    state_name: str
    config_name: str | None = None

    def tables(self) -> dict[str, Any]:
        """Return the state file's tables, with the model's config among them."""
        folder = files("epochal.tools.testnet")
        tables = tomli.loads((folder / self.state_name).read_text(encoding="utf-8"))
        if self.config_name is not None:
            tables["model"]["LLM"]["hf"] = json.loads((folder / self.config_name).read_text(encoding="utf-8"))
        return tables

    def client_environment(self, client_count: int) -> dict[str, str]:
        """Return the variables with which each of so many clients takes its share of this machine's cores."""
        if self.config_name is None:
            return {}
        share = max(1, (os.cpu_count() or 1) // client_count)
        return {THREADS_VARIABLE: os.environ.get(THREADS_VARIABLE) or str(share)}


EMBEDDED_DEMO = Demo("demo_state.toml")
LLAMA_DEMO = Demo("demo_torch_state.toml", "demo_llama.json")


def demo_of(trainer: str) -> Demo:
    """Return the run that this trainer trains: the Llama for `torch`, the embedded model for the others.

    Raises:
        InvalidInput: there is no such trainer, it does not train a run of `epochal up`, or libraries that it needs are
            not installed; the message says what to do.
    """
    check_trainer_name(trainer)
    if trainer == REMOTE:
        raise InvalidInput(
            f"epochal up starts no training service for --trainer {REMOTE}; allowed: numpy, torch, null, or a trainer "
            "of a package that trains the embedded model",
            trainer=trainer,
        )
    if trainer != TORCH:
        return EMBEDDED_DEMO
    if missing := ARCHITECTURES[Architecture.HF_LLAMA].missing_modules():
        raise ExtraMissing(f"--trainer torch needs {' and '.join(missing)}: {EXTRA}", trainer=trainer)
    return LLAMA_DEMO
