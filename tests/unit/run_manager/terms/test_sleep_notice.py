"""A process that slept says for how long; one that computed did not sleep."""

from hypothesis import given
from hypothesis import strategies as st

from epochal.run_manager.terms.sleep_notice import MIN_SLEEP_S, TICK_S, Clocks, Slept, slept_between

START = Clocks(1000.0, 400.0, 7.0)
GAPS = st.floats(MIN_SLEEP_S + 1, 1e6)


def after(boot_s: float, monotonic_s: float, cpu_s: float) -> Clocks:
    return Clocks(START.boot_s + boot_s, START.monotonic_s + monotonic_s, START.cpu_s + cpu_s)


@given(GAPS)
def test_suspended_machine_slept(gap_s: float) -> None:
    """Its monotonic clock stood still."""
    slept = slept_between(START, after(gap_s + TICK_S, TICK_S, 0.0))
    assert slept is not None
    assert abs(slept.slept_s - gap_s) < 1e-3
    assert slept.of_machine


@given(GAPS)
def test_stopped_process_slept_and_the_machine_did_not(gap_s: float) -> None:
    slept = slept_between(START, after(gap_s + TICK_S, gap_s + TICK_S, 0.01))
    assert slept is not None
    assert abs(slept.slept_s - gap_s) < 1e-3
    assert not slept.of_machine


@given(GAPS)
def test_process_that_computed_did_not_sleep(gap_s: float) -> None:
    assert slept_between(START, after(gap_s + TICK_S, gap_s + TICK_S, gap_s)) is None


@given(st.floats(0, MIN_SLEEP_S - 0.1), st.floats(0, 1))
def test_short_delay_is_no_sleep(late_s: float, cpu_s: float) -> None:
    assert slept_between(START, after(late_s + TICK_S, late_s + TICK_S, cpu_s)) is None


def test_clocks_go_on() -> None:
    before = Clocks.now()
    assert all(later >= earlier for earlier, later in zip(before, Clocks.now(), strict=True))
    assert slept_between(before, Clocks.now()) is None
    assert Slept(12.0, of_machine=True).slept_s == 12.0
