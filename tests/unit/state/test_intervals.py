"""Batch IDs and interval arithmetic, against plain sets and lists of batch numbers."""

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.protocol import DataProvider
from epochal.state.errors import InvalidInput
from epochal.state.intervals import (
    MAX_INDEX,
    BatchId,
    DataIds,
    coalesce,
    subtract,
    take_positions,
    total_batches,
    whole_batches,
)

intervals = st.builds(lambda start, length: BatchId(start, start + length), st.integers(0, 60), st.integers(0, 9))
lists = st.lists(intervals, max_size=8)


def batches(items: list[BatchId] | tuple[BatchId, ...]) -> list[int]:
    return [batch for item in items for batch in range(item.start, item.end + 1)]


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (3, 2), (0, MAX_INDEX + 1)])
def test_batch_id_out_of_range_is_refused_with_both_ends(start: int, end: int) -> None:
    with pytest.raises(InvalidInput, match=str(end)):
        BatchId(start, end)


@given(intervals, st.integers(1, 7))
def test_to_batches_undoes_to_data_ids(item: BatchId, k: int) -> None:
    assert item.to_data_ids(k).to_batches(k) == item


def test_to_batches_includes_batches_that_are_touched_in_part() -> None:
    assert DataIds(7, 8).to_batches(4) == BatchId(1, 2)


@given(intervals, st.integers(1, 12))
def test_pieces_are_consecutive_and_of_the_size_but_the_last(item: BatchId, size: int) -> None:
    pieces = list(DataIds(item.start, item.end).pieces(size))
    assert [index for piece in pieces for index in piece] == batches([item])
    assert all(piece.count == size for piece in pieces[:-1])
    assert pieces[-1].count <= size


def test_batches_and_data_indices_of_the_same_numbers_are_not_equal() -> None:
    assert BatchId(1, 2) != DataIds(1, 2)  # type: ignore[comparison-overlap]


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


@given(intervals)
def test_bisect_gives_two_halves_whose_first_is_not_the_smaller(item: BatchId) -> None:
    if item.count == 1:
        with pytest.raises(InvalidInput):
            item.bisect()
    else:
        first, second = item.bisect()
        assert batches([first, second]) == batches([item])
        assert first.count - second.count in (0, 1)


if TYPE_CHECKING:  # mypy reports an "ignore" that nothing needs: each of these lines must be a mistake to it

    async def batches_where_data_indices_are_due(provider: DataProvider) -> None:
        await provider.get_samples(BatchId(0, 1))  # type: ignore[arg-type]
        subtract([BatchId(0, 1)], [DataIds(0, 1)])  # type: ignore[type-var]
        BatchId(0, 1).covers(DataIds(0, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(("indices", "whole"), [(0, 4), (3, 4), (4, 4), (7, 4), (8, 8), (11, 8)])
def test_whole_batches_cover_this_many_indices_and_one_batch_at_least(indices: int, whole: int) -> None:
    assert whole_batches(indices, 4) == whole
