"""The distance of a result from its replay: what a codec explains is nothing, and everything else counts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.state.codecs import codec as codec_parts
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.errors import InvalidInput
from epochal.state.model.tensors import Float32Array, Tensors, layout_of
from epochal.state.replays.replay_distance import MAX_DISTANCE, ReplayDistance, replay_distance
from epochal.state.results import Difference, ResultHeader, decode_result, result_of

COMPARABLE = ("float32", "int8", "int4", "int2")
MAX_ABS = 1e4


def result_with(codec: str, difference: Tensors, max_abs: float = MAX_ABS) -> Difference:
    header = ResultHeader("demo", 7, 2, "ab" * 16, "cd" * 32, "ef" * 32, codec)
    return decode_result(result_of(header, difference, max_abs).to_bytes(), layout_of(difference))[1]


def noise(seed: int, scale: float = 1.0) -> Tensors:
    numbers = np.random.default_rng(seed)
    shapes = {"a": (3, 211), "b": (1,), "c": (1024,)}
    return {name: (scale * numbers.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def scaled(difference: Tensors, factor: float) -> Tensors:
    return {name: values * np.float32(factor) for name, values in difference.items()}


finite = st.floats(-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max), width=32)


@given(
    codec=st.sampled_from(COMPARABLE),
    values=st.lists(finite, min_size=1, max_size=600),
    max_abs=st.sampled_from([1e-3, 1.0, MAX_ABS, math.inf]),
)
@settings(max_examples=150)
def test_who_computes_the_same_is_at_no_distance_with_every_codec(
    codec: str, values: list[float], max_abs: float
) -> None:
    difference = {"w": np.clip(np.array(values, np.float32), -np.float32(max_abs), np.float32(max_abs))}
    found = replay_distance(result_with(codec, difference, max_abs), difference, max_abs)
    assert found.excess == 0.0


@pytest.mark.parametrize("codec", COMPARABLE)
def test_distance_is_the_definition_s(codec: str) -> None:
    replay, sent = noise(1), noise(1)
    sent["a"] += np.float32(0.3) * noise(2)["a"]
    result = result_with(codec, sent)
    squares, of_result, of_replay, product = 0.0, 0.0, 0.0, 0.0
    for name, wanted in replay.items():
        values = result[name]
        decoded = values if isinstance(values, np.ndarray) else values.values()
        for place, d in enumerate(wanted.reshape(-1).tolist()):
            r = float(decoded.reshape(-1)[place])
            squares += max(0.0, abs(r - d) - explained(codec, sent[name], wanted, place)) ** 2
            of_result, of_replay, product = of_result + r * r, of_replay + d * d, product + r * d
    found = replay_distance(result, replay, MAX_ABS)
    assert found.excess > 0
    assert found.excess == pytest.approx(math.sqrt(squares / of_replay), rel=1e-6)
    assert found.norm_ratio == pytest.approx(math.sqrt(of_result / of_replay), rel=1e-9)
    assert found.cosine == pytest.approx(product / math.sqrt(of_result * of_replay), rel=1e-9)


def explained(codec: str, sent: Float32Array, wanted: Float32Array, place: int) -> float:
    """Return what a codec explains of one value, by its blocks of 256."""
    if codec == "float32":
        return 0.0
    start = place // 256 * 256
    own = wanted.reshape(-1)[start : start + 256]
    left = abs(float(decoded(codec, own)[place - start]) - float(wanted.reshape(-1)[place]))
    return max(left, min(step(codec, sent.reshape(-1)[start : start + 256]), step(codec, own)) / 2)


def decoded(codec: str, values: Float32Array) -> Float32Array:
    found = codec_named(codec)
    return found.decode(found.encode(values), values.size, 0, np.empty(values.size, np.float32))


def step(codec: str, values: Float32Array) -> float:
    if codec == "int2":
        return 2 * float(np.abs(decoded(codec, values)).min())
    return float(np.abs(values).max()) / {"int8": 127, "int4": 7}[codec]


def test_float32_gives_the_plain_distance() -> None:
    replay = {"w": np.array([3.0, 0.0, -4.0], np.float32)}
    sent = {"w": np.array([3.0, 1.0, -4.0], np.float32)}
    assert replay_distance(result_with("float32", sent), replay, MAX_ABS) == ReplayDistance(
        0.2, math.sqrt(26) / 5, 25 / (5 * math.sqrt(26))
    )


def test_int4_explains_half_of_the_smaller_step() -> None:
    replay = {"w": np.array([7.0, 0.0], np.float32)}  # steps of 1
    sent = {"w": np.array([14.0, 0.0], np.float32)}  # steps of 2
    assert replay_distance(result_with("int4", sent), replay, MAX_ABS) == ReplayDistance(6.5 / 7, 2.0, 1.0)
    assert replay_distance(result_with("int4", replay), sent, MAX_ABS) == ReplayDistance(6.5 / 14, 0.5, 1.0)


@pytest.mark.parametrize(
    ("codec", "lie", "least"),
    [
        ("int4", scaled(noise(1), -1.0), 1.7),
        ("int4", noise(3), 1.1),
        ("int4", scaled(noise(1), 0.0), 0.85),
        ("int4", scaled(noise(1), 0.5), 0.35),
        ("int4", scaled(noise(1), 1000.0), 900.0),
        ("int8", scaled(noise(1), 0.5), 0.45),
        ("int2", scaled(noise(1), 1e-6), 0.4),
        ("int2", scaled(noise(1), 1000.0), 400.0),
    ],
)
def test_lies_are_far_away(codec: str, lie: Tensors, least: float) -> None:
    assert replay_distance(result_with(codec, lie), noise(1), MAX_ABS).excess > least


@pytest.mark.parametrize("codec", COMPARABLE)
def test_parts_make_no_difference(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result, replay = result_with(codec, noise(1)), noise(2)
    whole = replay_distance(result, replay, MAX_ABS)
    monkeypatch.setattr(codec_parts, "ENCODED_VALUES", 256)
    found = replay_distance(result, replay, MAX_ABS)
    assert (found.excess, found.cosine) == pytest.approx((whole.excess, whole.cosine), rel=1e-12)


def test_replay_without_length_is_at_the_largest_distance() -> None:
    nothing, something = {"w": np.zeros(3, np.float32)}, {"w": np.ones(3, np.float32)}
    assert replay_distance(result_with("float32", nothing), nothing, MAX_ABS) == ReplayDistance(0.0, 1.0, 1.0)
    assert replay_distance(result_with("int4", nothing), nothing, MAX_ABS) == ReplayDistance(0.0, 1.0, 1.0)
    found = replay_distance(result_with("float32", something), nothing, MAX_ABS)
    assert found == ReplayDistance(MAX_DISTANCE, MAX_DISTANCE, 0.0)
    assert replay_distance(result_with("float32", nothing), something, MAX_ABS) == ReplayDistance(1.0, 0.0, 0.0)


def test_sparse_results_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="codec sparse-64 cannot be compared"):
        replay_distance(result_with("sparse-64", noise(1)), noise(1), MAX_ABS)
