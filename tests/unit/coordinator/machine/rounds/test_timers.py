"""The moment at which each time is over: not before, and exactly then."""

import pytest

from epochal.coordinator.machine import stimuli
from epochal.state.phase_names import RunState
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, in_round, in_warmup


def leaves(driver: Driver, end_s: float) -> bool:
    """Whether the run stays in its phase until just before this time and leaves it then."""
    phase = driver.run.clock.phase
    driver.now_s = end_s - 0.001
    driver.send(stimuli.Ticked())
    assert driver.in_phase(phase)
    driver.now_s = end_s
    driver.send(stimuli.Ticked())
    return not driver.in_phase(phase)


def test_run_warms_up_when_the_extra_time_for_members_is_over() -> None:
    driver = Driver(state_file(config__waiting_for_members_extra_time=7))
    driver.join(1)
    driver.now_s += 100
    driver.join(2)
    assert leaves(driver, driver.now_s + 7)
    assert driver.in_phase(RunState.WARMUP)


def test_others_have_half_of_the_warmup_after_enough_are_ready() -> None:
    driver = in_warmup(1, 2, 3)
    driver.now_s += 4
    driver.ready(client(1))
    assert leaves(driver, driver.now_s + 15)
    assert driver.in_phase(RunState.ROUND_TRAIN)


def test_warmup_with_enough_ready_members_ends_with_its_time() -> None:
    driver = in_warmup(1, 2, 3)
    began_s = driver.now_s
    driver.now_s += 20
    driver.ready(client(1))
    assert leaves(driver, began_s + 30)
    assert driver.in_phase(RunState.ROUND_TRAIN)


def test_warmup_in_which_too_few_are_ready_ends_with_its_time() -> None:
    driver = in_warmup(1, 2, config__min_clients=2)
    driver.ready(client(1))
    assert leaves(driver, driver.now_s + 30)
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)


@pytest.mark.parametrize("member_count", [1, 2])
def test_members_fewer_than_needed_end_the_warmup_at_once(member_count: int) -> None:
    driver = in_warmup(1, 2, 3, config__min_clients=2)
    for number in range(member_count + 1, 4):
        driver.send(stimuli.ClientWithdrew(client(number)))
    assert driver.in_phase(RunState.WARMUP) is (member_count == 2)


def test_rounds_training_and_witnessing_end_with_their_times() -> None:
    driver = in_round(1, 2)
    driver.deliver(client(1))
    assert leaves(driver, driver.now_s + 60)
    assert driver.in_phase(RunState.ROUND_WITNESS)
    assert leaves(driver, driver.now_s + 10)
    assert (driver.run.progress.step, driver.run.progress.attempt) == (1, 1)


@pytest.mark.parametrize(("after_s", "is_over"), [(99.999, False), (100, True)])
def test_epoch_ends_with_the_round_that_ends_after_its_time(after_s: float, is_over: bool) -> None:
    driver = in_warmup(1, 2, config__total_steps=9, config__epoch_time=100)
    driver.now_s += 20
    driver.warm_up()
    began_s = driver.now_s
    for _ in range(2):
        driver.now_s += 40
        driver.play_round()
    driver.now_s = began_s + after_s
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN) is is_over


def test_cooldown_ends_with_its_time() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    assert leaves(driver, driver.now_s + 30)
    assert driver.in_phase(RunState.FINISHED)


def test_every_running_time_moves_by_the_length_of_an_outage() -> None:
    driver = in_round(1, 2)
    before = driver.run
    driver.now_s += 1_000
    driver.send(stimuli.CoordinatorStarted())
    after = driver.run
    assert after.clock.phase_started_s - before.clock.phase_started_s == 1_000
    assert after.clock.epoch_started_s - before.clock.epoch_started_s == 1_000
    assert (after.clock.phase_ends_s or 0) - (before.clock.phase_ends_s or 0) == 1_000


def test_extra_time_for_members_goes_on_after_an_outage() -> None:
    driver = Driver(state_file(config__waiting_for_members_extra_time=7))
    driver.join(1, 2)
    enough_since_s = driver.now_s
    driver.now_s += 1_000
    driver.send(stimuli.CoordinatorStarted())
    assert driver.run.clock.enough_since_s == enough_since_s + 1_000
    assert leaves(driver, driver.now_s + 7)


def test_epoch_begins_with_its_first_round_and_counts_its_rounds() -> None:
    driver = in_warmup(1, 2, config__total_steps=9, config__epoch_time=100)
    driver.now_s += 20
    driver.warm_up()
    began_s = driver.now_s
    for height in range(3):
        assert (driver.round.number.height, driver.run.progress.height) == (height, height)
        assert driver.run.clock.epoch_started_s == began_s
        driver.now_s += 30
        driver.play_round()
    driver.now_s += 30
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    assert driver.run.progress.epoch == 0
    driver.next_round()
    assert (driver.run.progress.epoch, driver.round.number.height) == (1, 0)
    assert driver.run.clock.epoch_started_s == driver.now_s
    assert driver.run.progress.epoch_start_batch == 48
