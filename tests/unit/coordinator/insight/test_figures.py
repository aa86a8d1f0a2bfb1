"""Figures of a round: what arrived when, what came of each client's work, and how rows are kept and merged."""

from dataclasses import replace
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.insight.figures import clients_of
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import OutcomeDecided
from epochal.coordinator.machine.parts.phase_clock import PhaseClock
from epochal.coordinator.machine.run import parse_snapshot, snapshot_bytes
from epochal.state.errors import StoreFailed
from epochal.state.intervals import BatchId
from epochal.state.messages.data_metrics import DataMetrics
from epochal.state.messages.history_rows import ClientFigures, RoundColumns, RoundDetail, RoundFigures, merged, thinned
from epochal.state.messages.requests import FailureReport, ResultCommitment, ResultMetrics
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId
from tests.support.data.figure_rows import row as row_of
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, digest_of

METRICS = ResultMetrics(loss=3.0, tokens=48, train_s=1.25, data=DataMetrics(0.5, 0.25, 0.125))


def in_round(*numbers: int, **overrides: Any) -> Driver:
    fields = {"config__min_clients": 1, "config__init_min_clients": 1, "config__total_steps": 100}
    driver = Driver(state_file(**(fields | overrides)))
    driver.join(*numbers)
    driver.next_round()
    return driver


def ended(driver: Driver) -> list[OutcomeDecided]:
    return [one for one in driver.instructions if isinstance(one, OutcomeDecided)]


def history_of(driver: Driver) -> Projection:
    history = Projection()
    for version, one in enumerate(ended(driver)):
        history.add(one, version)
    return history


def commit(driver: Driver, client_id: ClientId, metrics: ResultMetrics = METRICS) -> ResultCommitment:
    current = driver.round
    result = digest_of(f"{client_id} {current.number.step} {current.number.attempt}")
    report = ResultCommitment(current.number.step, current.number.attempt, result, 700, metrics)
    driver.send(stimuli.ResultReceived(client_id, report))
    return report


def by_client(detail: RoundDetail) -> dict[ClientId, ClientFigures]:
    return {ClientId(found.client_id): found for found in detail.clients}


def test_times_of_a_round_are_told_by_what_arrived() -> None:
    driver = in_round(1, 2)
    began_s, first, second = driver.now_s, client(1), client(2)
    driver.now_s += 2
    report = commit(driver, first)
    driver.now_s += 3
    driver.verify(first, report)
    driver.now_s += 1
    driver.verify(second, replace(report, result_sha256=digest_of("direct")))
    driver.now_s += 0.5
    driver.attest(*driver.round.tasks.plan.witnesses)
    (detail,) = history_of(driver).details
    row, clients = detail.figures, by_client(detail)
    assert (row.started_s, row.ended_s, row.train_s, row.witness_s) == (began_s, began_s + 6.5, 6.5, 0.0)
    assert (clients[first].committed_s, clients[first].delivered_s, clients[first].attested_s) == (2.0, 5.0, 6.5)
    assert (clients[second].committed_s, clients[second].delivered_s) == (None, 6.0), "it came in one message"
    assert (clients[first].train_s, clients[first].fetching_s, clients[first].decoding_s) == (0.375, 0.5, 0.25)
    assert {found.fate for found in detail.clients} == {"applied"}
    assert (row.results, row.result_bytes, row.loss, row.loss_tokens) == (2, 1400, 3.0, 96)


def test_loss_of_a_round_is_weighted_by_tokens() -> None:
    driver = in_round(1, 2)
    driver.verify(client(1), commit(driver, client(1)))
    driver.verify(client(2), commit(driver, client(2), replace(METRICS, loss=1.0, tokens=16)))
    driver.attest(*driver.round.tasks.plan.witnesses)
    (detail,) = history_of(driver).details
    assert (detail.figures.loss, detail.figures.loss_tokens) == (2.5, 64)


