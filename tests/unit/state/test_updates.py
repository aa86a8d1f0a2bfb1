"""Updates: the weighted mean of results, encoded. Golden vectors, and oracles that round step by step."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.runtime.side_by_side import side_by_side
from epochal.state import merging
from epochal.state.codecs.codec import EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.errors import InternalError, InvalidDocument
from epochal.state.merging import CHUNK_ELEMENTS, Diverged
from epochal.state.model.tensors import Float32Array, TensorLayout, layout_of
from epochal.state.results import Difference
from epochal.state.updates import (
    UpdateHeader,
    UpdateRule,
    UpdateSum,
    Weight,
    decode_update,
    ratio_as_float32,
    update_bytes,
    update_size_bound,
)
from epochal.state.wire import sha256_hex

COUNT = 200
SIZE = CHUNK_ELEMENTS + 4096 + 77
HEADER = UpdateHeader("run", 5, "ab" * 32, "float32")
seeds = st.lists(st.integers(0, 2**32), min_size=1, max_size=5)
batch_counts = st.integers(1, 9) | st.integers(1, 2**60)
merge_factors = st.sampled_from([1.0, 0.5, 2.0**-126]) | st.floats(2.0**-126, 1, width=32)
weights = st.integers(1, 1000) | st.integers(1, 2**62)

Result = tuple[Weight, Difference]


def floats_of(text: str) -> Float32Array:
    """The float32 values whose big-endian bits stand in hex, as one writes numbers."""
    return np.array([int(word, 16) for word in text.split()], np.uint32).view(np.float32)


def bits_of(array: Float32Array) -> str:
    return " ".join(f"{word:08x}" for word in array.reshape(-1).view(np.uint32))


def update_over(results: Sequence[Result], codec: str = "float32", mean: Literal["all", "senders"] = "all") -> bytes:
    """The update of one tensor `w`, or of what the first result has."""
    header, rule = replace(HEADER, codec=codec), UpdateRule(codec, mean)
    return update_bytes(header, rule, layout_of_result(results[0][1]), results)


def layout_of_result(difference: Difference) -> TensorLayout:
    return TensorLayout(tuple((name, difference[name].shape) for name in sorted(difference)))


def mean_over(results: Sequence[Result], mean: Literal["all", "senders"] = "all") -> Float32Array:
    values = decode_update(update_over(results, mean=mean), HEADER, layout_of_result(results[0][1]))["w"]
    assert not isinstance(values, EncodedTensor)
    return values.reshape(-1)


def encoded(codec: str, seed: int, size: int, scale: float = 1.0) -> EncodedTensor:
    values = (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)
    return EncodedTensor(codec_named(codec), (size,), codec_named(codec).encode(values))


def nearest(exact: Fraction | int) -> np.float32:
    """The float32 nearest to a positive number, ties to even, found by comparing neighbours."""
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(0)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(around, key=lambda one: (abs(Fraction(float(one)) - exact), int(one.view(np.uint32)) & 1))


def oracle(
    tensors: Sequence[Float32Array], counts: Sequence[int], factors: Sequence[float], *, senders: bool = False
) -> Float32Array:
    """Each value on its own, rounded step by step."""
    means = []
    with np.errstate(all="ignore"):
        for column in zip(*(values.tolist() for values in tensors), strict=True):
            total, counted = np.float32(0.0), 0
            for count, factor, value in zip(counts, factors, column, strict=True):
                if senders and not value:
                    continue
                weight = np.float32(nearest(count) * np.float32(factor))
                total = np.float32(total + np.float32(weight * np.float32(value)))
                counted += count
            means.append(np.float32(total / nearest(counted)) if counted else np.float32(0.0))
    return np.array(means, np.float32)


# d₁ and d₂ of 1 and 2 batches: ordinary numbers; a sum that rounds; denormals; the smallest; signs of zero.
GOLDEN_FIRST = "3e99999a 33d6bf95 00000007 00000001 80000000"
GOLDEN_SECOND = "be4ccccd 3f7fffff 800fffff 00000003 80000000"
GOLDEN_MEAN = "bd088888 3f2aaaab 800aaaa8 00000002 00000000"
GOLDEN_FACTORED = "3d638e39 3e638e3b 80038e36 00000001 00000000"
GOLDEN_INT4 = "3fb7ed1d99b4028141c374fe11292740eaffd14c0672eb3009afeef0b9dd215e"
GOLDEN_INT8 = "61896cad273f57e4464384fac27f63d13deff075628bbd285cefe9c2f6bd37d1"


def golden(factor: float = 1.0) -> list[Result]:
    return [(Weight(1), {"w": floats_of(GOLDEN_FIRST)}), (Weight(2, factor), {"w": floats_of(GOLDEN_SECOND)})]


def test_update_golden_vectors_are_kept() -> None:
    tensors = [floats_of(GOLDEN_FIRST), floats_of(GOLDEN_SECOND)]
    third = float(np.float32(1 / 3))
    assert bits_of(mean_over(golden())) == GOLDEN_MEAN == bits_of(oracle(tensors, [1, 2], [1.0, 1.0]))
    assert bits_of(mean_over(golden(third))) == GOLDEN_FACTORED == bits_of(oracle(tensors, [1, 2], [1.0, third]))
    assert sha256_hex(update_over(golden(), "int4")) == GOLDEN_INT4
    assert sha256_hex(update_over(golden(), "int8")) == GOLDEN_INT8


@given(seeds=seeds, scale=st.sampled_from([1.0, 1e-38, 1e-30]), data=st.data())
def test_mean_agrees_with_the_oracle_bit_for_bit(seeds: list[int], scale: float, data: st.DataObject) -> None:
    """Dense, and index by index where a result is sparse."""
    codec = data.draw(st.sampled_from(["sparse-1000", "int8"]))
    tensors = [encoded(codec, seed, COUNT, scale) for seed in seeds]
    counts, factors = [data.draw(batch_counts) for _ in seeds], [data.draw(merge_factors) for _ in seeds]
    results = [(Weight(count, factor), {"w": one}) for count, factor, one in zip(counts, factors, tensors, strict=True)]
    assert bits_of(mean_over(results)) == bits_of(oracle([one.values() for one in tensors], counts, factors))


@given(seeds=seeds, data=st.data())
def test_mean_over_senders_agrees_with_the_oracle_bit_for_bit(seeds: list[int], data: st.DataObject) -> None:
    tensors = [encoded("sparse-1000", seed, COUNT) for seed in seeds]
    counts, factors = [data.draw(batch_counts) for _ in seeds], [data.draw(merge_factors) for _ in seeds]
    results = [(Weight(count, factor), {"w": one}) for count, factor, one in zip(counts, factors, tensors, strict=True)]
    expected = oracle([one.values() for one in tensors], counts, factors, senders=True)
    assert bits_of(mean_over(results, "senders")) == bits_of(expected)


def test_mean_over_senders_gives_a_lone_sender_its_full_weight() -> None:
    def sparse(values: dict[int, float]) -> EncodedTensor:
        codec, array = codec_named(f"sparse-{4096 * len(values) // COUNT}"), np.zeros(COUNT, np.float32)
        for index, value in values.items():
            array[index] = value
        return EncodedTensor(codec, (COUNT,), codec.encode(array))

    tensors = [sparse({3: 4.0, 5: 4.0}), sparse({5: 8.0, 9: 8.0})]
    mean = mean_over([(Weight(count), {"w": one}) for count, one in zip((1, 3), tensors, strict=True)], "senders")
    assert {int(index): float(mean[index]) for index in np.nonzero(mean)[0]} == {3: 4.0, 5: 7.0, 9: 8.0}


@pytest.mark.parametrize("mean", ["all", "senders"])
@pytest.mark.parametrize("codec", ["float32", "int8", "int4"])
def test_update_does_not_depend_on_chunks(codec: str, mean: Literal["all", "senders"]) -> None:
    """A tensor of several chunks has the bytes that its values have when they are averaged and encoded at once."""
    tensors = [encoded("sparse-64", seed, SIZE) for seed in range(3)]
    results: list[Result] = [(Weight(3), {"w": one}) for one in tensors]
    header, layout = replace(HEADER, codec=codec), layout_of_result(results[0][1])
    found = decode_update(update_over(results, codec, mean), header, layout)["w"]
    wanted = codec_named(codec).encode(mean_over(results, mean))
    assert np.array_equal(found.block if isinstance(found, EncodedTensor) else found, wanted)


def test_order_of_the_outcome_matters_and_is_kept() -> None:
    large, small, other = ((Weight(1), {"w": np.array([x], np.float32)}) for x in (1e8, 1.0, -1e8))
    assert float(mean_over([large, other, small])[0]) == float(nearest(Fraction(1, 3)))
    assert float(mean_over([large, small, other])[0]) == 0


@pytest.mark.parametrize("codec", ["int4", "sparse-64"])
def test_sum_is_the_same_if_threads_add_its_pieces(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PIECE_ELEMENTS", CHUNK_ELEMENTS)
    sizes = {"a": 300, "b": 3 * CHUNK_ELEMENTS + 77, "c": CHUNK_ELEMENTS}
    layout, found = TensorLayout(tuple((name, (size,)) for name, size in sizes.items())), list[Float32Array]()
    results = [{name: encoded(codec, seed, size) for name, size in sizes.items()} for seed in range(3)]
    for over in (map, partial(side_by_side, thread_count=3)):
        sums = np.zeros(sum(sizes.values()), np.float32)
        total = UpdateSum(layout, "all", sums, None)
        for count, result in enumerate(results, 1):
            total.add(Weight(count, 0.3), result, over=over)
        found.append(sums)
    assert found[0].any()
    assert np.array_equal(found[0].view(np.uint32), found[1].view(np.uint32))


@given(weights, weights)
def test_ratio_is_the_float32_nearest_to_the_exact_one(one: int, other: int) -> None:
    assert ratio_as_float32(one, one + other) == nearest(Fraction(one, one + other))


def test_ratio_is_rounded_once_unlike_a_float64_quotient() -> None:
    denominator = 2**62
    numerator = 2**61 + 2**37 + 1  # a hair above the middle of two float32, invisible to float64
    assert float(np.float32(numerator / denominator)) == 0.5
    assert float(ratio_as_float32(numerator, denominator)) == 0.5 + 2**-24


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 0), (-1, 1), (2**64, 1), (1, 2**64)])
def test_ratio_of_an_impossible_count_is_our_own_bug(numerator: int, denominator: int) -> None:
    with pytest.raises(InternalError):
        ratio_as_float32(numerator, denominator)


GOOD: Difference = {"w": np.zeros(2, np.float32)}


@pytest.mark.parametrize(
    "wrong",
    [
        (Weight(0), GOOD),
        (Weight(1, 0.0), GOOD),
        (Weight(1, 1.5), GOOD),
        (Weight(2**63), GOOD),
        (Weight(1), {"x": GOOD["w"]}),
        (Weight(1), {"w": np.zeros(3, np.float32)}),
    ],
)
def test_what_no_outcome_contains_is_our_own_bug(wrong: Result) -> None:
    total = UpdateSum(layout_of({"w": np.zeros(2)}), "all", np.zeros(2, np.float32), None)
    with pytest.raises(InternalError):
        total.add(*wrong)
    with pytest.raises(InternalError, match="no results"):
        list(total.encoded("int4"))


def test_mean_over_senders_of_what_every_element_is_in_is_our_own_bug() -> None:
    for tensor in (np.zeros(COUNT, np.float32), encoded("int8", 1, COUNT)):
        with pytest.raises(InternalError, match="sends every element"):
            mean_over([(Weight(1), {"w": tensor})], "senders")


def test_mean_that_overflows_is_reported_by_name() -> None:
    with pytest.raises(Diverged, match="'w'"):
        mean_over([(Weight(2), {"w": np.array([3e38], np.float32)})])


@pytest.mark.parametrize("codec", ["float32", "int8", "int4"])
def test_update_is_no_larger_than_its_bound(codec: str) -> None:
    results: list[Result] = [(Weight(1), {"w": encoded("int8", 1, SIZE).values()})]
    data = update_over(results, codec)
    assert len(data) <= update_size_bound(layout_of_result(results[0][1]), UpdateRule(codec)) <= len(data) + 2000


@pytest.mark.parametrize(
    ("expected", "rule"),
    [
        (replace(HEADER, step=6), "step"),
        (replace(HEADER, run_id="other"), "run_id"),
        (replace(HEADER, outcome_sha256="cd" * 32), "outcome_sha256"),
        (replace(HEADER, codec="int4"), "codec"),
    ],
)
def test_update_of_something_else_is_refused_by_name(expected: UpdateHeader, rule: str) -> None:
    data = update_over(golden())
    with pytest.raises(InvalidDocument) as refused:
        decode_update(data, expected, layout_of_result(golden()[0][1]))
    assert refused.value.context["rule"] == rule


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "size"),
        (update_over(golden())[:-1], "size"),
        (update_over([(Weight(1), {"v": np.zeros(5, np.float32)})]), "layout"),
        (update_over(golden()).replace(b"epochal/update/v1", b"epochal/upgrade/v"), "format"),
    ],
)
def test_bytes_that_are_no_update_are_refused_by_name(data: bytes, rule: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        decode_update(data, HEADER, layout_of_result(golden()[0][1]))
    assert refused.value.context["rule"] == rule
