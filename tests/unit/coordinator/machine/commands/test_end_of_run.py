"""An operator ends a run after a step: which steps that may be, what happens there, and how it is taken back."""

from typing import Any

import pytest

from epochal.coordinator.insight.wait_facts import situation_of
from epochal.coordinator.machine.instructions import PhaseChanged
from epochal.coordinator.machine.stimuli import FinishRequested, PauseRequested, ResumeRequested
from epochal.coordinator.machine.views import document_of
from epochal.state.errors import Refused
from epochal.state.phase_names import RunState
from epochal.state.shown.waiting_words import waiting_words
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, in_round, in_warmup, played_once, refused


def finish(driver: Driver, after: int | None) -> None:
    driver.send(FinishRequested(after))


def phase(driver: Driver) -> RunState:
    return driver.run.clock.phase


def play(driver: Driver, count: int) -> None:
    for _ in range(count):
        driver.next_round()
        driver.play_round()


@played_once
def running(**overrides: Any) -> Driver:
    return in_round(1, 2, config__total_steps=10, **overrides)


def last_reason(driver: Driver) -> str:
    return [item.reason for item in driver.instructions if isinstance(item, PhaseChanged)][-1]


def test_run_ends_after_the_step_with_its_last_checkpoint() -> None:
    driver = running()
    finish(driver, 3)
    play(driver, 3)
    assert phase(driver) == RunState.COOLDOWN
    driver.make_checkpoint()
    assert phase(driver) == RunState.FINISHED
    assert last_reason(driver) == "an operator ended the run after step 3"
    assert driver.run.models.checkpoint is not None
    assert driver.run.models.checkpoint.step == 3


def test_document_names_the_last_step_that_will_be() -> None:
    driver = running()
    finish(driver, 3)
    assert document_of(driver.run, 1).total_steps == 3
    finish(driver, None)
    assert document_of(driver.run, 1).total_steps == 10


def test_round_under_way_is_the_first_that_may_be_the_last() -> None:
    driver = running()
    play(driver, 1)
    assert phase(driver) == RunState.ROUND_TRAIN
    with refused("not-now"):
        finish(driver, 1)
    finish(driver, 2)
    play(driver, 1)
    assert phase(driver) == RunState.COOLDOWN


def test_run_that_waits_ends_at_once_after_what_it_has_done() -> None:
    driver = Driver(state_file(config__total_steps=10))
    assert phase(driver) == RunState.WAITING_FOR_MEMBERS
    finish(driver, 0)
    assert phase(driver) == RunState.FINISHED


def test_warmup_leads_to_one_more_round_before_the_end() -> None:
    driver = in_warmup(1, 2, config__total_steps=10)
    with refused("not-now"):
        finish(driver, 0)
    finish(driver, 1)
    play(driver, 1)
    driver.make_checkpoint()
    assert phase(driver) == RunState.FINISHED


@pytest.mark.parametrize("after", [0, 11])
def test_step_that_cannot_be_the_last_is_refused_with_those_that_can(after: int) -> None:
    with pytest.raises(Refused, match=f"cannot end after step {after}; allowed: 1 to 10"):
        finish(running(), after)


def test_end_can_be_moved_and_taken_back_while_it_has_not_come() -> None:
    driver = running()
    finish(driver, 2)
    finish(driver, 4)
    play(driver, 2)
    assert phase(driver) == RunState.ROUND_TRAIN
    finish(driver, None)
    play(driver, 3)
    assert phase(driver) == RunState.ROUND_TRAIN
    assert driver.run.progress.finish_after is None


def test_finished_run_goes_on_once_its_end_is_taken_back() -> None:
    driver = running()
    finish(driver, 1)
    play(driver, 1)
    driver.make_checkpoint()
    with refused("not-now"):
        finish(driver, 0)
    finish(driver, None)
    reasons = [item.reason for item in driver.instructions if isinstance(item, PhaseChanged)]
    assert "the last step is 10 now" in reasons
    play(driver, 9)
    driver.make_checkpoint()
    assert phase(driver) == RunState.FINISHED
    assert last_reason(driver) == "all 10 steps are done"


def test_run_that_an_operator_ended_says_how_many_steps_it_did() -> None:
    driver = running()
    finish(driver, 1)
    play(driver, 1)
    driver.make_checkpoint()
    assert waiting_words(situation_of(driver.run, None)) == "is finished: the only step is done"


def test_pause_comes_before_the_end() -> None:
    driver = running()
    finish(driver, 1)
    driver.send(PauseRequested())
    play(driver, 1)
    driver.make_checkpoint()
    assert phase(driver) == RunState.PAUSED
    driver.send(ResumeRequested())
    assert phase(driver) == RunState.FINISHED


def test_same_end_again_changes_nothing() -> None:
    driver = running()
    finish(driver, 3)
    before = driver.run
    finish(driver, 3)
    assert driver.run is before
