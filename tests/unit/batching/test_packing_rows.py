"""Rows: which samples share one, and what it carries for each of its documents."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.batching.packing.packer import packed
from epochal.batching.packing.row_choice import MAX_CANDIDATES, best_fit_decreasing, fill_row, tail_rows
from epochal.batching.packing.samples import RawSample, raw_samples
from epochal.data_providers.protocol import IGNORED_LABEL, TokenBatch
from tests.support.data.packing import ROW, packer_of


@given(st.lists(st.integers(1, ROW), min_size=1, max_size=10))
def test_row_is_filled_as_no_other_choice_would_and_holds_the_oldest(lengths: list[int]) -> None:
    chosen = fill_row(lengths, ROW)
    assert chosen[0] == 0
    assert chosen == sorted(set(chosen))
    best = max(
        total
        for size in range(len(lengths))
        for others in itertools.combinations(lengths[1:], size)
        if (total := lengths[0] + sum(others)) <= ROW
    )
    assert sum(lengths[position] for position in chosen) == best


def test_row_looks_at_a_bounded_number_of_candidates() -> None:
    assert fill_row([1, *[3] * (MAX_CANDIDATES - 1), 2, 1000], 1 + 3 * MAX_CANDIDATES)[-1] == MAX_CANDIDATES
    assert fill_row([1, *[8] * 500, 3], 4) == [0, 501]


@pytest.mark.parametrize("slicer", [best_fit_decreasing, tail_rows])
@given(st.lists(st.integers(1, ROW), max_size=40))
def test_slicers_place_every_sample_once_and_need_few_rows(slicer: Any, lengths: list[int]) -> None:
    rows = slicer(lengths, ROW)
    assert sorted(position for row in rows for position in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[position] for position in row) <= ROW for row in rows)
    least = -(-sum(lengths) // ROW)
    assert len(rows) <= 11 / 9 * least + 6 / 9 or least < 2 or len(rows) <= sum(2 * n > ROW for n in lengths) + least


def test_slicers_on_an_example() -> None:
    assert best_fit_decreasing([8, 5, 7, 4], 12) == [[0, 3], [2, 1]]


def test_row_carries_positions_documents_and_labels_masked_at_boundaries() -> None:
    samples = [
        RawSample(0, np.array([7, 8, 9], "<u2")),
        RawSample(1, np.array([1, 2], "<u2"), labels=np.array([1, IGNORED_LABEL])),
        RawSample(2, np.array([5, 6, 3, 4], "<u2"), sequence_lengths=np.array([2, 2])),
    ]
    (row,) = packed(packer_of(), iter(samples))
    assert row.input_ids.tolist() == [7, 8, 9, 1, 2, 5, 6, 3, 4]
    assert row.sequence_lengths is not None
    assert row.sequence_lengths.tolist() == [3, 2, 2, 2]
    assert row.position_ids is not None
    assert row.position_ids.tolist() == [0, 1, 2, 0, 1, 0, 1, 0, 1]
    assert row.labels is not None
    ignored = IGNORED_LABEL
    assert row.labels.tolist() == [ignored, 8, 9, ignored, ignored, ignored, 6, ignored, 4]
    assert row.source_count == 3


def test_raw_samples_are_cut_from_a_batch_with_their_own_documents() -> None:
    batch = TokenBatch(
        np.arange(9, dtype="<u2"),
        np.array([0, 4, 4, 9]),
        labels=np.arange(9),
        sequence_lengths=np.array([1, 3, 0, 2, 0, 3]),
    )
    found = list(raw_samples(batch, iter([10, 11, 20])))
    assert [(raw.index, raw.tokens.tolist()) for raw in found] == [(10, [0, 1, 2, 3]), (11, []), (20, [4, 5, 6, 7, 8])]
    assert [[] if raw.sequence_lengths is None else raw.sequence_lengths.tolist() for raw in found] == [
        [1, 3],
        [],
        [2, 3],
    ]
    assert found[2].labels is not None
    assert found[2].labels.tolist() == [4, 5, 6, 7, 8]