def test_batches_under_suspicion_count_as_carried() -> None:
    driver = in_round(1, config__global_batch_size_start=4, config__global_batch_size_end=4)
    current = driver.round
    (first, *_) = current.tasks.plan.assignments[client(1)]
    named = BatchId(first.start, first.start)
    report = FailureReport(current.number.step, current.number.attempt, "corrupt", "bad shard", named)
    driver.send(stimuli.StepFailed(client(1), report))
    driver.pass_time(1000)
    driver.pass_time(1000)
    row = history_of(driver).details[0].figures
    assert row.carried_batches == row.lost_batches == 4


def test_outage_of_the_coordinator_takes_no_time_of_a_round() -> None:
    driver = in_round(1, 2)
    driver.now_s += 1
    report = commit(driver, client(1))
    driver.now_s += 1000
    driver.send(stimuli.CoordinatorStarted())
    driver.now_s += 1
    driver.verify(client(1), report)
    driver.deliver(client(2))
    driver.attest(*driver.round.tasks.plan.witnesses)
    (detail,) = history_of(driver).details
    assert (detail.figures.train_s, by_client(detail)[client(1)].delivered_s) == (2.0, 2.0)
    assert (detail.away_s, driver.run.clock.away_s) == (1000.0, 0.0)


@pytest.mark.parametrize(("phase", "away_s"), [(RunState.WAITING_FOR_MEMBERS, 500.0), (RunState.PAUSED, 0.0)])
def test_outage_counts_as_absence_but_in_a_pause(phase: RunState, away_s: float) -> None:
    clock = PhaseClock(10.0, phase, 10.0, 10.0).after_outage(500.0)
    assert clock.at(600.0).entered(RunState.WARMUP, None, "").away_s == away_s


def test_lost_work_is_told_with_its_reason() -> None:
    driver = in_round(1, 2, 3, config__global_batch_size_start=9, config__global_batch_size_end=9)
    current, silent = driver.round, client(3)
    report = commit(driver, client(1))
    driver.reject(client(1), report)
    failure = FailureReport(current.number.step, current.number.attempt, "unavailable", "the disk is away")
    driver.send(stimuli.StepFailed(client(2), failure))
    driver.pass_time(1000)
    driver.pass_time(1000)
    detail = history_of(driver).details[0]
    clients = by_client(detail)
    assert (clients[client(1)].fate, clients[client(1)].detail) == ("rejected", "finite")
    assert (clients[client(2)].fate, clients[client(2)].detail) == ("failed", "unavailable: the disk is away")
    assert (clients[silent].fate, clients[silent].delivered_s) == ("missing", None)
    row = detail.figures
    assert (row.applied_batches, row.lost_batches, row.batches) == (0, 9, 9)
    assert (row.loss, row.tokens, row.applied_rounds, row.carried_batches) == (None, 0, 0, 9)


def test_arrivals_survive_a_snapshot_in_the_middle_of_a_round() -> None:
    driver = in_round(1, 2)
    driver.now_s += 2
    commit(driver, client(1))
    again = parse_snapshot(snapshot_bytes(driver.run))
    assert again.round is not None
    tokens = again.round.tokens(driver.run.state_file)
    assert clients_of(again.round, tokens) == clients_of(driver.round, tokens)
    assert clients_of(again.round, tokens)[again.round.tasks.plan.positions[client(1)]].committed_s == 2.0


def test_newest_rounds_keep_their_clients_within_both_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.projection.MAX_DETAILED_ROUNDS", 3)
    driver = in_round(1, 2)
    for _ in range(5):
        driver.play_round()
        driver.next_round()
    history = history_of(driver)
    assert [detail.figures.number for detail in history.details] == [2, 3, 4]
    assert history.detail(1) is None
    assert history.detail(3) == history.details[1]
    assert history.detail(5) is None
    monkeypatch.setattr("epochal.coordinator.insight.projection.MAX_DETAILED_CLIENTS", 3)
    assert [detail.figures.number for detail in history_of(driver).details] == [4]


