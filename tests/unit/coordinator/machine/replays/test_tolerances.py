"""Tolerances stay within fixed bounds, and within twice what calibration gives, whatever members deliver."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.machine.parts.verification import Distances
from epochal.coordinator.machine.replays.tolerances import (
    LEAST,
    LEAST_USUAL,
    MOST,
    PASSED_KEPT,
    PER_CALIBRATED,
    distances_key,
    is_beyond_calibrated,
    per_usual,
    tolerance_of,
    with_calibration,
    with_passed,
)
from epochal.state.wire import ClientId

ME, OTHER = ClientId("a" * 32), ClientId("b" * 32)
DISTANCES = st.floats(min_value=0, max_value=1e6)


def passed(*excess: float, client: ClientId = OTHER, calibrated: float | None = None) -> Distances:
    known = Distances(calibrated)
    for one in excess:
        known = with_passed(known, client, one)
    return known


@pytest.mark.parametrize(
    ("known", "tolerance"),
    [
        (None, MOST),
        (passed(0.01), MOST),
        (passed(calibrated=0.0), LEAST),
        (passed(calibrated=0.04), 0.06),
        (passed(*[0.03] * 64, calibrated=0.04), 0.09),
        (passed(*[0.06] * 64, calibrated=0.04), 0.12),
        (passed(*[0.01] * 60, *[0.05] * 3, calibrated=0.04), 0.06),
        (passed(calibrated=0.25), MOST),
    ],
)
def test_tolerance_follows_calibration_and_then_what_passed(known: Distances | None, tolerance: float) -> None:
    assert tolerance_of(known) == pytest.approx(tolerance)


@given(calibrations=st.lists(DISTANCES, min_size=1, max_size=4), excess=st.lists(DISTANCES, max_size=200))
def test_members_cannot_move_a_tolerance_out_of_its_bounds(calibrations: list[float], excess: list[float]) -> None:
    known = Distances()
    for one in calibrations:
        known = with_calibration(known, (one,))
    of_calibration = tolerance_of(known)
    for one in excess:
        known = with_passed(known, ME, one)
        assert LEAST <= tolerance_of(known) <= MOST
        assert tolerance_of(known) <= max(LEAST, 2 * PER_CALIBRATED * max(calibrations))
        assert tolerance_of(known) >= of_calibration
    assert len(known.passed) <= PASSED_KEPT


def test_class_that_nobody_calibrated_is_compared_with_calibrated_ones() -> None:
    made_up, wide, other_steps = (distances_key(*of) for of in (("a", "x", 8), ("b", "x", 8), ("c", "x", 30)))
    of_states = distances_key("b", "x", 8, of_states=True)
    known = {
        made_up: passed(*[0.2] * 64),
        wide: passed(calibrated=0.04),
        distances_key("x", "x", 8): passed(calibrated=0),
    }
    known |= {other_steps: passed(calibrated=0.15), of_states: passed(calibrated=0.15)}
    assert is_beyond_calibrated(known, made_up, 8, 0.061)
    assert is_beyond_calibrated(known, distances_key("d", "x", 8), 8, 0.061)
    assert not is_beyond_calibrated(known, made_up, 8, 0.06)
    assert not is_beyond_calibrated(known, wide, 8, 0.061)
    assert not is_beyond_calibrated({made_up: known[made_up]}, made_up, 8, 0.29)


def test_ones_own_distances_say_nothing_of_what_is_usual() -> None:
    known = passed(*[0.1] * 30, client=ME)
    assert per_usual(known, ME, 0.1) is None
    for _ in range(16):
        known = with_passed(known, OTHER, 0.02)
    assert per_usual(known, ME, 0.1) == pytest.approx(2.5)


def test_smallest_distance_is_usual_where_others_have_none() -> None:
    assert per_usual(passed(*[0.0] * 16), ME, LEAST_USUAL) == pytest.approx(0.5)
