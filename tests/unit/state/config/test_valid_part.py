"""What is valid of a state file with mistakes, and what is not supported in it."""

from typing import Any

import pytest

from epochal.state.config.model_table import Architecture
from epochal.state.config.support import unsupported_values
from epochal.state.config.valid_part import valid_part
from epochal.state.wire import document_digest
from tests.support.data.states import state_file, state_tables

TRAINED = {Architecture.EPOCHAL_NGRAM}
LLM = ("model", "LLM")


def test_valid_file_is_taken_as_it_is() -> None:
    state, wrong = valid_part(state_tables(model__LLM__max_seq_len=33))
    assert state is not None
    assert wrong == frozenset()
    assert document_digest(state.to_plain()) == document_digest(state_file(model__LLM__max_seq_len=33).to_plain())


@pytest.mark.parametrize(
    ("overrides", "part"),
    [
        ({"config__min_clients": -1}, ("config",)),
        ({"config__warmup_time": 10_000}, ("config",)),
        ({"access__keys": ["ab" * 32]}, ("access",)),
        ({"modle": {"LLM": 3}}, ("modle",)),
        ({"model__LLM__optimizer": "Adam"}, (*LLM, "optimizer")),
        ({"model__LLM__data_location": {"Locl": "x"}}, (*LLM, "data_location")),
        ({"packing__task_encoder": "a:B"}, ("packing",)),
        ({"model__LLM__architecture": "Custom"}, (*LLM, "architecture")),
        ({"model__LLM__custom": {"width": 3}}, (*LLM, "custom")),
    ],
)
def test_only_the_part_that_is_wrong_is_replaced(overrides: dict[str, Any], part: tuple[str, ...]) -> None:
    state, wrong = valid_part(state_tables(**({"model__LLM__max_seq_len": 33} | overrides)))
    assert state is not None
    assert part in wrong
    assert state.model.LLM.max_seq_len == 33


def test_part_that_is_missing_counts_as_wrong() -> None:
    tree = state_tables()
    del tree["model"]["LLM"]["data_location"]
    _, wrong = valid_part(tree)
    assert wrong == {(*LLM, "data_location")}


@pytest.mark.parametrize("tree", [{}, {"model": 3}, {"model": {"LLM": []}}, {"config": "x", "run_id": 7}])
def test_a_file_without_a_valid_part_stands_in_for_itself(tree: dict[str, Any]) -> None:
    state, wrong = valid_part(tree)
    assert state is not None
    assert (*LLM, "data_location") in wrong


def test_unsupported_values_are_found_beside_mistakes() -> None:
    tree = state_tables(
        config__min_clients="x", config__verification_percent=5, model__LLM__architecture="HfLlama", model__LLM__x=1
    )
    assert [found.path for found in unsupported_values(tree, TRAINED)] == [
        "config.verification_percent",
        "model.LLM.architecture",
    ]


@pytest.mark.parametrize("tree", [{}, {"model": 3}, {"run_id": 7, "config": {"verification_percent": "all"}}])
def test_what_is_no_value_at_all_is_not_unsupported(tree: dict[str, Any]) -> None:
    assert unsupported_values(tree, TRAINED) == ()
