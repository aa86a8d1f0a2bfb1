"""Batch IDs and interval arithmetic, against plain sets and lists of batch numbers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.errors import InvalidInput
from state.intervals import (
    MAX_BATCH_NUMBER,
    BatchId,
    coalesce,
    first_overlap,
    subtract,
    take_positions,
    total_batches,
)

intervals = st.builds(lambda start, length: BatchId(start, start + length), st.integers(0, 60), st.integers(0, 9))
lists = st.lists(intervals, max_size=8)


def batches(items: list[BatchId] | tuple[BatchId, ...]) -> list[int]:
    return [batch for item in items for batch in range(item.start, item.end + 1)]


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (3, 2), (0, MAX_BATCH_NUMBER + 1)])
def test_batch_id_out_of_range_is_refused_with_both_ends(start: int, end: int) -> None:
    with pytest.raises(InvalidInput, match=str(end)):
        BatchId(start, end)


def test_batch_id_covers_k_data_indices_per_batch() -> None:
    assert list(BatchId(2, 3).data_indices(4)) == list(range(8, 16))


@given(lists, st.data())
def test_take_positions_equals_slicing_the_concatenation(work: list[BatchId], data: st.DataObject) -> None:
    total = total_batches(work)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    assert batches(take_positions(work, start, stop)) == batches(work)[start:stop]


def test_take_positions_beyond_the_list_is_refused() -> None:
    with pytest.raises(InvalidInput):
        take_positions((BatchId(0, 3),), 0, 5)


@given(lists)
def test_coalesce_gives_sorted_disjoint_intervals_of_the_same_set(items: list[BatchId]) -> None:
    merged = coalesce(items)
    assert batches(merged) == sorted(set(batches(items)))
    assert all(left.end + 1 < right.start for left, right in pairwise(merged))


@given(lists, lists)
def test_subtract_keeps_order_and_removes_exactly_the_set(items: list[BatchId], removed: list[BatchId]) -> None:
    gone = set(batches(removed))
    assert batches(subtract(items, removed)) == [batch for batch in batches(items) if batch not in gone]


@given(lists)
def test_first_overlap_is_none_exactly_when_nothing_stands_twice(items: list[BatchId]) -> None:
    found = first_overlap(items)
    listed = batches(items)
    doubled = {batch for batch in listed if listed.count(batch) > 1}
    assert (found is None) == (not doubled)
    if found is not None:
        assert set(batches([found])) <= doubled


@given(intervals)
def test_bisect_gives_two_halves_whose_first_is_not_the_smaller(item: BatchId) -> None:
    if len(item) == 1:
        with pytest.raises(InvalidInput):
            item.bisect()
    else:
        first, second = item.bisect()
        assert batches([first, second]) == batches([item])
        assert len(first) - len(second) in (0, 1)
