"""The time limit of RoundTrain: it follows the rounds that were applied, within bounds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.machine import stimuli
from coordinator.machine.pace import (
    LIMIT_PER_LAST,
    LIMIT_PER_MEDIAN,
    MAX_DOUBLINGS,
    SHORTEST_LIMIT_S,
    TRAIN_TIMES_KEPT,
    TRAIN_TIMES_NEEDED,
    train_limit_s,
)
from coordinator.machine.run import Run
from state.phases import RunState
from tests.support.machine_driver import Driver, client, in_round

MOST_S = 60.0


def run_with(times: list[float], slow_rounds: int = 0) -> Run:
    return replace(in_round(1, 2).run, train_times=tuple(times), slow_rounds=slow_rounds)


def deliver_at(driver: Driver, *clients: int, after_s: float) -> None:
    driver.now_s += after_s
    driver.deliver(*(client(number) for number in clients))


def play_rounds(driver: Driver, count: int, took_s: float) -> None:
    """Play rounds in which everybody delivers after the same time."""
    for _ in range(count):
        driver.now_s += took_s
        driver.play_round()


def limit_of(driver: Driver) -> float:
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert driver.run.phase_ends_s is not None
    return driver.run.phase_ends_s - driver.run.phase_started_s


@pytest.mark.parametrize(
    ("times", "slow_rounds", "limit_s"),
    [
        ([], 0, MOST_S),
        ([1.0] * (TRAIN_TIMES_NEEDED - 1), 0, MOST_S),
        ([0.01] * TRAIN_TIMES_NEEDED, 0, SHORTEST_LIMIT_S),
        ([2.0] * TRAIN_TIMES_NEEDED, 0, LIMIT_PER_MEDIAN * 2),
        ([1.0, 9.0, 2.0, 9.0, 1.0], 0, LIMIT_PER_MEDIAN * 2),
        ([1.0] * 9 + [10.0], 0, LIMIT_PER_LAST * 10),
        ([2.0] * TRAIN_TIMES_NEEDED, 1, LIMIT_PER_MEDIAN * 4),
        ([2.0] * TRAIN_TIMES_NEEDED, 2, LIMIT_PER_MEDIAN * 8),
        ([2.0] * TRAIN_TIMES_NEEDED, 3, MOST_S),
        ([100.0] * TRAIN_TIMES_NEEDED, 0, MOST_S),
    ],
)
def test_limit_is_a_multiple_of_the_median_within_bounds(times: list[float], slow_rounds: int, limit_s: float) -> None:
    assert train_limit_s(run_with(times, slow_rounds)) == pytest.approx(limit_s)


@given(st.lists(st.floats(0, 1e9), max_size=TRAIN_TIMES_KEPT), st.integers(0, MAX_DOUBLINGS))
def test_limit_is_never_below_the_shortest_nor_above_the_longest(times: list[float], slow_rounds: int) -> None:
    assert SHORTEST_LIMIT_S <= train_limit_s(run_with(times, slow_rounds)) <= MOST_S


def test_limit_follows_the_rounds_that_were_applied() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    play_rounds(driver, TRAIN_TIMES_NEEDED - 1, 2.0)
    assert limit_of(driver) == MOST_S
    play_rounds(driver, 1, 2.0)
    assert limit_of(driver) == pytest.approx(LIMIT_PER_MEDIAN * 2)
    play_rounds(driver, TRAIN_TIMES_KEPT, 1.0)
    assert driver.run.train_times == pytest.approx((1.0,) * TRAIN_TIMES_KEPT)
    assert limit_of(driver) == pytest.approx(LIMIT_PER_MEDIAN)


def test_one_that_is_slow_does_not_count_in_the_time_of_the_others() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=50)
    for _ in range(TRAIN_TIMES_NEEDED):
        deliver_at(driver, 1, 2, 3, after_s=1.0)
        deliver_at(driver, 4, after_s=40.0)
        driver.attest(*driver.round.plan.witnesses)
    assert driver.run.train_times == pytest.approx((1.0,) * TRAIN_TIMES_NEEDED)


def test_time_until_a_quorum_had_attested_counts() -> None:
    driver = in_round(1, 2, 3)
    deliver_at(driver, 1, 2, 3, after_s=1.0)
    driver.now_s += 5.0
    driver.attest(*driver.round.plan.witnesses)
    assert driver.run.train_times == pytest.approx((6.0,))


def test_time_of_a_round_that_was_closed_counts_its_witnessing() -> None:
    driver = in_round(1, 2, 3, 4)
    deliver_at(driver, 1, 2, 3, after_s=1.0)
    driver.pass_time(MOST_S)
    driver.now_s += 2.0
    driver.attest(*(client(number) for number in (1, 2, 3)))
    assert driver.run.step == 2
    assert driver.run.train_times == pytest.approx((3.0,))


def test_limit_doubles_while_most_of_the_work_is_missing() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    play_rounds(driver, TRAIN_TIMES_NEEDED, 1.0)
    limits = []
    for _ in range(2):
        limits.append(limit_of(driver))
        driver.pass_time(limits[-1])
    assert limits == pytest.approx([4.0, 8.0])
    assert limit_of(driver) == pytest.approx(16.0)
    deliver_at(driver, 1, 2, 3, after_s=15.0)
    driver.attest(*driver.round.plan.witnesses)
    assert driver.run.slow_rounds == 0
    assert limit_of(driver) == pytest.approx(LIMIT_PER_LAST * 15), "it does not fall below what rounds take now"


def test_limit_stays_where_less_than_half_of_the_work_is_missing() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=50)
    play_rounds(driver, TRAIN_TIMES_NEEDED, 1.0)
    deliver_at(driver, 1, 2, 3, after_s=1.0)
    driver.pass_time(limit_of(driver))
    driver.attest(*(client(number) for number in (1, 2, 3)))
    assert driver.run.slow_rounds == 0
    assert limit_of(driver) == pytest.approx(4.0)


def test_outage_of_the_coordinator_is_not_part_of_a_rounds_time() -> None:
    driver = in_round(1, 2, 3)
    driver.now_s += 10_000
    driver.send(stimuli.CoordinatorStarted())
    deliver_at(driver, 1, 2, 3, after_s=1.0)
    driver.attest(*driver.round.plan.witnesses)
    assert driver.run.train_times == pytest.approx((1.0,))
