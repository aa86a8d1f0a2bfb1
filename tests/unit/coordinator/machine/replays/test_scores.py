"""Results that are only scored: what their gains lead to, and what they do not."""

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.insight.event_log import log_event
from epochal.coordinator.machine.instructions import Convicted, Flagged, Instruction, SentToRest
from epochal.coordinator.machine.parts.verification import MAX_GAINS
from epochal.coordinator.machine.replays.scores import LEAST_GAINS, WORSE_TO_MISS
from epochal.coordinator.machine.stimuli import CalibrationReported, ScoreReported
from epochal.state.messages.replay_messages import CalibrationReport, ScoreReport
from epochal.state.wire import ClientId, Sha256
from tests.support.drive.machine_driver import Driver, client, played_once, refused
from tests.unit.coordinator.machine.replays.test_judging import CPU, HONEST, open_of, play, report, verified

GOOD, BAD = 0.01, -0.01
LIAR = client(3)


@played_once
def scored(*numbers: int, percent: int = 100) -> Driver:
    driver = verified(*numbers, percent=percent, verify_by="scores", merge__inner_state="keep")
    play(driver)
    return driver


def score(driver: Driver, gain: float, client_id: ClientId) -> list[Instruction]:
    """Report this gain of the open result of a client."""
    (task,) = open_of(driver, client_id)
    found = ScoreReport(task.step, client_id, task.result_sha256, gain, 64, 5)
    return list(driver.send(ScoreReported("v", found)))


def play_scored(driver: Driver, gains: dict[ClientId, float], count: int = 1) -> list[Instruction]:
    told = list[Instruction]()
    for _ in range(count):
        for one in {one.client_id for one in open_of(driver)}:
            told += score(driver, gains.get(one, GOOD), one)
        play(driver)
    return told


def flagged(told: list[Instruction]) -> list[ClientId]:
    return [one.client_id for one in told if isinstance(one, Flagged)]


def test_results_that_raise_the_loss_time_after_time_are_a_miss() -> None:
    driver = scored(1, 2, 3)
    assert flagged(play_scored(driver, {}, 3)) == []
    assert flagged(play_scored(driver, {LIAR: BAD}, WORSE_TO_MISS - 1)) == []
    told = play_scored(driver, {LIAR: BAD})
    assert flagged(told) == [LIAR]
    assert not any(isinstance(one, Convicted) for one in told), "a score convicts nobody"
    member = driver.run.members.by_id[LIAR]
    assert "made the loss on held-out data larger" in member.conduct.last_miss
    assert member.trust.flagged
    assert [one.client_id for one in told if isinstance(one, SentToRest)] == [LIAR]
    assert LIAR not in driver.workers()


def test_a_result_that_lowers_the_loss_begins_the_count_anew() -> None:
    driver = scored(1, 2, 3)
    play_scored(driver, {}, 3)
    for _ in range(3):
        assert flagged(play_scored(driver, {LIAR: BAD}, WORSE_TO_MISS - 1)) == []
        play_scored(driver, {})


@settings(max_examples=10)
@given(st.lists(st.floats(-1, 0), min_size=3, max_size=9))
def test_where_most_results_raise_the_loss_nobody_is_blamed(gains: list[float]) -> None:
    """As after a learning rate that is too high, or with held-out data of another kind."""
    driver = scored(1, 2, 3)
    for gain in gains:
        assert flagged(play_scored(driver, {client(number): gain for number in (1, 2, 3)})) == []


def test_few_scores_blame_nobody() -> None:
    driver = scored(1, 2, 3)
    told = play_scored(driver, {LIAR: BAD}, WORSE_TO_MISS)
    assert len(driver.run.members.verification.gains) > LEAST_GAINS
    assert flagged(told) == [], "when the first ones came, too few were known"


def test_last_scores_are_kept_and_the_log_names_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    driver = scored(1, 2, 3)
    play_scored(driver, {}, MAX_GAINS // 3 + 2)
    assert driver.run.members.verification.gains == (GOOD,) * MAX_GAINS
    for one in score(driver, BAD, LIAR):
        log_event(one, driver.run)
    (line,) = (record for record in caplog.records if record.getMessage() == "scored")
    assert (vars(line)["client_id"], vars(line)["gain"]) == (LIAR, BAD)


def test_run_takes_the_reports_that_its_state_file_asks_for() -> None:
    driver = scored(1, 2)
    with refused("not-now"):
        driver.send(CalibrationReported("v", CalibrationReport(CPU, CPU, 8, (0.0,))))
    with refused("not-now"):
        report(driver, open_of(driver)[0], HONEST)
    replayed = verified(1, 2, percent=100)
    play(replayed)
    with refused("not-now"):
        score(replayed, GOOD, client(1))
    score(driver, GOOD, client(1))
    with refused("stale-round"):  # once is enough
        driver.send(ScoreReported("v", ScoreReport(1, client(1), Sha256("ab" * 32), GOOD, 64, 5)))
