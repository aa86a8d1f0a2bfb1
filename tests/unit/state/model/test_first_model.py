"""The spec of a run's model: whether it is complete, its document, and the first checkpoint that brings it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from epochal.state.config.model_table import ModelSpec
from epochal.state.errors import InvalidDocument
from epochal.state.model.first_model import (
    FirstDigest,
    FirstModel,
    first_checkpoint,
    model_digest,
    model_document,
    spec_of_document,
)
from epochal.state.model.replica import (
    checkpoint_bytes,
    checkpoint_size_bound,
    examine_checkpoint,
    first_replica,
    parse_checkpoint,
    replica_digest,
)
from epochal.state.model.tensors import CHECK_CHUNK_ELEMENTS, Float32Array
from epochal.state.wire import parse_document, sha256_hex
from tests.support.data.states import state_file

HF = {"model_type": "llama", "rope_theta": 10000.0, "eps": 1e-5, "layers": [1, 2], "tie": True, "name": 'a "ü" b'}
KNOWN = ModelSpec.model_validate({"architecture": "HfLlama", "hf": HF})
UNKNOWN = ModelSpec.model_validate({"architecture": "HfLlama"})
FIRST = first_replica(0, {"w": np.ones((2, 3), np.float32)})


def test_model_document_is_read_as_it_was_written() -> None:
    data = model_document(KNOWN)
    assert parse_document(ModelSpec, data) == KNOWN
    assert model_document(parse_document(ModelSpec, data)) == data
    assert model_digest(KNOWN) == sha256_hex(data)
    assert b'"rope_theta":10000.0' in data, "a number stays what it is"


def test_spec_is_incomplete_only_where_its_config_is_at_the_checkpoint() -> None:
    assert KNOWN.is_complete
    assert not UNKNOWN.is_complete
    hub, dummy = {"Hub": {"repo_id": "a/b"}}, {"Dummy": {"repo_id": "a/b"}}
    specs = [
        state_file(model__LLM__architecture=name, model__LLM__checkpoint=checkpoint).model.LLM.spec
        for name, checkpoint in (("EpochalNgram", hub), ("HfAuto", hub), ("HfAuto", dummy), ("HfAuto", "Dummy"))
    ]
    assert [spec.is_complete for spec in specs] == [True, False, True, True]


@pytest.mark.parametrize(
    ("change", "completes"),
    [
        ({}, True),
        ({"hf": {"model_type": "qwen3"}}, True),
        ({"hf": None}, False),
        ({"architecture": "HfAuto"}, False),
        ({"ngram": {"context": 3}}, False),
        ({"dummy": True}, False),
    ],
)
def test_spec_completes_one_without_a_config_that_is_otherwise_equal(change: dict[str, Any], completes: bool) -> None:
    assert ModelSpec.model_validate(KNOWN.to_plain() | change).completes(UNKNOWN) is completes


def test_spec_completes_a_complete_one_only_if_it_is_equal() -> None:
    assert KNOWN.completes(KNOWN)
    assert not ModelSpec.model_validate({"architecture": "HfLlama", "hf": {**HF, "tie": False}}).completes(KNOWN)


def test_first_checkpoint_brings_replica_and_spec() -> None:
    data = first_checkpoint(FirstModel.of(KNOWN, FIRST)).to_bytes()
    assert spec_of_document(examine_checkpoint(data).model) == KNOWN
    assert parse_checkpoint(data).parameters["w"].tobytes() == FIRST.parameters["w"].tobytes()
    assert len(data) <= checkpoint_size_bound(FIRST.layout, len(model_document(KNOWN)), has_momentum=True)


def test_checkpoint_without_a_model_document_brings_none() -> None:
    assert spec_of_document(examine_checkpoint(checkpoint_bytes(FIRST)).model) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"architecture": "HfLlama", "hf": {}}', '{"architecture": "X"}'])
def test_checkpoint_with_another_text_breaks_the_rule_model(text: str) -> None:
    with pytest.raises(InvalidDocument, match="not a valid ModelSpec") as caught:
        spec_of_document(examine_checkpoint(checkpoint_bytes(FIRST, text)).model)
    assert caught.value.context["rule"] == "model"


@pytest.mark.parametrize("has_momentum", [True, False])
def test_first_model_in_parts_has_the_bytes_and_the_digest_of_a_whole_one(has_momentum: bool) -> None:
    shapes = {"a": (3, 5), "b": (2,), "w": (CHECK_CHUNK_ELEMENTS + 7,)}
    drawn = np.random.default_rng(1).standard_normal
    parameters = {name: drawn(shape).astype(np.float32) for name, shape in shapes.items()}
    replica = first_replica(0, parameters, has_momentum)

    def parts() -> Iterator[tuple[str, Float32Array]]:
        for name, values in parameters.items():
            yield from ((name, part) for part in np.array_split(values.reshape(-1), 3) if part.size)

    whole, first = FirstModel.of(KNOWN, replica), FirstModel(KNOWN, 0, replica.layout, parts, has_momentum)
    assert first_checkpoint(first).to_bytes() == first_checkpoint(whole).to_bytes()
    assert replica_digest(first.replica) == replica_digest(replica)
    digest = FirstDigest(first)
    for name, values in first.parameters():
        digest.add(name, values)
    assert digest.hexdigest() == replica_digest(replica)
