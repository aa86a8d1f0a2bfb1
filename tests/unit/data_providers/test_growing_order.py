"""Data that grow: each data index is of one generation, and who has the newest files reads all of them."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.data_providers.order import DataFile, DataOrder
from epochal.data_providers.protocol import DatasetSpec, SourceUnavailable
from epochal.state.generations import (
    DataGeneration,
    Generations,
    SizedDataset,
    check_generations,
    generation_at,
    passes_before,
    with_appended,
)
from epochal.state.intervals import DataIds
from tests.support.data.data_oracle import slow_order

LENGTH = 5
SEED = bytes(range(32))

GOLDEN = [(0, 1), (1, 1), (0, 2), (2, 3), (2, 4), (2, 2), (0, 0), (1, 1)]
"""The places of data indices 5 to 12, of which 7 is the first of the larger data."""

file_counts = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def order_of(counts: list[int], seed: bytes | None) -> DataOrder[DataFile]:
    files = [DataFile(f"{number:03}.bin", 2 * LENGTH * count, LENGTH * count) for number, count in enumerate(counts)]
    return DataOrder(files, DatasetSpec(2, LENGTH, seed))


def sized(counts: list[int], seed: bytes | None) -> SizedDataset:
    order = order_of(counts, seed)
    return SizedDataset(order.fingerprint, order.sequence_count, len(counts))


def grown(counts: list[int], cuts: list[int], seed: bytes | None) -> Generations:
    """Generations of the first `cuts[0]`, `cuts[1]`, … files, each as soon as it may begin."""
    generations: Generations = ()
    for now, then in pairwise(cuts):
        earliest = generations[-1].first_data_index + 1 if generations else 1
        generations = with_appended(generations, sized(counts[:now], seed), sized(counts[:then], seed), earliest)
    return generations


def places(order: DataOrder[DataFile], data_ids: DataIds) -> list[tuple[int, int]]:
    return [
        (extent.file, extent.sequence + number) for extent in order.locate(data_ids) for number in range(extent.length)
    ]


def replayed(counts: list[int], generations: Generations, seed: bytes | None, stop: int) -> list[tuple[int, int]]:
    """The order pass after pass, from the beginning."""
    found: list[tuple[int, int]] = []
    number = 0
    while len(found) < stop:
        files = generations[generation_at(generations, len(found))].file_count
        found += slow_order(counts[:files], seed, number)
        number += 1
    return found[:stop]


@settings(max_examples=40, deadline=None)
@given(file_counts, st.data(), st.sampled_from([None, SEED]))
def test_every_data_index_is_that_of_a_replay_pass_after_pass(
    counts: list[int], data: st.DataObject, seed: bytes | None
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(counts)), min_size=1)))
    generations = grown(counts, cuts, seed)
    order = order_of(counts, seed)
    order.follow(generations or (DataGeneration(0, sized(counts, seed).fingerprint, sum(counts), len(counts)),))
    stop = (generations[-1].first_data_index if generations else 0) + 2 * sum(counts)
    if not generations:
        generations = (DataGeneration(0, order.fingerprint, sum(counts), len(counts)),)
    expected = replayed(counts, generations, seed, stop)
    assert places(order, DataIds(0, stop - 1)) == expected
    start = data.draw(st.integers(0, stop - 1))
    end = data.draw(st.integers(start, stop - 1))
    assert places(order, DataIds(start, end)) == expected[start : end + 1]


def test_files_of_before_read_the_older_generations_and_no_newer_one() -> None:
    counts = [10, 20, 5]
    generations = grown(counts, [2, 3], SEED)
    old, new = order_of(counts[:2], SEED), order_of(counts, SEED)
    assert (old.follow(generations), new.follow(generations)) == (1, 2)
    assert places(old, DataIds(0, 29)) == places(new, DataIds(0, 29))
    with pytest.raises(SourceUnavailable, match="data index 30 is of data that have grown to 35 samples in 3 files"):
        old.locate(DataIds(29, 30))


def test_files_that_are_not_the_runs_hold_no_generation() -> None:
    generations = grown([10, 20, 5], [2, 3], SEED)
    assert order_of([10, 21, 5], SEED).follow(generations) == 0
    assert order_of([10, 20, 6], SEED).follow(generations) == 1


def test_growing_order_golden_vectors_never_change() -> None:
    counts = [3, 4, 6]
    generations = grown(counts, [2, 3], SEED)
    order = order_of(counts, SEED)
    order.follow(generations)
    assert [found.first_data_index for found in generations] == [0, 7]
    assert passes_before(generations) == (0, 1)
    assert places(order, DataIds(5, 12)) == GOLDEN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first_data_index": 5}, "begin where a pass"),
        ({"first_data_index": 0}, "begin where a pass"),
        ({"sample_count": 6}, "no more files"),
        ({"file_count": 2}, "no more files"),
        ({"fingerprint": "aa" * 32}, "the same fingerprint"),
    ],
)
def test_generations_that_contradict_each_other_are_refused(change: dict[str, object], message: str) -> None:
    first = DataGeneration(0, "aa" * 32, 7, 2)
    later = {"first_data_index": 14, "fingerprint": "bb" * 32, "sample_count": 9, "file_count": 3}
    assert check_generations((first, DataGeneration(**later)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        check_generations((first, DataGeneration(**(later | change))))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not begin at data index 0"):
        check_generations((DataGeneration(**later),))  # type: ignore[arg-type]
