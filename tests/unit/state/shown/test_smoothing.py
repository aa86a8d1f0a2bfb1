"""The smoothed loss: a mean over neighbours on both sides, which neither lags nor leaves the range of the values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.shown.smoothing import smoothed

LOSSES = st.lists(st.one_of(st.none(), st.floats(-100, 100)), min_size=1, max_size=40)
HALVES = st.floats(0, 50)


def at_rounds(losses: list[float | None], half: float, weights: list[float] | None = None) -> list[float | None]:
    return smoothed(range(len(losses)), losses, weights or [1.0] * len(losses), half)


@given(LOSSES, HALVES)
def test_mean_is_within_the_values_and_unknown_where_they_are(losses: list[float | None], half: float) -> None:
    found = at_rounds(losses, half)
    known = [loss for loss in losses if loss is not None]
    for loss, mean in zip(losses, found, strict=True):
        assert (loss is None) == (mean is None)
        if mean is not None:
            assert min(known) - 1e-9 <= mean <= max(known) + 1e-9


@given(st.integers(1, 40), st.floats(-5, 5), HALVES)
def test_loss_that_falls_evenly_is_its_own_mean(count: int, slope: float, half: float) -> None:
    losses = [100 + slope * place for place in range(count)]
    assert at_rounds(list(losses), half) == pytest.approx(losses)


@given(LOSSES)
def test_values_stay_as_they_are_without_neighbours(losses: list[float | None]) -> None:
    assert at_rounds(losses, 0.0) == losses


@given(LOSSES, HALVES)
def test_mean_is_that_of_the_definition(losses: list[float | None], half: float) -> None:
    last = len(losses) - 1
    for place, mean in enumerate(at_rounds(losses, half)):
        reach = int(min(half + 1e-9, place, last - place))
        near = [loss for loss in losses[place - reach : place + reach + 1] if loss is not None]
        if mean is not None:
            assert mean == pytest.approx(sum(near) / len(near), abs=1e-9)


def test_value_that_represents_more_rounds_counts_for_each() -> None:
    assert at_rounds([1.0, 2.0, 6.0], 1.0, [1.0, 1.0, 2.0])[1] == pytest.approx((1 + 2 + 12) / 4)


def test_absurd_value_changes_its_neighbours_alone() -> None:
    found = at_rounds([1.0, 1.0, 1e300, 1.0, 1.0, 1.0, 1.0], 1.0)
    assert found[5:] == [1.0, 1.0]
