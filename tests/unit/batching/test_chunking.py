"""Chunking: the source's cases and tables, and every cut against its reference."""

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.batching.chunking.column_chunks import chunk_columns
from epochal.batching.chunking.datums import (
    Datum,
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
    TensorData,
)
from epochal.batching.chunking.policies import (
    BYTES,
    NUMBERS,
    ChunkEnd,
    ChunkLimits,
    ChunkPolicy,
    chunk_data,
    chunked,
    estimate_bytes,
    estimate_numbers,
    exact,
)
from epochal.data_providers.protocol import TokenBatch
from epochal.state.errors import InvalidInput


def text(count: int, **losses: int) -> Datum:
    return Datum(ModelInput.from_ints(range(count)), {name: TensorData(range(n)) for name, n in losses.items()})


def image(size: int, **options: Any) -> Datum:
    return Datum(ModelInput((ImageChunk(bytes(size), **options),)))


def counts(data: Sequence[Datum], policy: ChunkPolicy = BYTES) -> list[int]:
    return [len(chunk.items) for chunk in chunk_data(data, policy)]


# The source's test cases


MIXED = [text(1000), image(2_000_000), text(1000), image(2_000_000), text(1000)]


@pytest.mark.parametrize(
    ("data", "chunks"),
    [
        ([text(3)] * 1024, [1024]),
        ([text(3)] * 1025, [1024, 1]),
        ([text(10_000)] * 51, [50, 1]),
        ([text(100_000)] * 10, [5, 5]),
        (MIXED, [5]),
        ([*MIXED, image(2_000_000)], [5, 1]),
    ],
    ids=["1024 items", "1025 items", "5,000,000 bytes", "bytes before items", "images", "one image more"],
)
def test_cases_of_the_source(data: list[Datum], chunks: list[int]) -> None:
    assert counts(data) == chunks


@pytest.mark.parametrize(
    ("items", "tokens", "policy", "chunks"),
    [
        (1000, 1000, NUMBERS, 8),  # "Before": the item limit is the bottleneck
        (1000, 1000, BYTES, 2),  # "After": the byte limit is
        (500, 500, BYTES, 1),
    ],
)
def test_behaviour_tables_of_the_source(items: int, tokens: int, policy: ChunkPolicy, chunks: int) -> None:
    assert len(counts([text(tokens)] * items, policy)) == chunks


# Estimates


def test_estimates_count_numbers_tenfold_and_images_by_their_bytes() -> None:
    chunks = (
        EncodedTextChunk([1, 2, 3]),
        ImageChunk(bytes(2_000_000)),
        ImageAssetPointerChunk("anchor://é.png"),
        EncodedTextChunk(np.arange(4)),
    )
    datum = Datum(ModelInput(chunks), {"target_tokens": TensorData([1, 2]), "weights": TensorData(np.zeros(3))})
    assert estimate_bytes(datum) == 10 * 7 + 2_000_000 + 14 + 10 * 5
    assert estimate_numbers(datum) == 7 + 2_000_000 + 14 + 5
    assert exact(lambda datum: json.dumps(list(datum.model_input.chunks[0].tokens)).encode())(text(3)) == 9  # type: ignore[union-attr]


def test_length_of_an_image_is_known_only_when_somebody_says_it() -> None:
    assert ModelInput((EncodedTextChunk([1, 2]), ImageChunk(b"x", expected_tokens=5))).length == 7
    assert ImageAssetPointerChunk("a", expected_tokens=3).length == 3
    for chunk in (ImageChunk(b"x"), ImageAssetPointerChunk("a")):
        with pytest.raises(InvalidInput, match="give its expected_tokens"):
            _ = ModelInput((chunk,)).length
        assert estimate_bytes(Datum(ModelInput((chunk,)))) == 1


@pytest.mark.parametrize("estimate", [estimate_bytes, estimate_numbers])
def test_unknown_chunk_is_refused_by_its_type(estimate: Any) -> None:
    with pytest.raises(InvalidInput, match=r"a chunk of type str; allowed: EncodedTextChunk"):
        estimate(Datum(ModelInput(("audio",))))  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", [{"items": 0}, {"size": 0}, {"items": -1}])
def test_limits_below_one_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="allowed: 1 or more"):
        ChunkLimits(**limits)


