"""Rows of a whole history, merged for its pages as the rounds end: as if each page were made anew."""

import pytest

from epochal.coordinator.insight import thinning
from epochal.coordinator.insight.thinning import Thinning
from epochal.state.messages.history_rows import RoundFigures, thinned
from tests.support.data.figure_rows import rows

MOST = 4


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinning, "USUAL_POINTS", (MOST,))


def test_rows_are_those_that_are_merged_anew() -> None:
    kept, whole = Thinning(), rows(0, 40)
    for count in range(len(whole) + 1):
        assert kept.thinned(whole[:count], MOST) == thinned(whole[:count], MOST)


def test_of_the_next_page_only_the_last_row_is_new() -> None:
    kept, whole = Thinning(), rows(0, 38)
    before, after = kept.thinned(whole[:-1], MOST), kept.thinned(whole, MOST)
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, True, True, False]


def test_rows_of_another_history_are_not_taken_for_those_that_are_kept() -> None:
    kept, other = Thinning(), rows(0, 38, late_s=1.0)
    kept.thinned(rows(0, 38), MOST)
    assert kept.thinned(other, MOST) == thinned(other, MOST)


def test_unusual_pages_are_not_kept() -> None:
    kept, whole = Thinning(), list[RoundFigures](rows(0, 38))
    first, again = kept.thinned(whole, MOST - 1), kept.thinned(whole, MOST - 1)
    assert first == again
    assert not any(one is other for one, other in zip(first, again, strict=True))
