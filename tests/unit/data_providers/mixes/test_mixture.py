"""The order of a mix: every prefix fair, every source walked without repeats, computed pointwise."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.data_providers.mixes.mixture import MAX_SOURCES, PERIOD, MixPhase, ScheduledOrder, counts_of
from epochal.data_providers.mixes.weighted import interleaved
from epochal.data_providers.protocol import DatasetSpec, OutOfRange, TokenBatch
from epochal.state.errors import InvalidInput
from epochal.state.intervals import MAX_INDEX, DataIds

GOLDEN_SOURCES = [2, 1, 2, 2, 1, 0, 2, 2, 1, 2, 2, 1, 2, 1, 1]
GOLDEN_LOCALS = [0, 0, 1, 2, 1, 0, 3, 4, 2, 5, 6, 3, 37449, 18725, 285720825195]
"""Of the data indices 0 to 11, `PERIOD`, `PERIOD` + 1 and 10¹², for the weights 1, 2 and 4."""

weights = st.lists(st.floats(1e-6, 1e6) | st.integers(1, 1000).map(float), min_size=1, max_size=12)


def order_of(weights: list[float]) -> ScheduledOrder:
    return ScheduledOrder([MixPhase(0, tuple(weights))])


def slow_counts(weights: list[float]) -> tuple[int, ...]:
    """As `counts_of`, in fractions and one by one."""
    total = sum(Fraction(weight) for weight in weights)
    shares = [Fraction(weight) * PERIOD / total for weight in weights]
    counts = [max(1, int(share)) for share in shares]
    while sum(counts) != PERIOD:
        step = 1 if sum(counts) < PERIOD else -1
        allowed = [number for number in range(len(counts)) if step > 0 or counts[number] > 1]
        counts[max(allowed, key=lambda number: (step * (shares[number] - counts[number]), -number))] += step
    return tuple(counts)


uneven_weights = st.lists(st.floats(1e-300, 1e300) | st.sampled_from([1e-9, 1.0, 2.0]), min_size=1, max_size=40)


@settings(max_examples=30, deadline=None)
@given(uneven_weights)
def test_counts_are_those_of_the_largest_remainders_one_by_one(weights: list[float]) -> None:
    assert counts_of(weights) == slow_counts(weights)


@settings(max_examples=15, deadline=None)
@given(weights)
def test_every_prefix_serves_each_source_within_one_sample_of_its_share(weights: list[float]) -> None:
    counts = counts_of(weights)
    sources, locals_ = order_of(weights).locate(np.arange(PERIOD + 100, dtype=np.int64))
    prefix = np.arange(1, PERIOD + 101, dtype=np.int64)
    for source, count in enumerate(counts):
        taken = np.cumsum(sources == source)
        # |taken − n·c/P| < 1, in whole numbers
        assert (np.abs(taken * PERIOD - prefix * count) < PERIOD).all()
        assert np.array_equal(locals_[sources == source], np.arange(taken[-1]))


def test_mixture_golden_vectors_never_change() -> None:
    assert counts_of([1, 2, 4]) == (9362, 18725, 37449)
    order = order_of([1, 2, 4])
    sources, locals_ = order.locate(np.array([*range(12), PERIOD, PERIOD + 1, 10**12], dtype=np.int64))
    assert sources.tolist() == GOLDEN_SOURCES
    assert locals_.tolist() == GOLDEN_LOCALS


@pytest.mark.parametrize("weights", [[], [1.0] * (MAX_SOURCES + 1), [0.0], [-1.0], [float("nan")], [float("inf"), 1.0]])
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(InvalidInput):
        counts_of(weights)


def test_beyond_the_last_data_index_is_out_of_range() -> None:
    with pytest.raises(OutOfRange):
        order_of([1.0]).shares(DataIds(MAX_INDEX, MAX_INDEX))


samples = st.lists(st.lists(st.integers(0, 2**16 - 1), max_size=5), min_size=1, max_size=8)


@given(
    st.lists(samples, min_size=1, max_size=4),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.none() | st.integers(0, 5),
)
def test_interleaved_samples_keep_their_tokens_labels_and_documents(
    parts: list[list[list[int]]], chance: object, with_extras: bool, length: int | None
) -> None:
    if length is not None:  # samples of one length take a way of their own
        parts = [[(sample + list(range(10, 15)))[:length] for sample in part] for part in parts]
    total = sum(len(part) for part in parts)
    places = list(range(total))
    chance.shuffle(places)  # type: ignore[attr-defined]
    batches: list[tuple[TokenBatch, np.ndarray[Any, np.dtype[np.int64]]]] = []
    expected: dict[int, list[int]] = {}
    for part in parts:
        rows = sorted(places[: len(part)])
        places = places[len(part) :]
        batches.append((batch_of(part, with_extras), np.array(rows, dtype=np.int64)))
        expected |= dict(zip(rows, part, strict=True))
    whole = interleaved(batches)
    cut = [whole.input_ids[a:b].tolist() for a, b in zip(whole.offsets, whole.offsets[1:], strict=False)]
    assert cut == [expected[row] for row in range(total)]
    if with_extras:
        assert whole.labels is not None
        assert whole.labels.tolist() == [token + 1 for row in range(total) for token in expected[row]]
        assert whole.sequence_lengths is not None
        assert [n for n in whole.sequence_lengths.tolist() if n] == [1 for row in range(total) for _ in expected[row]]


def batch_of(part: list[list[int]], with_extras: bool) -> TokenBatch:
    tokens = np.array([token for sample in part for token in sample], dtype="<u2")
    offsets = np.cumsum([0, *(len(sample) for sample in part)])
    if not with_extras:
        return TokenBatch(tokens, offsets)
    ones = np.ones(len(tokens), dtype=np.int64)
    return TokenBatch(tokens, offsets, tokens.astype(np.int64) + 1, ones * 0, ones)


@pytest.mark.parametrize("lengths", [(2, 2), (2, 3)])
def test_source_without_labels_gets_those_that_it_means(lengths: tuple[int, int]) -> None:
    with_labels = batch_of([[1, 2][: lengths[0]]], True)
    without = batch_of([[3, 4, 5][: lengths[1]], [6, 7]], False)
    mixed = interleaved([(with_labels, np.array([1])), (without, np.array([0, 2]))])
    tail = [3, 4, 5][: lengths[1]]
    assert mixed.input_ids.tolist() == [*tail, 1, 2, 6, 7]
    assert mixed.labels is not None
    assert mixed.labels.tolist() == [*tail, 2, 3, 6, 7]
    assert mixed.position_ids is not None
    assert mixed.position_ids.tolist() == [*range(len(tail)), 0, 0, 0, 1]
    assert mixed.sequence_lengths is not None
    assert mixed.sequence_lengths.tolist() == [len(tail), 1, 1, 2]


def test_tokens_of_two_sizes_mix_as_the_larger() -> None:
    small = TokenBatch.fixed_length(np.array([1, 2], "<u2"), 2)
    large = TokenBatch.fixed_length(np.array([70_000, 3], "<u4"), 2)
    mixed = interleaved([(large, np.array([1])), (small, np.array([0]))])
    assert mixed.input_ids.tolist() == [1, 2, 70_000, 3]
    assert mixed.rows().shape == (2, 2)
    assert DatasetSpec(4, 2).dtype == mixed.input_ids.dtype