def test_policies_have_the_source_s_limits() -> None:
    assert BYTES.limits == ChunkLimits(1024, 5_000_000)
    assert NUMBERS.limits == ChunkLimits(128, 500_000)


# Every cut


def reference(sizes: Sequence[int], limits: ChunkLimits) -> list[list[int]]:
    """The source's own generator, on numbered items."""
    found: list[list[int]] = []
    current: list[int] = []
    taken = 0
    for number, size in enumerate(sizes):
        if (len(current) > 0 and taken + size > limits.size) or (len(current) == limits.items):
            found.append(current)
            current, taken = [], 0
        current.append(number)
        taken += size
    if len(current) > 0:
        found.append(current)
    return found


sizes_strategy = st.lists(st.integers(0, 30), max_size=60)
limits_strategy = st.builds(ChunkLimits, st.integers(1, 9), st.integers(1, 40))


@given(sizes_strategy, limits_strategy)
def test_cuts_are_the_reference_s_with_the_reason_of_each(sizes: list[int], limits: ChunkLimits) -> None:
    found = list(chunked(range(len(sizes)), sizes.__getitem__, limits))
    assert [chunk.items for chunk in found] == reference(sizes, limits)
    for chunk, following in itertools.pairwise([*found, None]):
        assert chunk is not None
        assert chunk.items
        assert chunk.size == sum(sizes[number] for number in chunk.items)
        assert chunk.size <= limits.size or len(chunk.items) == 1
        if following is None:
            assert chunk.end is ChunkEnd.END
        elif chunk.end is ChunkEnd.ITEMS:
            assert len(chunk.items) == limits.items
        else:
            assert chunk.end is ChunkEnd.SIZE
            assert chunk.size + sizes[following.items[0]] > limits.size


@given(
    st.lists(st.lists(st.integers(0, 12), max_size=15), max_size=6),
    limits_strategy,
    st.integers(0, 2),
    st.sampled_from([BYTES, NUMBERS]),
)
def test_columns_are_cut_as_the_same_data_are(
    lengths: list[list[int]], limits: ChunkLimits, loss_inputs: int, policy: ChunkPolicy
) -> None:
    limits = ChunkLimits(limits.items, limits.size * policy.number_size)
    losses = [f"loss-{number}" for number in range(loss_inputs)]
    data = [text(length, **dict.fromkeys(losses, length)) for part in lengths for length in part]
    batches = [TokenBatch(np.zeros(sum(part), "<u2"), np.cumsum([0, *part])) for part in lengths]
    expected = list(chunk_data(data, policy, limits))
    found = list(chunk_columns(iter(batches), loss_inputs, policy, limits))
    assert [(chunk.items, chunk.size, chunk.end) for chunk in found] == [
        (len(chunk.items), chunk.size, chunk.end) for chunk in expected
    ]
    places = {id(batch): number for number, batch in enumerate(batches)}
    order = [(places[id(part.batch)], row) for chunk in found for part in chunk.parts for row in range(*part[1:])]
    assert order == [(number, row) for number, part in enumerate(lengths) for row in range(len(part))]


def test_oversized_first_datum_goes_alone_and_no_chunk_is_empty() -> None:
    assert counts([text(600_000), text(1), text(600_000)]) == [1, 1, 1]
    assert list(chunk_data([])) == []


def test_chunks_come_as_they_are_asked_for() -> None:
    taken = 0

    def endless() -> Iterator[Datum]:
        nonlocal taken
        while True:
            taken += 1
            yield text(1)

    chunks = chunk_data(endless())
    assert len(next(chunks).items) == 1024
    assert taken == 1025


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.uint64, np.int64])
def test_sizes_of_columns_do_not_overflow_their_offsets(dtype: Any) -> None:
    number_size = 2**30  # as many samples as it takes to need more than 32 bits would be slow
    policy = ChunkPolicy("large", estimate_bytes, ChunkLimits(10, 3 * number_size), number_size)
    batch = TokenBatch(np.zeros(6, "<u2"), np.array([0, 1, 5, 6], dtype))
    chunks = list(chunk_columns([batch, batch], 0, policy))
    assert [(chunk.items, chunk.size // number_size) for chunk in chunks] == [(1, 1), (1, 4), (2, 2), (1, 4), (1, 1)]
