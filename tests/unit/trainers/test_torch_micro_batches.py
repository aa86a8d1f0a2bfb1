"""How examples are grouped into micro-batches, and how a micro-batch that does not fit is halved."""

from hypothesis import given
from hypothesis import strategies as st

from epochal.trainers.torch.micro_batch_sizes import MicroBatchSize, grouped

sizes = st.lists(st.integers(0, 40), max_size=30)


@given(sizes, st.integers(1, 200))
def test_groups_hold_every_example_once_and_fit(sizes: list[int], places: int) -> None:
    groups = grouped(sizes, places)
    assert sorted(p for group in groups for p in group) == [p for p, size in enumerate(sizes) if size]
    for group in groups:
        longest = max(sizes[p] for p in group)
        assert len(group) == 1 or len(group) * longest <= places
        assert longest == sizes[group[0]]


def test_groups_of_one_length_keep_the_order() -> None:
    assert grouped([7] * 5, 14) == [[0, 1], [2, 3], [4]]
    assert grouped([3, 9, 3, 9], 18) == [[1, 3], [0, 2]]


def test_size_is_the_chosen_number_of_rows_but_not_more_than_there_are() -> None:
    assert MicroBatchSize(4, 100).rows([16] * 10) == 4
    assert MicroBatchSize(4, 100).rows([16] * 3) == 3
    assert MicroBatchSize(None, 100).rows([16] * 10) == 6
    assert MicroBatchSize(None, 100).rows([160] * 10) == 1
    assert MicroBatchSize(4, 100).rows([16, 1, 1, 1]) == 2


def test_size_that_has_fitted_is_kept_for_longer_and_shorter_rows() -> None:
    size = MicroBatchSize(None, 1000)
    assert size.halve(size.rows([10] * 64), 10) == 32
    assert size.rows([10] * 64) == 32
    assert size.rows([20] * 64) == 16
    assert size.rows([5] * 128) == 64
    assert size.halve(1, 10) == 1
