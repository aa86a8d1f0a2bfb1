"""Inner states as files, and how far apart two of them are."""

import numpy as np
import pytest

from epochal.state.model.tensors import InvalidTensorFile, TensorLayout, Tensors, encode_tensor_file
from epochal.state.replays.inner_states import (
    INNER_STATE_FORMAT,
    NO_INNER_STATE,
    InnerState,
    inner_state_size_bound,
    inner_state_stream,
    parse_inner_state,
    state_distance,
)
from epochal.state.replays.replay_distance import MAX_DISTANCE


def moments(scale: float = 1.0) -> Tensors:
    numbers = np.random.default_rng(1)
    made = {f"{kind}/{name}": numbers.standard_normal((3, 5)) for kind in ("first", "second") for name in "ab"}
    return {
        name: (values * (1e-6 if name.startswith("second") else scale)).astype(np.float32)
        for name, values in made.items()
    }


def test_inner_state_is_read_as_it_was_written() -> None:
    data = inner_state_stream(InnerState(30, moments())).to_bytes()
    found = parse_inner_state(data)
    assert found.step_count == 30
    assert {name: values.tobytes() for name, values in found.tensors.items()} == {
        name: values.tobytes() for name, values in moments().items()
    }
    assert len(data) <= inner_state_size_bound(TensorLayout((("a", (3, 5)), ("b", (3, 5)))))
    assert inner_state_stream(found).sha256() == inner_state_stream(InnerState(30, moments())).sha256()
    empty = parse_inner_state(inner_state_stream(NO_INNER_STATE).to_bytes())
    assert (empty.step_count, empty.tensors) == (0, {})


@pytest.mark.parametrize(
    ("metadata", "rule"),
    [
        ({"format": INNER_STATE_FORMAT}, "header"),
        ({"format": INNER_STATE_FORMAT, "step_count": "-1"}, "header"),
        ({"format": INNER_STATE_FORMAT, "step_count": "9" * 30}, "header"),
        ({"format": "epochal/result/v1", "step_count": "3"}, "format"),
    ],
)
def test_other_metadata_are_refused_by_the_name_of_a_rule(metadata: dict[str, str], rule: str) -> None:
    with pytest.raises(InvalidTensorFile) as refused:
        parse_inner_state(encode_tensor_file(moments(), metadata))
    assert refused.value.rule == rule


def test_distance_is_that_of_the_kind_of_moments_that_is_farthest() -> None:
    honest, other = InnerState(30, moments()), moments()
    other["second/a"] = other["second/a"] * np.float32(1.5)
    assert state_distance(honest, honest) == 0.0
    assert state_distance(InnerState(30, moments(1.01)), honest) == pytest.approx(0.01, rel=1e-3)
    assert 0.2 < state_distance(InnerState(30, other), honest) < 0.5


def test_states_that_cannot_be_compared_are_as_far_apart_as_can_be() -> None:
    honest, odd = InnerState(30, moments()), moments()
    odd["first/a"][1, 2] = np.nan
    fewer = {name: values for name, values in moments().items() if name != "first/a"}
    for found in (InnerState(29, moments()), InnerState(30, odd), InnerState(30, fewer), NO_INNER_STATE):
        assert state_distance(found, honest) == MAX_DISTANCE
