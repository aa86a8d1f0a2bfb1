"""Results for which the coordinator has no room: nobody is to blame for them, in that round."""

from epochal.coordinator.machine import stimuli
from epochal.state.messages.blob_messages import NO_ROOM
from epochal.state.messages.requests import FailureReport, ResultCommitment
from tests.support.drive.machine_driver import METRICS, Driver, client, digest_of, in_round, refused


def large(driver: Driver) -> ResultCommitment:
    current = driver.round
    result = digest_of(f"large {current.number.step} {current.number.attempt}")
    return ResultCommitment(current.number.step, current.number.attempt, result, 10, METRICS)


def without_room(driver: Driver, number: int) -> None:
    """This client commits to a result, for which the coordinator has no room."""
    driver.send(stimuli.ResultReceived(client(number), large(driver)))
    driver.reject(client(number), large(driver), NO_ROOM)


def test_result_for_which_the_coordinator_has_no_room_is_no_miss() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    driver.play_round()
    before = driver.conduct(1)
    without_room(driver, 1)
    assert client(1) in driver.round.missing.pending, "room may be made while the round goes on"
    driver.send(stimuli.StepFailed(client(1), FailureReport(2, 0, "unavailable", "blobs-full", None)))
    driver.deliver(client(2), client(3))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert (driver.run.progress.step, driver.conduct(1)) == (3, before)
    driver.send(stimuli.StepFailed(client(1), FailureReport(3, 0, "unavailable", "gone", None)))
    driver.deliver(client(2), client(3))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.conduct(1).missed == 1, "only the round in which there was no room is forgiven"


def test_result_that_found_room_after_all_is_judged_as_any_other() -> None:
    driver = in_round(1, 2, 3, config__total_steps=9)
    without_room(driver, 1)
    before = driver.run
    without_room(driver, 1)
    assert driver.run is before
    driver.reject(client(1), large(driver))
    driver.deliver(client(2), client(3))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert [driver.conduct(number).missed for number in (1, 2, 3)] == [1, 0, 0]


def test_result_that_came_with_its_commitment_and_found_no_room_binds() -> None:
    driver = in_round(1, 2)
    driver.reject(client(1), large(driver), NO_ROOM)
    assert driver.round.results.commitments[client(1)] == large(driver)
    assert (driver.round.missing.without_room, driver.round.missing.rejected) == ({client(1)}, {})


def test_want_of_room_is_noted_for_results_of_the_round_that_are_not_held() -> None:
    driver = in_round(1, 2)
    driver.deliver(client(1))
    before, held = driver.run, driver.round.results.commitments[client(1)]
    driver.reject(client(1), held, NO_ROOM)
    assert driver.run is before
    driver.deliver(client(2))
    driver.attest(*driver.round.tasks.plan.witnesses)
    with refused("late-result"):
        driver.reject(client(1), held, NO_ROOM)
