"""The packer: every sample comes out once, and rows follow from the samples alone."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.batching.packing.packer import Packer, packed
from epochal.batching.packing.samples import EncodedSample, RawSample
from epochal.batching.packing.task_encoder import TaskEncoder
from epochal.data_providers.protocol import IGNORED_LABEL, CorruptData
from tests.support.data.packing import (
    METHODS,
    POLICIES,
    ROW,
    context,
    documents,
    lengths_strategy,
    packer_of,
    samples_of,
    signature,
    skipping,
)


@given(lengths_strategy, st.sampled_from(METHODS), st.sampled_from(POLICIES), st.integers(1, 12))
def test_packer_brings_every_sample_out_once_or_counts_it(
    lengths: list[int], method: str, oversized: str, pool_size: int
) -> None:
    packer = packer_of(method, pool_size=pool_size, oversized=oversized)
    rows = list(packed(packer, samples_of(lengths)))
    counts = packer.counts
    came_out: dict[int, int] = {}
    for row in rows:
        assert len(row.input_ids) <= ROW
        for document in documents(row) if row.sample_count else []:
            assert len(set(document)) == 1
            came_out[document[0]] = came_out.get(document[0], 0) + len(document)
    if method == "padded":
        assert all(len(row.input_ids) == ROW for row in rows if row.sample_count)
        came_out.pop(0, None)  # paddings are zeros too
    for index, length in enumerate(lengths):
        kept = min(length, ROW) if oversized == "truncate" else 0 if oversized == "drop" and length > ROW else length
        if index or method != "padded":
            assert came_out.get(index, 0) == kept, index
    assert sum(row.source_count or 0 for row in rows) == len(lengths) == counts.samples
    assert counts.finished + counts.empty + counts.dropped == len(lengths)
    assert counts.rows == sum(row.sample_count for row in rows)
    too_long = sum(length > ROW for length in lengths)
    assert {"truncate": counts.truncated, "split": counts.split, "drop": counts.dropped}[oversized] == too_long


@given(lengths_strategy, st.sampled_from(METHODS), st.integers(1, 12), st.lists(st.integers(0, 8), max_size=40))
def test_rows_do_not_depend_on_how_the_samples_arrive(
    lengths: list[int], method: str, pool_size: int, arrivals: list[int]
) -> None:
    def packer() -> Packer:
        return packer_of(method, skipping(method), pool_size=pool_size, oversized="split")

    expected = signature(list(packed(packer(), samples_of(lengths))))
    slow, left, rows = packer(), list(samples_of(lengths)), []
    for count in itertools.chain(arrivals, itertools.repeat(len(lengths))):
        arriving = iter(left[:count])
        if not slow.take(arriving):
            left = left[count:]
            if not left:
                slow.finish()
        else:
            left = [*arriving, *left[count:]]
        row = slow.next_row()
        if row is not None:
            rows.append(row)
        elif not left and not slow.wanted:
            break
    assert signature(rows) == expected


@given(lengths_strategy, st.sampled_from(METHODS), st.integers(1, 12))
def test_pool_keeps_its_bound_and_as_many_samples_are_fetched_as_left(
    lengths: list[int], method: str, pool_size: int
) -> None:
    packer, samples = packer_of(method, skipping(method), pool_size=pool_size, oversized="drop"), samples_of(lengths)
    bound = 1 if method == "padded" else pool_size
    assert (packer.held, packer.wanted) == (0, bound)
    while packer.take(samples):
        assert (packer.held, packer.wanted) == (bound, 0)
        before = packer.counts.finished
        assert packer.next_row() is not None
        left = packer.counts.finished - before
        assert left > 0
        assert (packer.held, packer.wanted) == (bound - left, left)


def test_no_sample_waits_for_more_rows_than_the_pool_holds_samples() -> None:
    generator = np.random.default_rng(5)
    lengths = np.clip(generator.lognormal(1.5, 1.0, 4000).astype(int), 1, ROW).tolist()
    encoder = TaskEncoder(context(vocabulary=None))
    packer = packer_of("rolling", encoder, pool_size=32)
    entered: dict[int, int] = {}

    def counted() -> Iterator[RawSample]:
        for index, length in enumerate(lengths):
            entered[index] = packer.counts.rows
            yield RawSample(index, np.full(length, index, "<u2"))

    waits = [
        number - entered[document[0]]
        for number, row in enumerate(packed(packer, counted()))
        for document in documents(row)
    ]
    assert len(waits) == 4000
    assert 1 < max(waits) < 32


def test_rolling_leaves_few_gaps() -> None:
    generator = np.random.default_rng(1)
    row, count = 4096, 3000
    lengths = np.clip(generator.lognormal(np.log(926) - 0.32, 0.8, count).astype(int), 1, row).tolist()

    def fill(pool_size: int) -> float:
        packer = packer_of("rolling", TaskEncoder(context(row_tokens=row)), pool_size=pool_size)
        rows = sum(1 for _ in packed(packer, samples_of(lengths)))
        return float(sum(lengths) / rows / row)

    assert fill(64) >= 0.99
    assert fill(256) >= 0.997


def test_rows_of_a_stream_are_these_on_every_machine() -> None:
    lengths = [int(value) % 13 + 1 for value in np.cumsum(np.arange(30) ** 2)]
    rows = [
        [document[0] for document in documents(row)]
        for row in packed(packer_of("rolling", pool_size=6), samples_of(lengths))
    ]
    assert rows == GOLDEN_ROWS


GOLDEN_ROWS = [
    [0, 1, 2, 3, 4],
    [5, 6, 7],
    [8, 12, 13],
    [9, 14],
    [10, 16, 17],
    [11, 19],
    [15, 21],
    [18, 20, 25],
    [22, 26, 27],
    [23, 28],
    [24, 29],
]


def test_split_sample_counts_once_and_its_pieces_keep_documents_and_labels() -> None:
    labels = np.arange(20)
    labels[17] = IGNORED_LABEL
    raw = RawSample(3, np.arange(20, dtype="<u2"), labels, np.array([10, 10]))
    packer = packer_of(oversized="split", pool_size=4)
    first, second = packed(packer, iter([raw]))
    assert first.input_ids.tolist() + second.input_ids.tolist() == list(range(20))
    assert (first.source_count, second.source_count) == (0, 1)
    assert first.sequence_lengths is not None
    assert first.sequence_lengths.tolist() == [10, 6]
    assert second.labels is not None
    assert second.labels.tolist() == [IGNORED_LABEL, IGNORED_LABEL, 18, 19]
    assert (packer.counts.split, packer.counts.finished) == (1, 1)


def test_oversized_sample_is_an_error_by_default_and_says_what_is_allowed() -> None:
    packer = packer_of()
    with pytest.raises(CorruptData, match=r'data index 1 has 17 tokens, a row 16.*allowed: "truncate"') as caught:
        list(packed(packer, samples_of([4, 17])))
    assert caught.value.context["data_index"] == 1


def test_packer_takes_no_sample_that_it_does_not_want() -> None:
    packer, samples = packer_of(pool_size=2), samples_of([1, 1, 1])
    assert packer.take(samples)
    assert packer.take(samples)
    assert [raw.index for raw in samples] == [2]
    packer.finish()
    assert packer.take(samples_of([1]))
    assert packer.counts.samples == 2


def test_encoder_may_return_one_object_for_several_samples() -> None:
    class Same(TaskEncoder):
        kept = EncodedSample(np.full(5, 7, "<u2"))

        def encode_sample(self, sample: RawSample) -> EncodedSample:
            return self.kept

    packer = packer_of("rolling", Same(context()), pool_size=4)
    assert packer.take(samples_of([1, 1, 1, 1]))
    assert [sample.index for sample in packer._pool] == [0, 1, 2, 3]
    packer.finish()
    assert [row.source_count for row in packed(packer, iter(()))] == [3, 1]
