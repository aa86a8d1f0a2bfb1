"""The speed of a run: tokens per second of its rounds."""

from dataclasses import replace

import pytest

from epochal.state.messages.history_rows import RATED_ROWS, RoundFigures, speed_of
from tests.support.data.round_details import detail_of


def rows(gap_s: float, count: int = 3) -> list[RoundFigures]:
    return [
        replace(detail_of(number, started_s=number * (5.5 + gap_s)).figures, tokens=1_100) for number in range(count)
    ]


@pytest.mark.parametrize("gap_s", [0.0, 80.0])
def test_speed_is_that_of_rounds_and_not_of_what_lies_between(gap_s: float) -> None:
    assert speed_of(rows(gap_s)) == pytest.approx(200.0)


def test_speed_is_that_of_the_last_rows() -> None:
    slow = [replace(row, tokens=0) for row in rows(0.0, 4)]
    assert speed_of([*slow, *rows(0.0, RATED_ROWS)]) == pytest.approx(200.0)
    assert speed_of([]) == 0.0
