"""The speed of a member, from deliveries as the coordinator timed them."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.machine.parts.speed import KEPT, MAX_MS, UNKNOWN, Speed, TimedDelivery, delivered


def after(deliveries: Iterable[tuple[int, int, int]]) -> Speed:
    """Return the speed after deliveries of so many batches, with milliseconds of work and of upload."""
    speed = UNKNOWN
    for one in deliveries:
        speed = speed.after(TimedDelivery(*one))
    return speed


Times = list[tuple[int, int, int]]
"""Batches, and milliseconds of work and of upload, of deliveries."""


def taking(*batches: int, start_ms: int = 4000, batch_ms: int = 1000, upload_ms: int = 500) -> Times:
    return [(count, start_ms + count * batch_ms, upload_ms) for count in batches]


def ms_of(speed: Speed, batches: int) -> float:
    return speed.time_us(batches) / 1000


def test_delivery_is_work_until_the_commitment_and_upload_after_it() -> None:
    assert delivered(3, 12.5, 10.0, 500) == TimedDelivery(3, 10_000, 2000)


def test_delivery_whose_bytes_come_along_has_no_upload() -> None:
    assert delivered(3, 12.5, None, 500) == TimedDelivery(3, 12_000, 0)


@pytest.mark.parametrize(("held_s", "committed_s", "check_ms"), [(1.0, 2.0, None), (1.0, 1.0, 5000), (0.0, None, 1)])
def test_no_time_of_a_delivery_is_below_nothing(held_s: float, committed_s: float, check_ms: int | None) -> None:
    found = delivered(1, held_s, committed_s, check_ms)
    assert min(found) >= 0
    assert found.work_ms + found.upload_ms <= 1000 * held_s


def test_absurd_time_of_a_delivery_is_bounded() -> None:
    assert delivered(1, 1e300, None, None).work_ms == MAX_MS


def test_one_delivery_shows_the_time_of_its_own_size() -> None:
    assert ms_of(after([(8, 4000, 300)]), 8) == 4300


def test_deliveries_of_different_sizes_tell_start_from_batches() -> None:
    found = after(taking(1, 2, 4, 8))
    assert (found.fixed_us, found.batch_us) == (4_500_000, 1_000_000)


def test_sizes_that_hardly_differ_tell_nothing() -> None:
    assert after([(100, 10_000, 0), (101, 20_000, 0)]).batch_us > 0
    assert after([(100, 10_000, 0), (101, 10_100, 0)]).fixed_us == 0


def test_only_the_last_deliveries_count() -> None:
    assert len(after(taking(*range(1, 40))).deliveries) == KEPT
    assert after(taking(*[2] * 20, batch_ms=9000) + taking(*[2] * KEPT)) == after(taking(*[2] * KEPT))


def test_one_slow_round_is_forgotten_after_the_next() -> None:
    usual, slow = taking(*[4] * 8), taking(4, start_ms=60_000)
    before, during, later = after(usual), after(usual + slow), after(usual + slow + usual[:1])
    assert ms_of(during, 4) == pytest.approx(64_500, rel=0.01)
    assert ms_of(later, 4) == ms_of(before, 4)


def test_speed_that_falls_is_known_at_once_and_its_rise_after_three_rounds() -> None:
    fast, slow = taking(*[4] * 16, start_ms=0), taking(*[4] * 16, start_ms=0, batch_ms=3000)
    assert ms_of(after(fast + slow[:1]), 4) == 12_500
    assert [ms_of(after(slow + fast[:count]), 4) < 5000 for count in range(1, 5)] == [False, False, True, True]


@pytest.mark.parametrize("first", [1, 10])
def test_speed_that_jumps_counts_as_the_lower_one(first: int) -> None:
    each = [(4, 4000 * (first if number % 2 else 11 - first), 0) for number in range(40)]
    assert all(ms_of(after(each[:count]), 4) == 40_000 for count in range(4, 40))


def test_noise_of_a_twentieth_moves_the_speed_by_less() -> None:
    noisy = [(4, 4000 + (37 * number % 401 - 200), 0) for number in range(60)]
    found = [ms_of(after(noisy[:count]), 4) for count in range(16, 60)]
    assert max(found) - min(found) < 200


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, MAX_MS), st.integers(0, MAX_MS)), min_size=1))
def test_time_of_a_batch_is_above_nothing_whatever_comes(deliveries: list[tuple[int, int, int]]) -> None:
    found = after(deliveries)
    assert found.batch_us >= 1
    assert 0 <= found.fixed_us < 2**61
    assert found.time_us(10**6) < 2**63


@given(st.integers(4, 7), st.integers(0, 3), st.integers(1, 10**4))
def test_steady_member_whose_work_grows_is_timed_exactly(rounds: int, start_batches: int, batch_ms: int) -> None:
    sizes = [2**number for number in range(2, 2 + rounds)]
    start_ms = start_batches * batch_ms
    found = after(taking(*sizes, start_ms=start_ms, batch_ms=batch_ms, upload_ms=0))
    assert ms_of(found, sizes[-1]) == pytest.approx(start_ms + batch_ms * sizes[-1], rel=0.01)
