"""Results for which the coordinator has no room: nobody is to blame for them, in that round."""

from epochal.coordinator.machine import stimuli
from epochal.state.messages.requests import FailureReport, ResultCommitment
from tests.support.drive.machine_driver import METRICS, Driver, client, digest_of, in_round, refused


def without_room(driver: Driver, number: int) -> None:
    """This client commits to a result, for which the coordinator has no room."""
    current = driver.round
    result = digest_of(f"large {current.number.step} {current.number.attempt}")
    driver.send(
        stimuli.ResultCommitted(
            client(number), ResultCommitment(current.number.step, current.number.attempt, result, 10, METRICS)
        )
    )
    driver.send(stimuli.ResultFoundNoRoom(client(number), current.number.step, current.number.attempt, result))


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
    driver.send(stimuli.ResultRejected(client(1), 1, 0, digest_of("large 1 0"), "finite"))
    driver.deliver(client(2), client(3))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert [driver.conduct(number).missed for number in (1, 2, 3)] == [1, 0, 0]


def test_want_of_room_is_noted_for_committed_results_of_the_round() -> None:
    driver = in_round(1, 2)
    with refused("not-committed"):
        driver.send(stimuli.ResultFoundNoRoom(client(1), 1, 0, digest_of("never announced")))
    driver.deliver(client(1))
    before = driver.run
    without_room_of_held = stimuli.ResultFoundNoRoom(
        client(1), 1, 0, driver.round.results.commitments[client(1)].result_sha256
    )
    driver.send(without_room_of_held)
    assert driver.run is before
    driver.deliver(client(2))
    driver.attest(*driver.round.tasks.plan.witnesses)
    with refused("late-result"):
        driver.send(without_room_of_held)
