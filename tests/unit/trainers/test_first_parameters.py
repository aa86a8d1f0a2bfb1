"""The model that a run starts from: made from a seed, or read from folders and files."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from epochal.state.config.model_table import Architecture, NgramConfig
from epochal.state.config.state_file import StateFile
from epochal.state.errors import InvalidDocument, InvalidInput, Unsupported
from epochal.state.model.replica import Replica, checkpoint_bytes, first_replica, replica_digest
from epochal.state.model.tensors import Tensors
from epochal.trainers.architectures import ARCHITECTURES
from epochal.trainers.first_parameters import (
    check_first_step,
    check_trainable,
    look_at_source,
    make_first_model,
    model_layout,
)
from epochal.trainers.learner import ModelInParts
from epochal.trainers.ngram.learner import NgramModel
from epochal.trainers.sources.local_model import local_source
from tests.support.data.states import state_file
from tests.support.heavy import need_module
from tests.support.models.bag_of_bytes import ENTRY, WEIGHT, BagOfBytes
from tests.support.models.model_files import write_model
from tests.support.models.tiny_llama import LLAMA, plain_llama

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
TINY = state_file(model__LLM__ngram={"context": 2, "embedding": 4, "hidden": 8})
SPEC = TINY.model.LLM.spec


def tiny_at(path: Path) -> StateFile:
    """The state file of `TINY` whose first parameters are at this path."""
    return state_file(model__LLM__ngram=TINY.model.LLM.ngram.model_dump(), model__LLM__checkpoint={"Local": str(path)})


def tiny_parameters() -> Tensors:
    return make_first_model(TINY, 0, seed=7).replica.parameters


def test_first_replica_is_the_same_for_the_same_state_file_and_seed() -> None:
    default, again, seeded = (replica_digest(make_first_model(TINY, 0, seed).replica) for seed in (None, None, 7))
    assert default == again
    assert default != seeded
    assert seeded == replica_digest(make_first_model(TINY, 0, 7).replica)
    assert make_first_model(TINY, 4).replica.step == 4
    assert make_first_model(TINY, 0).replica.layout == model_layout(SPEC)
    assert make_first_model(TINY, 0).spec == SPEC


def test_parameters_made_from_a_seed_come_in_parts() -> None:
    model = NgramModel(NgramConfig(context=2, embedding=4, hidden=1_100))
    parts = list(model.initial_parts(bytes(32)))
    assert max(part.size for _, part in parts) < max(math.prod(shape) for shape in model.shapes.values())
    whole = model.initial_parameters(bytes(32))
    for name, values in whole.items():
        made = np.concatenate([part for each, part in parts if each == name])
        assert np.array_equal(made, values.reshape(-1))
    assert isinstance(model, ModelInParts)


def test_first_replica_is_read_from_the_file_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    path.write_bytes(checkpoint_bytes(make_first_model(TINY, 3, seed=7).replica))
    expected = replica_digest(make_first_model(TINY, 0, seed=7).replica)
    assert replica_digest(make_first_model(tiny_at(path), 0).replica) == expected
    assert replica_digest(make_first_model(TINY, 0, source=local_source(path)).replica) == expected


def test_first_replica_is_read_from_a_folder(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tiny_parameters())
    found = make_first_model(tiny_at(folder), 0)
    assert replica_digest(found.replica) == replica_digest(make_first_model(TINY, 0, seed=7).replica)
    assert found.spec == SPEC, "the embedded model's size is in the state file"
    assert look_at_source(tiny_at(folder)) == SPEC


def test_seed_does_not_go_with_parameters_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    save_file(tiny_parameters(), path)
    with pytest.raises(InvalidInput, match=r"a seed does not go with .*start\.safetensors"):
        make_first_model(tiny_at(path), 0, seed=7)


def enormous() -> Tensors:
    return {name: np.full(shape, 2e4, np.float32) for name, shape in model_layout(SPEC).entries}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"w": VALUES}, r"does not hold the weights of the run's model: .*'embedding'"),
        (enormous(), r"larger than merge\.max_abs"),
    ],
)
def test_file_of_another_model_or_of_enormous_values_is_refused(tmp_path: Path, tensors: Tensors, words: str) -> None:
    path = tmp_path / "start.safetensors"
    save_file(tensors, path)
    with pytest.raises(InvalidInput, match=rf"start\.safetensors.*{words}"):
        dict(make_first_model(TINY, 0, source=local_source(path)).parameters())


# Models whose config is at the source


@pytest.fixture
def bag(monkeypatch: pytest.MonkeyPatch) -> Tensors:
    """The parameters of a model whose architecture is HfLlama, and that needs no library."""
    monkeypatch.setitem(ARCHITECTURES, Architecture.HF_LLAMA, ENTRY)
    return BagOfBytes().initial_parameters(bytes(32))


def llama_at(folder: Path, **overrides: Any) -> StateFile:
    local = {"model__LLM__architecture": "HfLlama", "model__LLM__checkpoint": {"Local": str(folder)}}
    return state_file(**(local | overrides))


def test_config_comes_from_the_folder_of_the_weights(tmp_path: Path, bag: Tensors) -> None:
    config = {"model_type": "bag", "rope_theta": 10000.0, "rope_scaling": None}
    state = llama_at(write_model(tmp_path / "model", bag, config=config))
    found = make_first_model(state, 0)
    assert found.spec.hf == config
    assert found.spec.completes(state.model.LLM.spec)
    assert found.replica.parameters[WEIGHT].tobytes() == bag[WEIGHT].tobytes()
    assert look_at_source(state) == found.spec


def test_config_in_the_state_file_takes_precedence(tmp_path: Path, bag: Tensors) -> None:
    mine = {"model_type": "bag", "dropout": 0.5}
    state = llama_at(write_model(tmp_path / "model", bag), model__LLM__hf=mine)
    assert make_first_model(state, 0).spec.hf == mine


@pytest.mark.parametrize("config", [{}, {"model_type": 3}, {"model_type": "bag", "x": "x" * 300_000}])
def test_config_that_is_none_is_refused_by_the_folders_name(tmp_path: Path, bag: Tensors, config: Any) -> None:
    state = llama_at(write_model(tmp_path / "model", bag, config=config))
    with pytest.raises(InvalidInput, match=r"model.*config\.json"):
        make_first_model(state, 0)


def test_one_file_without_a_config_names_what_is_missing(tmp_path: Path, bag: Tensors) -> None:
    path = tmp_path / "start.safetensors"
    save_file(bag, path)
    with pytest.raises(InvalidInput, match=r"has no config\.json.*\[model\.LLM\.hf\]"):
        make_first_model(llama_at(path), 0)
    found = make_first_model(llama_at(path, model__LLM__hf={"model_type": "bag"}), 0)
    assert found.replica.parameters[WEIGHT].tobytes() == bag[WEIGHT].tobytes()


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bag", "max_position_embeddings": 7},
        {"model_type": "bag", "n_positions": 7},
        {"model_type": "bag", "text_config": {"max_position_embeddings": 7}},
    ],
)
def test_samples_longer_than_the_models_positions_are_refused(tmp_path: Path, bag: Tensors, config: Any) -> None:
    message = r"model\.LLM\.max_seq_len is 8; .* = 7, so allowed: at most 7"
    with pytest.raises(InvalidInput, match=message):
        make_first_model(llama_at(write_model(tmp_path / "m", bag, config=config), model__LLM__max_seq_len=8), 0)
    made = {"model__LLM__architecture": "HfLlama", "model__LLM__hf": config}
    with pytest.raises(InvalidInput, match=message):
        make_first_model(state_file(**made, model__LLM__max_seq_len=8), 0)
    assert make_first_model(state_file(**made, model__LLM__max_seq_len=7), 0).spec.hf == config


TOKENIZER = {"model": {"vocab": {"a": 0, "b": 256}}, "added_tokens": []}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", TOKENIZER),
        ("tokenizer.json", {"model": {"vocab": [["a", 0.0]] * 257}}),
        ("vocab.json", {"a": 0, "b": 256}),
    ],
)
def test_tokenizer_larger_than_the_vocabulary_is_refused_by_name(
    tmp_path: Path, bag: Tensors, name: str, content: Any
) -> None:
    folder = write_model(tmp_path / "model", bag)
    (folder / name).write_text(json.dumps(content))
    message = rf"model/{name} is a tokenizer of tokens from 0 to 256; .* vocab_size is 256, so allowed: .* 0 to 255"
    for opened in (lambda state: make_first_model(state, 0), look_at_source):
        with pytest.raises(InvalidInput, match=message):
            opened(llama_at(folder))


@pytest.mark.parametrize("text", ['{"model"', "[]", "{}", '{"model": 3}', '{"model": {"vocab": {"a": "b"}}}'])
def test_tokenizer_of_unknown_form_is_no_obstacle(tmp_path: Path, bag: Tensors, text: str) -> None:
    folder = write_model(tmp_path / "model", bag)
    (folder / "tokenizer.json").write_text(text)
    assert look_at_source(llama_at(folder)).is_complete


def test_model_without_a_config_is_not_made_from_a_seed(bag: Tensors) -> None:
    with pytest.raises(Unsupported, match=r"model\.LLM\.hf is missing; allowed: a table with the keys"):
        make_first_model(state_file(model__LLM__architecture="HfLlama"), 0)


def test_dummy_model_needs_no_config_and_no_library() -> None:
    state = state_file(model__LLM__architecture="HfDeepseek", model__LLM__checkpoint={"Dummy": {"repo_id": "a/b"}})
    found = make_first_model(state, 0)
    assert found.spec.is_complete
    assert list(found.replica.parameters) == ["dummy"]
    check_trainable(found.spec, found.replica)
    check_first_step(state, found.replica)


def test_client_refuses_a_checkpoint_on_which_nobody_can_train() -> None:
    honest = make_first_model(TINY, 0).replica
    check_trainable(SPEC, honest)
    check_first_step(TINY, honest)
    huge = {name: np.full_like(values, 3e38) for name, values in honest.parameters.items()}
    with pytest.raises(InvalidDocument, match=r"step 0 .* larger than merge\.max_abs.*Tell the run's operator"):
        check_first_step(TINY, first_replica(0, huge))
    check_first_step(TINY, first_replica(9, huge))  # later values follow from results, which are bounded
    with pytest.raises(InvalidDocument, match="another model than the state file describes"):
        check_trainable(SPEC, first_replica(9, {"w": VALUES}))
    with pytest.raises(InvalidDocument, match="momentum is not zero"):
        check_first_step(TINY, Replica(0, honest.parameters, honest.parameters))


# Models of transformers


def saved_llama(folder: Path, **changed: Any) -> Path:
    """A folder that transformers saved: a tiny Llama with these values in its config."""
    need_module("transformers")
    plain_llama(
        make_first_model(state_file(**llama_state(**changed)), 0).replica.parameters, **changed
    ).save_pretrained(folder)
    return folder


def llama_state(**changed: Any) -> dict[str, Any]:
    return {"model__LLM__architecture": "HfLlama", "model__LLM__hf": LLAMA | changed}


@pytest.mark.parametrize("is_tied", [False, True])
def test_folder_that_transformers_saved_is_the_first_model(tmp_path: Path, is_tied: bool) -> None:
    folder = saved_llama(tmp_path / "llama", tie_word_embeddings=is_tied)
    found = make_first_model(llama_at(folder), 0)
    made = make_first_model(state_file(**llama_state(tie_word_embeddings=is_tied)), 0)
    assert replica_digest(found.replica) == replica_digest(made.replica)
    assert found.spec.hf is not None
    assert found.spec.hf["model_type"] == "llama"
    assert model_layout(found.spec) == model_layout(made.spec)
