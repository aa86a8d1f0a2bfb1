"""Times that clients report of their rounds: they are shown, filled in later, bounded, and decide nothing."""

from dataclasses import replace

import pytest

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import Instruction, OutcomeDecided, TimesTold
from epochal.coordinator.machine.run import parse_snapshot, snapshot_bytes
from epochal.state.errors import InvalidDocument, Refused
from epochal.state.messages.blob_messages import CheckVerdict
from epochal.state.messages.data_metrics import DataMetrics
from epochal.state.messages.history_rows import ClientFigures
from epochal.state.messages.requests import ResultCommitment, ResultMetrics, TimesReport
from epochal.state.messages.round_times import LaterTimes, WorkTimes
from epochal.state.wire import canonical_json, parse_document
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, digest_of

WORK = WorkTimes(idle_ms=40, replica_ms=300, encode_ms=200)
METRICS = ResultMetrics(loss=3.0, tokens=48, train_s=1.0, data=DataMetrics(0.125, 0.125, 0.0), work=WORK)
LATER = LaterTimes(1, 0, 600, 20, 700, 80, 1000, 3000)


def in_round(*numbers: int) -> Driver:
    driver = Driver(state_file(config__min_clients=1, config__init_min_clients=1, config__total_steps=100))
    driver.join(*numbers)
    driver.next_round()
    return driver


def history_of(driver: Driver) -> Projection:
    history = Projection()
    told: list[Instruction] = [one for one in driver.instructions if isinstance(one, OutcomeDecided | TimesTold)]
    for version, one in enumerate(told):
        history.take((one,), version)
    return history


def deliver(driver: Driver, number: int, metrics: ResultMetrics = METRICS, check_ms: int | None = 100) -> None:
    current = driver.round
    bound = ResultCommitment(
        current.number.step, current.number.attempt, digest_of(f"{number} {current.number.step}"), 1000, metrics
    )
    verdict = CheckVerdict(driver.replica_digest(), 1.0, took_ms=check_ms)
    driver.send(stimuli.ResultReceived(client(number), bound, verdict))


def end_round(driver: Driver) -> None:
    driver.attest(*driver.round.tasks.plan.witnesses)
    driver.next_round()


def figures(driver: Driver, number: int, client_number: int) -> ClientFigures:
    detail = history_of(driver).detail(number)
    assert detail is not None
    return next(found for found in detail.clients if found.client_id == client(client_number))


def test_times_of_a_round_are_filled_in_with_the_next_result() -> None:
    driver = in_round(1, 2)
    driver.now_s += 2.5
    deliver(driver, 1)
    deliver(driver, 2, ResultMetrics(1.0, 8, 0.5))
    end_round(driver)
    first = figures(driver, 0, 1)
    assert (first.idle_s, first.replica_s, first.data_s, first.train_s, first.encode_s) == (0.04, 0.3, 0.25, 0.75, 0.2)
    assert (first.check_s, first.upload_s, first.merge_s, first.document_s) == (0.1, None, None, None)
    deliver(driver, 1, replace(METRICS, before=LATER))
    found = figures(driver, 0, 1)
    assert (found.upload_s, found.attest_s, found.download_s, found.merge_s) == (0.5, 0.02, 0.7, 0.08)
    assert (found.uploaded_bytes, found.downloaded_bytes) == (1000, 3000)
    assert found.document_s == 0.4, "the rest of the time until its result had arrived"
    silent = figures(driver, 0, 2)
    assert (silent.replica_s, silent.upload_s, silent.train_s) == (None, None, 0.5), "who says nothing has no figures"


def test_a_client_that_leaves_in_the_round_tells_its_times_at_once() -> None:
    driver = in_round(1, 2)
    deliver(driver, 1)
    driver.send(stimuli.TimesReported(client(1), TimesReport(LATER)))
    again = parse_snapshot(snapshot_bytes(driver.run))
    assert again.round is not None
    assert again.round.arrivals[client(1)].told == LATER
    driver.send(stimuli.ClientWithdrew(client(1)))
    deliver(driver, 2)
    end_round(driver)
    assert figures(driver, 0, 1).merge_s == 0.08


def test_the_last_times_are_kept_also_when_nothing_else_changes() -> None:
    driver = in_round(1, 2)
    deliver(driver, 1)
    deliver(driver, 2)
    end_round(driver)
    before = driver.run
    driver.send(stimuli.TimesReported(client(2), TimesReport(LATER)))
    assert driver.run is not before
    assert driver.run == before
    assert figures(driver, 0, 2).upload_s == 0.5


def test_times_of_other_rounds_and_strangers_are_left_alone() -> None:
    driver = in_round(1, 2)
    deliver(driver, 1, replace(METRICS, before=LATER._replace(step=9)))
    deliver(driver, 2)
    end_round(driver)
    shown = history_of(driver).details
    driver.join(3)
    driver.send(stimuli.TimesReported(client(3), TimesReport(LATER)))
    assert history_of(driver).details == shown
    for report, problem in ((LATER._replace(step=9), "the times of round 9; allowed: rounds"), (LATER, "not a member")):
        with pytest.raises(Refused, match=problem):
            driver.send(stimuli.TimesReported(client(4 if report is LATER else 1), TimesReport(report)))


def test_history_with_told_times_is_read_as_it_was_written() -> None:
    driver = in_round(1)
    deliver(driver, 1)
    end_round(driver)
    deliver(driver, 1, replace(METRICS, before=LATER))
    history = history_of(driver)
    again = Projection.decoded(history.encoded())
    assert again.details == history.details
    assert again.told_count(0) == history.told_count(0) == 1


@pytest.mark.parametrize("text", ["-1", "0.5", "1e13", "true", '"4"', "NaN"])
def test_absurd_times_are_refused(text: str) -> None:
    body = canonical_json(METRICS).decode()
    assert parse_document(ResultMetrics, body) == METRICS
    with pytest.raises(InvalidDocument, match="not a valid ResultMetrics"):
        parse_document(ResultMetrics, body.replace("[40,", f"[{text},"))


@pytest.mark.parametrize(("train_s", "shown"), [(-5.0, 0.0), (1e300, 1e9)])
def test_absurd_training_times_are_bounded(train_s: float, shown: float) -> None:
    driver = in_round(1)
    deliver(driver, 1, ResultMetrics(1.0, 8, train_s, work=WORK))
    end_round(driver)
    assert figures(driver, 0, 1).train_s == shown
