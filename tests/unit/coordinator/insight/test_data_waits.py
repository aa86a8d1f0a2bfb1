"""Members' own figures of their waits for data: shown, bounded, and without consequences."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.insight.data_waits import DataWaits, after_round
from epochal.coordinator.insight.status import Coordinating, status_of
from epochal.coordinator.run.liveness import Liveness
from epochal.state.errors import InvalidDocument
from epochal.state.messages.data_metrics import MAX_CLAIMED_S, MAX_CLAIMED_SAMPLES, DataMetrics, DataWaitView
from epochal.state.messages.requests import ResultCommitment, ResultMetrics, RunStatus
from epochal.state.wire import canonical_json, parse_document
from tests.support.drive.machine_driver import METRICS, Driver, digest_of, in_round

claimed = st.floats(0, MAX_CLAIMED_S)


def of_round(
    fetching_s: float, decoding_s: float = 0.0, packing_s: float = 0.0, train_s: float = 10.0
) -> ResultMetrics:
    return ResultMetrics(None, 0, train_s, DataMetrics(fetching_s, decoding_s, packing_s, 7, 3))


def status(driver: Driver) -> RunStatus:
    coordinator = Coordinating(driver.now_s, Liveness(driver.now_s), 0.0, 0, 0)
    return status_of(driver.run, 1, driver.projection(), coordinator)


def play_round(driver: Driver, metrics: ResultMetrics) -> None:
    """A round in which every result comes with these figures."""
    current = driver.round
    for client_id in driver.workers():
        result = digest_of(f"{client_id} {current.number.step}")
        driver.verify(client_id, ResultCommitment(current.number.step, 0, result, 10, metrics))
    driver.attest(*current.tasks.plan.witnesses)


def test_status_shows_the_share_of_waiting_and_its_causes() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    assert {member.data_wait for member in status(driver).members} == {None}
    play_round(driver, of_round(1.0, 0.5, 0.25))
    play_round(driver, of_round(1.0, 0.5, 0.25))
    expected = DataWaitView(0.175, 0.1, 0.05, 0.025, 14, 6)
    assert {member.data_wait for member in status(driver).members} == {expected}


def test_client_that_says_nothing_keeps_what_it_said() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    play_round(driver, of_round(5.0))
    before = status(driver).members[0].data_wait
    play_round(driver, METRICS)
    assert before is not None
    assert status(driver).members[0].data_wait == before


def test_claims_have_no_consequences() -> None:
    honest, other = (in_round(1, 2, config__total_steps=9) for _ in range(2))
    for _ in range(3):
        play_round(honest, METRICS)
        play_round(other, replace(of_round(MAX_CLAIMED_S, MAX_CLAIMED_S), loss=METRICS.loss, tokens=METRICS.tokens))
    assert {**honest.run.members.by_id} == {**other.run.members.by_id}
    assert honest.run.pace.train_times == other.run.pace.train_times


def test_last_rounds_count_most() -> None:
    waits = after_round(None, of_round(10.0))
    for _ in range(30):
        waits = after_round(waits, of_round(0.0))
    assert waits.view().share < 0.01


@given(claimed, claimed, claimed, st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 5))
def test_shares_stay_in_bounds_whatever_is_claimed(
    fetching_s: float, decoding_s: float, packing_s: float, train_s: float, rounds: int
) -> None:
    waits: DataWaits | None = None
    for _ in range(rounds):
        waits = after_round(waits, of_round(fetching_s, decoding_s, packing_s, train_s))
    assert waits is not None
    view = waits.view()
    assert 0 <= view.fetching + view.decoding + view.packing <= 1.001
    assert 0 <= view.share <= 1
    assert canonical_json(view)


def test_counts_of_samples_have_a_bound() -> None:
    large = ResultMetrics(None, 0, 1.0, DataMetrics(0.0, 0.0, 0.0, MAX_CLAIMED_SAMPLES, MAX_CLAIMED_SAMPLES))
    waits = after_round(after_round(None, large), large)
    assert waits.ahead_samples == waits.dropped_samples == MAX_CLAIMED_SAMPLES


@pytest.mark.parametrize("wrong", ["-1", "1e10", "NaN", "Infinity", '"1"', "null", "1e999"])
def test_hostile_seconds_are_refused(wrong: str) -> None:
    good = '{"fetching_s":1,"decoding_s":0,"packing_s":0.5}'
    assert parse_document(DataMetrics, good) == DataMetrics(1, 0, 0.5)
    with pytest.raises(InvalidDocument):
        parse_document(DataMetrics, good.replace("0.5", wrong))


def test_message_of_an_older_client_has_no_such_figures() -> None:
    assert parse_document(ResultMetrics, '{"loss":1.5,"tokens":1,"train_s":2.5}').data is None
