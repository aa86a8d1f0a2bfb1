"""The time limit of RoundTrain: it follows the rounds that were applied, within bounds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.pace import (
    LIMIT_PER_LAST,
    LIMIT_PER_MEDIAN,
    MAX_DOUBLINGS,
    SHORTEST_LIMIT_S,
    TRAIN_TIMES_KEPT,
    TRAIN_TIMES_NEEDED,
    train_limit_s,
    with_pace,
)
from epochal.coordinator.machine.run import Run
from epochal.state.intervals import total_batches
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256
from tests.support.drive.machine_driver import Driver, client, in_round

MOST_S = 60.0
WIDE = {"config__global_batch_size_start": 64, "config__global_batch_size_end": 64}


def run_with(times: list[float], slow_rounds: int = 0) -> Run:
    before = in_round(1, 2).run
    return before.with_parts(replace(before.pace, train_times=tuple(times), slow_rounds=slow_rounds))


def deliver_at(driver: Driver, *clients: int, after_s: float) -> None:
    working = [client(number) for number in clients if client(number) in driver.workers()]
    driver.now_s += after_s if working else 0.0
    driver.deliver(*working)


def play_rounds(driver: Driver, count: int, took_s: float) -> None:
    """Play rounds in which everybody delivers after the same time."""
    for _ in range(count):
        driver.now_s += took_s
        driver.play_round()


def limit_of(driver: Driver) -> float:
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert driver.run.clock.phase_ends_s is not None
    return driver.run.clock.phase_ends_s - driver.run.clock.phase_started_s


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
        ([2.0] * TRAIN_TIMES_NEEDED, 4, MOST_S),
        ([100.0] * TRAIN_TIMES_NEEDED, 0, MOST_S),
    ],
)
def test_limit_is_a_multiple_of_the_median_within_bounds(times: list[float], slow_rounds: int, limit_s: float) -> None:
    assert train_limit_s(run_with(times, slow_rounds).pace, MOST_S) == pytest.approx(limit_s)


@given(st.lists(st.floats(0, 1e9), max_size=TRAIN_TIMES_KEPT), st.integers(0, MAX_DOUBLINGS))
def test_limit_is_never_below_the_shortest_nor_above_the_longest(times: list[float], slow_rounds: int) -> None:
    assert SHORTEST_LIMIT_S <= train_limit_s(run_with(times, slow_rounds).pace, MOST_S) <= MOST_S


def test_limit_follows_the_rounds_that_were_applied() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    play_rounds(driver, TRAIN_TIMES_NEEDED - 1, 2.0)
    assert limit_of(driver) == MOST_S
    play_rounds(driver, 1, 2.0)
    assert limit_of(driver) == pytest.approx(LIMIT_PER_MEDIAN * 2)
    play_rounds(driver, TRAIN_TIMES_KEPT, 1.6)
    assert driver.run.pace.train_times == pytest.approx((1.6,) * TRAIN_TIMES_KEPT)
    assert limit_of(driver) == pytest.approx(LIMIT_PER_MEDIAN * 1.6)


def test_one_that_is_slow_does_not_count_in_the_time_of_the_others() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=50)
    for _ in range(TRAIN_TIMES_NEEDED):
        deliver_at(driver, 1, 2, 3, after_s=1.0)
        deliver_at(driver, 4, after_s=40.0)
        driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.run.pace.train_times == pytest.approx((1.0,) * TRAIN_TIMES_NEEDED)


def test_time_until_a_quorum_had_attested_counts() -> None:
    driver = in_round(1, 2, 3)
    deliver_at(driver, 1, 2, 3, after_s=1.0)
    driver.now_s += 5.0
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.run.pace.train_times == pytest.approx((6.0,))


def test_time_of_a_round_that_was_closed_counts_its_witnessing() -> None:
    driver = in_round(1, 2, 3, 4)
    deliver_at(driver, 1, 2, 3, after_s=1.0)
    driver.pass_time(MOST_S)
    driver.now_s += 2.0
    driver.attest(*(client(number) for number in (1, 2, 3)))
    assert driver.run.progress.step == 2
    assert driver.run.pace.train_times == pytest.approx((3.0,))


def test_limit_doubles_while_most_of_the_work_is_missing() -> None:
    driver = in_round(1, 2, 3, config__total_steps=50)
    play_rounds(driver, TRAIN_TIMES_NEEDED, 2.0)
    limits = []
    for _ in range(2):
        limits.append(limit_of(driver))
        driver.pass_time(limits[-1])
    assert limits == pytest.approx([4.0, 8.0])
    assert limit_of(driver) == pytest.approx(16.0)
    deliver_at(driver, 1, 2, 3, after_s=15.0)
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.run.pace.slow_rounds == 0
    assert limit_of(driver) == pytest.approx(LIMIT_PER_LAST * 15), "it does not fall below what rounds take now"


def test_limit_stays_where_less_than_half_of_the_work_is_missing() -> None:
    driver = in_round(1, 2, 3, 4, config__total_steps=50)
    play_rounds(driver, TRAIN_TIMES_NEEDED, 2.0)
    deliver_at(driver, 1, 2, 3, after_s=2.0)
    driver.pass_time(limit_of(driver))
    driver.attest(*(client(number) for number in (1, 2, 3)))
    assert driver.run.pace.slow_rounds == 0
    assert limit_of(driver) == pytest.approx(4.0)


def test_third_that_is_late_lengthens_the_limit_little_and_not_for_long() -> None:
    """They get less work, and none in the end: the others do it sooner."""
    driver = in_round(1, 2, 3, 4, 5, 6, config__total_steps=50)
    play_rounds(driver, TRAIN_TIMES_NEEDED, 2.0)
    limits = []
    for _ in range(TRAIN_TIMES_KEPT):
        deliver_at(driver, 1, 2, 3, 4, after_s=2.0)
        deliver_at(driver, 5, 6, after_s=limit_of(driver) - 2.1)
        driver.attest(*driver.round.tasks.plan.witnesses)
        limits.append(limit_of(driver))
    assert max(limits) <= 1.2 * LIMIT_PER_MEDIAN * 2
    assert limits[4:] == pytest.approx([LIMIT_PER_MEDIAN * 2] * (TRAIN_TIMES_KEPT - 4))


def test_outage_of_the_coordinator_is_not_part_of_a_rounds_time() -> None:
    driver = in_round(1, 2, 3)
    driver.now_s += 10_000
    driver.send(stimuli.CoordinatorStarted())
    deliver_at(driver, 1, 2, 3, after_s=1.0)
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.run.pace.train_times == pytest.approx((1.0,))


@pytest.mark.parametrize(("delivered", "mostly_in_s"), [(5, None), (6, 5.0)])
def test_most_of_the_work_is_half_of_the_batches(delivered: int, mostly_in_s: float | None) -> None:
    before = in_round(1, 2).round
    before = before.with_parts(replace(before.times, delivered_batches=delivered - 6))
    current = before.with_verified(client(1), Sha256("0"), 1.0, 5.0)
    assert (current.times.delivered_batches, current.times.mostly_in_s, current.times.last_in_s) == (
        delivered,
        mostly_in_s,
        5.0,
    )
    later = current.with_verified(client(2), Sha256("0"), 1.0, 6.0)
    assert (later.times.delivered_batches, later.times.last_in_s) == (delivered + 6, 6.0)
    assert later.times.mostly_in_s == (mostly_in_s or 6.0)


@pytest.mark.parametrize(
    ("delivered", "timed_out", "slow"), [(5, True, 4), (6, True, 0), (5, False, 0), (12, False, 0)]
)
def test_round_is_slow_if_over_half_was_missing_at_its_time(delivered: int, timed_out: bool, slow: int) -> None:
    run = run_with([1.0], slow_rounds=3)
    assert run.round is not None
    current = run.round.with_parts(
        replace(run.round.times, delivered_batches=delivered, timed_out=timed_out, train_s=2.0)
    )
    assert with_pace(run.pace, run.clock, current, is_applied=False).slow_rounds == slow
    assert with_pace(run.pace, run.clock, current, is_applied=False).train_times == (1.0,)


def test_slow_rounds_are_counted_up_to_the_last_doubling() -> None:
    run = run_with([], slow_rounds=MAX_DOUBLINGS)
    assert run.round is not None
    current = run.round.with_parts(replace(run.round.times, delivered_batches=0, timed_out=True))
    assert with_pace(run.pace, run.clock, current, is_applied=True).slow_rounds == MAX_DOUBLINGS


def test_limit_doubles_no_further_than_its_bound() -> None:
    run = run_with([2.0] * TRAIN_TIMES_NEEDED, slow_rounds=MAX_DOUBLINGS + 1)
    assert train_limit_s(run.pace, 10.0**9) == LIMIT_PER_MEDIAN * 2 * 2**MAX_DOUBLINGS


def test_closed_round_took_until_most_was_in_and_what_the_witnesses_added() -> None:
    before = in_round(1, 2).round
    current = before.with_parts(replace(before.times, mostly_in_s=3.0, last_in_s=7.0))
    over = replace(current.times, trained_s=20.0, timed_out=True, train_s=3.0)
    assert current.closed(20.0).times == over
    missing = replace(current.missing, pending=frozenset())
    complete = current.with_parts(missing, replace(current.times, settled_in_s=7.0, complete_in_s=7.0))
    assert complete.closed(9.0).times == replace(complete.times, trained_s=9.0, train_s=5.0)
    empty = complete.with_parts(replace(complete.times, mostly_in_s=None))
    assert empty.closed(9.0).times == replace(empty.times, trained_s=9.0)


@pytest.mark.parametrize(("last_in_s", "waited_s"), [(2.0, 4.0), (5.0, 2.0), (9.0, 0.0)])
def test_wait_in_vain_begins_with_the_last_result(last_in_s: float, waited_s: float) -> None:
    before = in_round(1, 2).round
    current = before.with_parts(replace(before.times, settled_in_s=3.0, complete_in_s=7.0, last_in_s=last_in_s))
    assert current.closed(10.0).times.waited_s == waited_s


def test_time_of_an_applied_round_includes_its_witnessing() -> None:
    run = run_with([1.0])
    assert run.round is not None
    run = run.with_parts(replace(run.clock, now_s=run.clock.phase_started_s + 4.0))
    assert run.round is not None
    current = run.round.with_parts(replace(run.round.times, delivered_batches=12, train_s=2.0))
    assert with_pace(run.pace, run.clock, current, is_applied=True).train_times == (1.0, 6.0)
    assert with_pace(
        run.pace, run.clock, current.with_parts(replace(current.times, train_s=None)), is_applied=True
    ).train_times == (1.0,)


def test_update_that_comes_late_leaves_the_round_its_whole_time() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    driver.makes_updates = False
    driver.play_round()
    limit_s = driver.run.state_file.config.max_round_train_time
    driver.pass_time(limit_s)
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert driver.run.progress.attempt == 1
    assert not any(member.conduct.last_miss for member in driver.run.members.by_id.values())
    driver.pass_time(limit_s / 2)
    driver.make_update(1)
    assert driver.run.clock.phase_ends_s == driver.now_s + limit_s
    driver.pass_time(limit_s)
    assert all(member.conduct.last_miss for member in driver.run.members.by_id.values())


def test_members_that_need_longer_than_most_of_the_work_are_waited_for() -> None:
    """Two do most of the work in a third of the time that the other six need: none of these is late."""
    driver = in_round(*range(1, 9), config__init_min_clients=8, config__total_steps=40, **WIDE)
    fast = {client(1), client(2)}
    for _ in range(12):
        current = driver.round
        driver.now_s += 10
        driver.deliver(*(who for who in driver.workers() if who in fast))
        driver.now_s += 20
        driver.send(stimuli.Ticked())
        assert driver.round is not None
        assert driver.round.number == current.number
        driver.deliver(*(who for who in driver.workers() if who not in fast))
        driver.attest(*current.tasks.plan.witnesses)
        done = sum(total_batches(given) for who, given in current.tasks.plan.assignments.items() if who in fast)
    assert 2 * done >= current.tasks.work.batch_count()
    assert not any(member.conduct.last_miss for member in driver.run.members.by_id.values())
