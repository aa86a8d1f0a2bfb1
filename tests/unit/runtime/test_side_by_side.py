"""`runtime/side_by_side.py`: results in order, errors in their turn, and bounds."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.runtime.side_by_side import CALLS_PER_THREAD, side_by_side
from tests.support.bounds import BOUND_S


@given(st.lists(st.integers(), max_size=40), st.integers(1, 5))
def test_results_come_in_the_order_of_the_items(items: list[int], threads: int) -> None:
    assert list(side_by_side(lambda item: item * 3, items, threads)) == [item * 3 for item in items]


def test_calls_run_side_by_side() -> None:
    together = threading.Barrier(3, timeout=BOUND_S)
    assert sorted(side_by_side(lambda _: together.wait(), range(3), 3)) == [0, 1, 2]


def test_error_of_a_call_is_raised_in_its_turn() -> None:
    results = side_by_side(lambda item: 10 // item, [5, 2, 0, 1], 2)
    assert [next(results), next(results)] == [2, 5]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert list(results) == []


def test_threads_are_a_bounded_number_of_items_ahead() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = side_by_side(lambda item: item, items(), 2)
    assert next(results) == 0
    assert len(taken) == 2 * CALLS_PER_THREAD + 1
    results.close()  # type: ignore[attr-defined]
    assert len(taken) == 2 * CALLS_PER_THREAD + 1
