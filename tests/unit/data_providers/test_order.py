"""`data_providers/order.py`: one order of the data on every machine."""

import hashlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.order import MAX_PASSES, DataFile, DataOrder, Extent
from epochal.data_providers.protocol import CorruptData, DatasetSpec, OutOfRange
from epochal.state.intervals import DataIds
from tests.support.data.data_oracle import slow_order

SEED = bytes(range(32))


def order_of(token_counts: list[int], length: int, seed: bytes | None = SEED) -> DataOrder[DataFile]:
    files = [DataFile(f"{number:05}.bin", 2 * count, count) for number, count in enumerate(token_counts)]
    return DataOrder(reversed(files), DatasetSpec(2, length, seed))


def samples(order: DataOrder[DataFile], start: int, end: int) -> list[tuple[int, int]]:
    extents = order.locate(DataIds(start, end))
    return [(extent.file, extent.sequence + i) for extent in extents for i in range(extent.length)]


def golden_order() -> DataOrder[DataFile]:
    files = [DataFile(f"{number}.bin", 2 * 500_000, 500_000) for number in range(4)] + [DataFile("z.bin", 1414, 707)]
    return DataOrder(files, DatasetSpec(2, 100, SEED))


def test_order_golden_vectors_never_change() -> None:
    order = golden_order()
    assert order.locate(DataIds(20_000, 20_100)) == [
        Extent(1, 2721, 7),
        Extent(1, 3416, 16),
        Extent(3, 4984, 16),
        Extent(3, 2840, 16),
        Extent(0, 0, 16),
        Extent(0, 3344, 16),
        Extent(2, 2032, 14),
    ]
    three_passes = [tuple(extent) for extent in order.locate(DataIds(0, 3 * order.sequence_count - 1))]
    digest = hashlib.sha256(repr(three_passes).encode()).hexdigest()
    assert digest == "3c951c90e950ee62e557278d9e7e116b0dc93a77bdbd84892cc8588caffdb76b"


def test_fingerprint_golden_vector_never_changes() -> None:
    order = DataOrder([DataFile("b.bin", 90, 45), DataFile("a.bin", 42, 21)], DatasetSpec(2, 5, SEED))
    assert order.fingerprint == "a7ac518b7b7d76c251913321dc7660f9947af865435cbc665f0fd6d42077cc3b"


FILE_SIZES = st.lists(st.integers(0, 90), min_size=1, max_size=8)


@given(FILE_SIZES, st.integers(1, 9), st.one_of(st.none(), st.binary(min_size=32, max_size=32)), st.data())
def test_order_any_dataset_agrees_with_the_slow_order(
    token_counts: list[int], length: int, seed: bytes | None, data: st.DataObject
) -> None:
    counts = [tokens // length for tokens in token_counts]
    if not sum(counts):
        with pytest.raises(CorruptData):
            order_of(token_counts, length, seed)
        return
    order = order_of(token_counts, length, seed)
    expected = [sample for number in range(3) for sample in slow_order(counts, seed, number)]
    start = data.draw(st.integers(0, len(expected) - 1))
    end = data.draw(st.integers(start, len(expected) - 1))
    assert samples(order, start, end) == expected[start : end + 1]


@pytest.mark.parametrize("counts", [[20_000], [3000, 1, 0, 5000, 77], [1024 * 16], [1024 * 16 + 15], [1024 * 3 + 2]])
def test_order_in_blocks_agrees_with_the_slow_order(counts: list[int]) -> None:
    order = order_of([3 * count + 2 for count in counts], 3)
    expected = [sample for number in range(2) for sample in slow_order(counts, SEED, number)]
    assert samples(order, 0, len(expected) - 1) == expected
    for start in range(0, len(expected) - 700, 613):
        assert samples(order, start, start + 699) == expected[start : start + 700]


def test_order_without_seed_follows_the_files_by_name() -> None:
    order = order_of([10, 4, 25], 5, seed=None)
    assert order.locate(DataIds(0, 9)) == [Extent(0, 0, 2), Extent(2, 0, 5), Extent(0, 0, 2), Extent(2, 0, 1)]
    assert order.dropped_tokens == {"00001.bin": 4}


def test_order_beyond_the_last_pass_is_out_of_range() -> None:
    order = order_of([10], 5)
    last = 2 * MAX_PASSES - 1
    assert sum(extent.length for extent in order.locate(DataIds(last, last))) == 1
    with pytest.raises(OutOfRange):
        order.locate(DataIds(last, last + 1))


def test_order_two_files_of_one_name_are_refused() -> None:
    with pytest.raises(CorruptData, match=r"a\.bin"):
        DataOrder([DataFile("a.bin", 20, 10), DataFile("a.bin", 40, 20)], DatasetSpec(2, 5))


def test_fingerprint_changes_with_everything_that_changes_samples() -> None:
    def of(files: list[DataFile], spec: DatasetSpec) -> str:
        return DataOrder(files, spec).fingerprint

    a, b = DataFile("a.bin", 40, 20), DataFile("b.bin", 40, 20)
    spec = DatasetSpec(2, 5, SEED)
    fingerprints = {
        of([a, b], spec),
        of([a], spec),
        of([a, DataFile("c.bin", 40, 20)], spec),
        of([a, DataFile("b.bin", 44, 22)], spec),
        of([a, b], DatasetSpec(4, 5, SEED)),
        of([a, b], DatasetSpec(2, 4, SEED)),
        of([a, b], DatasetSpec(2, 5, SEED[::-1])),
        of([a, b], DatasetSpec(2, 5)),
    }
    assert len(fingerprints) == 8
    assert of([b, a], spec) == of([a, b], spec)


def test_order_of_a_huge_dataset_takes_memory_for_its_files_only() -> None:
    files = [DataFile(f"{number:05}.bin", 2 * 10**8, 10**8) for number in range(10_000)]
    tracemalloc.start()
    order = DataOrder(files, DatasetSpec(2, 2048, SEED))
    for start in range(0, 10**8, 10**6):
        order.locate(DataIds(start, start + 255))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert order.sequence_count == 10_000 * (10**8 // 2048)
    assert peak_bytes < 20 * 1024**2
