"""Packages with trainers, as if they were installed: a module and its metadata in a folder on the module path."""

import importlib
import sys
from pathlib import Path

import pytest

CUSTOM = {"trainer": "lab", "width": 3}
"""A table `[model.LLM.custom]` for the trainer `lab`."""

LAB_TRAINER = """
import numpy as np
from epochal.trainers.null import NullTrainer

class LabModel:
    vocabulary = None

    def __init__(self, spec):
        self.shapes = {"w": (spec.custom["width"],)}

    def initial_parameters(self, seed):
        return {"w": np.full(self.shapes["w"], seed[0], np.float32)}

    def learner(self):
        raise AssertionError("a null trainer asks for no learner")

class LabTrainer(NullTrainer):
    def __init__(self, setup, model):
        super().__init__(model)
        self.name, self.setup = setup.name, setup

    @classmethod
    def open(cls, setup):
        return cls(setup, LabModel(setup.spec) if setup.spec.custom else None)

    @staticmethod
    def open_model(spec, options):
        return LabModel(spec)

class OnlyTrains:
    open = LabTrainer.open

class Nested:
    Trainer = LabTrainer
"""
"""A module with a trainer that is a `NullTrainer`, and with a model of its own."""


def register(folder: Path, package: str, group: str, **entries: str) -> None:
    """Write the metadata of a package that registers entry points, of modules that are elsewhere on the module path."""
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = (f"{name} = {place}\n" for name, place in entries.items())
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{''.join(lines)}")


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str = LAB_TRAINER, package: str = "lab") -> None:
    """Install `package`, whose trainer is `lab`, the class `LabTrainer` of the module PACKAGE_trainer."""
    register(folder, f"{package}-trainer", "epochal.trainers", lab=f"{package}_trainer:LabTrainer")
    (folder / f"{package}_trainer.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, f"{package}_trainer", raising=False)
    importlib.invalidate_caches()
