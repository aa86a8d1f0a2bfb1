"""The averages of encoded differences: those of their decoded values, bit for bit, and the mean over senders."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.averaging import mean_over_all, mean_over_senders, ratio_as_float32
from epochal.state.codecs.codec import EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.errors import InternalError
from epochal.state.merging import CHUNK_ELEMENTS, Contribution, OuterStep, merge
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.model.tensors import Float32Array

COUNT = 200
SIZE = CHUNK_ELEMENTS + 4096 + 77
seeds = st.lists(st.integers(0, 2**32), min_size=1, max_size=5)
batch_counts = st.integers(1, 9) | st.integers(1, 2**60)
merge_factors = st.sampled_from([1.0, 0.5, 2.0**-126]) | st.floats(2.0**-126, 1, width=32)


def encoded(codec: str, seed: int, size: int, scale: float = 1.0) -> EncodedTensor:
    values = (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)
    return EncodedTensor(codec_named(codec), (size,), codec_named(codec).encode(values))


def average(
    tensors: list[Float32Array] | list[EncodedTensor], counts: list[int], size: int, factors: list[float] | None = None
) -> Float32Array:
    mean, scratch = np.empty(size, np.float32), np.empty(size, np.float32)
    with np.errstate(all="ignore"):
        mean_over_all(counts, factors or [1.0] * len(counts))(tensors, 0, mean, scratch)
    return mean


def bits_of(values: Float32Array) -> list[int]:
    return [int(word) for word in values.view(np.uint32)]


@given(seeds=seeds, scale=st.sampled_from([1.0, 1e-38, 1e-30]), data=st.data())
def test_sparse_mean_index_by_index_is_the_dense_one_bit_for_bit(
    seeds: list[int], scale: float, data: st.DataObject
) -> None:
    tensors = [encoded("sparse-1000", seed, COUNT, scale) for seed in seeds]
    counts, factors = [data.draw(batch_counts) for _ in seeds], [data.draw(merge_factors) for _ in seeds]
    dense = average([tensor.values() for tensor in tensors], counts, COUNT, factors)
    assert bits_of(average(tensors, counts, COUNT, factors)) == bits_of(dense)


def sparse(values: dict[int, float]) -> EncodedTensor:
    codec, array = codec_named(f"sparse-{4096 * len(values) // COUNT}"), np.zeros(COUNT, np.float32)
    for index, value in values.items():
        array[index] = value
    return EncodedTensor(codec, (COUNT,), codec.encode(array))


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0), (1, 1), (0,), (0, 1, 0), (1, 0, 1)])
def test_sparse_mean_keeps_the_sign_of_products_that_underflow(order: tuple[int, ...]) -> None:
    least = 2.0**-126
    both = [sparse({3: -least, 7: least}), sparse({3: -least, 9: -least})]
    tensors = [both[index] for index in order]
    counts = [1 if index == 0 else 2**62 for index in order]
    dense = average([tensor.values() for tensor in tensors], counts, COUNT)
    assert bits_of(average(tensors, counts, COUNT)) == bits_of(dense)


@pytest.mark.parametrize("codec", ["int8", "int4", "sparse-64"])
def test_merge_of_encoded_differences_is_that_of_their_values(codec: str) -> None:
    start = np.random.default_rng(7).standard_normal((2, SIZE)).astype(np.float32)
    replica = Replica(4, {"w": start[0]}, {"w": start[1]})
    tensors = [encoded(codec, seed, SIZE) for seed in range(3)]
    outer = OuterStep(0.7, 0.9)
    merged = merge(replica, [Contribution(n + 1, {"w": tensor}) for n, tensor in enumerate(tensors)], outer)
    plain = merge(replica, [Contribution(n + 1, {"w": tensor.values()}) for n, tensor in enumerate(tensors)], outer)
    assert replica_digest(merged) == replica_digest(plain)


def senders_oracle(tensors: list[EncodedTensor], counts: list[int], factors: list[float]) -> list[float]:
    """Each value on its own, rounded step by step."""
    means = []
    for column in zip(*(tensor.values().tolist() for tensor in tensors), strict=True):
        total, sent_by = np.float32(0.0), 0
        for count, factor, value in zip(counts, factors, column, strict=True):
            if value:
                weight = np.float32(ratio_as_float32(count, 1) * np.float32(factor))
                total = np.float32(total + np.float32(weight * np.float32(value)))
                sent_by += count
        means.append(float(np.float32(total / nearest(sent_by))) if sent_by else 0.0)
    return means


def nearest(integer: int) -> np.float32:
    """The float32 nearest to an integer, ties to even, found by comparing neighbours."""
    guess = np.float32(integer)
    around = [np.nextafter(guess, np.float32(0)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(around, key=lambda one: (abs(Fraction(float(one)) - integer), int(one.view(np.uint32)) & 1))


@given(seeds=seeds, data=st.data())
def test_mean_over_senders_agrees_with_the_oracle_bit_for_bit(seeds: list[int], data: st.DataObject) -> None:
    tensors = [encoded("sparse-1000", seed, COUNT) for seed in seeds]
    counts, factors = [data.draw(batch_counts) for _ in seeds], [data.draw(merge_factors) for _ in seeds]
    mean, scratch = np.empty(COUNT, np.float32), np.empty(COUNT, np.float32)
    mean_over_senders(counts, factors)(tensors, 0, mean, scratch)
    assert bits_of(mean) == bits_of(np.array(senders_oracle(tensors, counts, factors), np.float32))


def test_mean_over_senders_gives_a_lone_sender_its_full_weight() -> None:
    replica = Replica(0, {"w": np.zeros(COUNT, np.float32)}, {"w": np.zeros(COUNT, np.float32)})
    tensors = [sparse({3: 4.0, 5: 4.0}), sparse({5: 8.0, 9: 8.0})]
    contributions = [Contribution(count, {"w": tensor}) for count, tensor in zip((1, 3), tensors, strict=True)]
    after = merge(replica, contributions, OuterStep(1.0, 0.0, "senders")).parameters["w"]
    assert {int(index): float(after[index]) for index in np.nonzero(after)[0]} == {3: -4.0, 5: -7.0, 9: -8.0}


def test_mean_over_senders_does_not_depend_on_chunks() -> None:
    tensors = [encoded("sparse-64", seed, SIZE) for seed in range(3)]
    replica = Replica(0, {"w": np.zeros(SIZE, np.float32)}, {"w": np.zeros(SIZE, np.float32)})
    merged = merge(replica, [Contribution(3, {"w": tensor}) for tensor in tensors], OuterStep(1.0, 0.0, "senders"))
    mean, scratch = np.empty(SIZE, np.float32), np.empty(SIZE, np.float32)
    mean_over_senders([3, 3, 3], [1.0] * 3)(tensors, 0, mean, scratch)
    assert np.array_equal(merged.parameters["w"], -mean)


def test_mean_over_senders_of_what_every_element_is_in_is_our_own_bug() -> None:
    scratch = np.empty(COUNT, np.float32)
    for tensor in (np.zeros(COUNT, np.float32), encoded("int8", 1, COUNT)):
        with pytest.raises(InternalError, match="sends every element"):
            mean_over_senders([1], [1.0])([tensor], 0, scratch, scratch.copy())


def test_mean_over_senders_of_uncountable_batches_is_our_own_bug() -> None:
    with pytest.raises(InternalError, match="batches"):
        mean_over_senders([2**62, 2**62], [1.0, 1.0])
