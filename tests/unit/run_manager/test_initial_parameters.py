"""The parameters that a run starts from, loaded from files."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from run_manager.steps.warmup import load_parameters
from state.errors import InvalidInput
from state.replica import Replica, checkpoint_bytes

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_parameters_of_a_checkpoint_are_those_of_its_replica(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(checkpoint_bytes(Replica(7, {"w": VALUES}, {"w": VALUES + 1})))
    loaded = load_parameters(path)
    assert list(loaded) == ["w"]
    assert np.array_equal(loaded["w"], VALUES)


def test_parameters_of_a_safetensors_file_are_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"b": VALUES[0].copy(), "a": VALUES}, path)
    loaded = load_parameters(path)
    assert {name: values.shape for name, values in loaded.items()} == {"a": (2, 3), "b": (3,)}
    assert np.array_equal(loaded["a"], VALUES)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_parameters_that_are_not_finite_are_refused_by_name(tmp_path: Path, bad: float) -> None:
    path = tmp_path / "model.safetensors"
    values = VALUES.copy()
    values[1, 2] = bad
    save_file({"fine": VALUES, "spoiled": values}, path)
    with pytest.raises(InvalidInput, match=r"model\.safetensors: 'spoiled' has values that are not finite"):
        load_parameters(path)


@pytest.mark.parametrize("data", [b"", b"no tensors", b"\xff" * 64])
def test_parameters_file_that_holds_something_else_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"model\.safetensors"):
        load_parameters(path)


def test_parameters_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.safetensors: No such file"):
        load_parameters(tmp_path / "absent.safetensors")