@pytest.mark.nightly
def test_rows_are_merged_beyond_their_limit_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.projection.MAX_ROWS", 8)
    driver = in_round(1, 2)
    for _ in range(21):
        driver.play_round()
        driver.next_round()
    history, one = history_of(driver), ended(driver)
    assert len(history.rows) <= 8
    assert [row.number for row in history.rows[1:]] == [row.next_number for row in history.rows[:-1]]
    assert (history.rows[0].number, history.next) == (0, len(one))
    assert sum(row.tokens for row in history.rows) == history.rows[-1].tokens_total
    assert [row.rounds for row in history.rows[-4:]] == [1] * 4, "the newest are whole"


def test_history_is_read_as_it_was_written() -> None:
    driver = in_round(1, 2)
    for _ in range(3):
        driver.play_round()
        driver.next_round()
    history = history_of(driver)
    again = Projection.decoded(history.encoded())
    assert (again.rows, list(again.details), again.next) == (history.rows, list(history.details), 3)
    assert Projection.decoded("").rows == []


@pytest.mark.parametrize("text", ["%", "eJw=", "eJyrVspUslJQMlKqBQAMmgJq"])
def test_kept_history_that_is_damaged_is_refused(text: str) -> None:
    with pytest.raises(StoreFailed, match="a kept history cannot be read"):
        Projection.decoded(text)


ROW = RoundFigures(
    0, 1, 0, 1, 0, 5, 10.0, 12.0, 1.5, 0.5, 1, 2.0, 8, 3.0, 0.1, 16, 16, 3, 3, 3, 3, 4, 4, 0, 0, 0, 300
)  # fmt: skip


@st.composite
def rows(draw: st.DrawFn) -> list[RoundFigures]:
    count = draw(st.integers(0, 40))
    losses = draw(st.lists(st.none() | st.floats(0, 10), min_size=count, max_size=count))
    return [
        replace(
            ROW,
            number=number,
            loss=loss,
            loss_tokens=0 if loss is None else 8,
            gradient_norm=None if loss is None else 2 * loss,
            ended_s=12.0 + number,
        )
        for number, loss in enumerate(losses)
    ]


@given(rows(), st.integers(1, 50))
def test_thinned_rows_stand_for_the_same_rounds(whole: list[RoundFigures], most: int) -> None:
    found = thinned(whole, most)
    assert len(found) <= most
    assert sum(row.rounds for row in found) == len(whole)
    assert sum(row.result_bytes for row in found) == 300 * len(whole)
    assert [row.number for row in found[1:]] == [row.next_number for row in found[:-1]]
    if found:
        once, twice = reduce(merged, whole), reduce(merged, found)
        assert twice.loss_tokens == once.loss_tokens
        assert (twice.loss is None) == (once.loss is None)
        assert once.loss is None or twice.loss == pytest.approx(once.loss)
        assert once.loss is None or twice.gradient_norm == pytest.approx(2 * once.loss)
    assert RoundColumns.of(found).rows() == found


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6), st.integers(1, 60))
def test_rows_of_two_branches_are_merged_only_if_there_are_too_many(groups: list[tuple[int, bool]], most: int) -> None:
    kinds = [(branch, dropped) for branch, (count, dropped) in enumerate(groups) for _ in range(count)]
    whole = [
        replace(row_of(number), branch=branch, dropped_rounds=int(dropped))
        for number, (branch, dropped) in enumerate(kinds)
    ]
    few = thinned(whole, most)
    assert len(few) <= max(most, 1)
    assert sum(one.rounds for one in few) == len(whole)
    assert sum(one.dropped_rounds for one in few) == sum(one.dropped_rounds for one in whole)
    if 2 * len(groups) <= most or len(whole) <= most:
        assert all(one.dropped_rounds in (0, one.rounds) for one in few)
        assert {one.branch for one in few} == set(range(len(groups)))
