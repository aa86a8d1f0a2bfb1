"""The parameters that a run starts from: made from a seed, or loaded from files."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from state.errors import InvalidDocument, InvalidInput
from state.replica import Replica, checkpoint_bytes, first_replica, replica_digest
from tests.support.states import state_file
from trainers.genesis import check_trainable, load_parameters, make_first_model, model_layout

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


TINY = state_file(model__LLM__ngram={"context": 2, "embedding": 4, "hidden": 8})
SPEC = TINY.model.LLM.spec


def test_first_replica_is_the_same_for_the_same_state_file_and_seed() -> None:
    default, again, seeded = (replica_digest(make_first_model(TINY, 0, seed).replica) for seed in (None, None, 7))
    assert default == again
    assert default != seeded
    assert seeded == replica_digest(make_first_model(TINY, 0, 7).replica)
    assert make_first_model(TINY, 4).replica.step == 4
    assert make_first_model(TINY, 0).replica.layout == model_layout(SPEC)


def test_first_replica_is_loaded_from_the_file_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    path.write_bytes(checkpoint_bytes(make_first_model(TINY, 3, seed=7).replica))
    named = state_file(model__LLM__ngram=TINY.model.LLM.ngram.model_dump(), model__LLM__checkpoint={"Local": str(path)})
    expected = replica_digest(make_first_model(TINY, 0, seed=7).replica)
    assert replica_digest(make_first_model(named, 0).replica) == expected
    assert replica_digest(make_first_model(TINY, 0, file=path).replica) == expected


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"w": VALUES}, r"another model .* no 'embedding' of shape .* and 3 more differences"),
        ({name: np.full(shape, 2e4, np.float32) for name, shape in model_layout(SPEC).entries}, "larger than merge"),
    ],
)
def test_file_of_another_model_or_of_enormous_values_is_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], words: str
) -> None:
    path = tmp_path / "start.safetensors"
    save_file(tensors, path)
    with pytest.raises(InvalidInput, match=rf"start\.safetensors: .*{words}"):
        make_first_model(TINY, 0, file=path)


def test_client_refuses_a_checkpoint_on_which_nobody_can_train() -> None:
    honest = make_first_model(TINY, 0).replica
    check_trainable(TINY, SPEC, honest)
    enormous = {name: np.full_like(values, 3e38) for name, values in honest.parameters.items()}
    with pytest.raises(InvalidDocument, match=r"step 0 .* larger than merge\.max_abs.*Tell the run's operator"):
        check_trainable(TINY, SPEC, first_replica(0, enormous))
    check_trainable(
        TINY, SPEC, first_replica(9, enormous)
    )  # later values follow from results, which are bounded themselves
    with pytest.raises(InvalidDocument, match="another model than the state file describes"):
        check_trainable(TINY, SPEC, first_replica(9, {"w": VALUES}))
    with pytest.raises(InvalidDocument, match="momentum is not zero"):
        check_trainable(TINY, SPEC, Replica(0, honest.parameters, honest.parameters))
