"""What is known of each member since it was first seen: counted by rounds, kept over departures, bounded."""

from typing import Any

import pytest

from epochal.coordinator.insight.member_book import KnownMember, MemberBook
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import CheckpointRefused, MembershipChanged
from epochal.state.messages.data_metrics import DataMetrics
from epochal.state.messages.requests import CheckpointReport, FailureReport, ResultCommitment
from epochal.state.messages.round_times import ResultMetrics
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, digest_of

METRICS = ResultMetrics(loss=3.0, tokens=48, train_s=1.25, data=DataMetrics(0.5, 0.25, 0.125))


def in_round(*numbers: int, **overrides: Any) -> Driver:
    fields = {"config__min_clients": 1, "config__init_min_clients": 1, "config__total_steps": 100}
    driver = Driver(state_file(**(fields | overrides)))
    driver.join(*numbers, name="LAB", software="0.9")
    driver.next_round()
    return driver


def book_of(driver: Driver) -> MemberBook:
    history = Projection()
    history.take(driver.instructions, 1)
    assert Projection.decoded(history.encoded()).book.records() == history.book.records()
    return history.book


def commit(driver: Driver, number: int) -> ResultCommitment:
    current = driver.round
    result = digest_of(f"{number} {current.number.step} {current.number.attempt}")
    report = ResultCommitment(current.number.step, current.number.attempt, result, 700, METRICS)
    driver.send(stimuli.ResultReceived(client(number), report))
    return report


def test_member_without_work_has_lost_nothing() -> None:
    driver = in_round(1, 2, config__global_batch_size_start=1, config__global_batch_size_end=1)
    current = driver.round
    (worker,) = driver.workers()
    (idle,) = {client(1), client(2)} - {worker}
    driver.deliver(worker)
    driver.attest(*current.tasks.plan.witnesses)
    assert driver.run.progress.step == current.number.step + 1
    book = book_of(driver)
    records = [book.get(worker), book.get(idle)]
    assert [(one.applied, one.lost) for one in records if one is not None] == [(1, 0), (0, 0)]


def test_applied_and_lost_results_of_a_member_are_counted() -> None:
    driver = in_round(1, 2)
    current = driver.round
    driver.verify(client(1), commit(driver, 1))
    driver.reject(client(2), commit(driver, 2))
    driver.attest(*current.tasks.plan.witnesses)
    assert driver.run.progress.step == current.number.step + 1
    book = book_of(driver)
    one, two = book.get(client(1)), book.get(client(2))
    assert one is not None
    assert two is not None
    batches = sum(batch.end - batch.start + 1 for batch in current.tasks.plan.assignments[client(1)])
    size = driver.run.state_file.config.data_indices_per_batch * driver.run.state_file.model.LLM.max_seq_len
    assert (one.applied, one.lost, one.tokens, one.result_bytes) == (1, 0, batches * size, 700)
    assert one.data_wait_s == 0.875
    assert (two.applied, two.lost, two.tokens, two.result_bytes) == (0, 1, 0, 0)
    assert [(told.kind, told.detail, told.step) for told in two.last_refusals] == [("result-invalid", "finite", 1)]
    assert (one.refusals, two.refusals) == ({}, {"result-invalid": 1})


def test_reported_failure_counts_by_its_kind() -> None:
    driver = in_round(1)
    current = driver.round
    report = FailureReport(current.number.step, current.number.attempt, "corrupt", "shard 7: bad hash")
    driver.send(stimuli.StepFailed(client(1), report))
    known = book_of(driver).get(client(1))
    assert known is not None
    assert known.refusals == {"corrupt": 1}
    assert known.last_refusals[-1].detail == "shard 7: bad hash"


def test_refused_checkpoint_counts_against_its_writer() -> None:
    driver = in_round(1, 2, access__genesis="members")
    book = book_of(driver)
    book.refuse_checkpoint(CheckpointRefused(client(1), 4, "layout", 7.0))
    known = book.get(client(1))
    assert known is not None
    assert [(told.kind, told.detail, told.at_s) for told in known.last_refusals] == [
        ("checkpoint-invalid", "layout", 7.0)
    ]


def test_refused_checkpoint_is_told() -> None:
    driver = Driver(state_file(config__min_clients=1, config__init_min_clients=1, access__genesis="members"))
    driver.join(1)
    while driver.run.models.checkpointing is None:
        driver.pass_time(5)
    making = driver.run.models.checkpointing
    blob = digest_of("blob")
    driver.send(
        stimuli.CheckpointReported(client(1), CheckpointReport(making.step, driver.replica_digest(), blob, 100))
    )
    told = driver.send(stimuli.CheckpointRejected(client(1), making.step, blob, "layout"))
    assert CheckpointRefused(client(1), making.step, "layout", driver.now_s) in told


def test_member_that_left_keeps_its_figures_and_its_reason() -> None:
    driver = in_round(1, 2)
    joined_s = book_of(driver).get(client(2)).joined_s  # type: ignore[union-attr]
    driver.now_s += 3
    driver.send(stimuli.ClientWithdrew(client(2)))
    (gone,) = book_of(driver).gone(10)
    assert (gone.client_id, gone.name, gone.left, gone.left_s) == (client(2), "LAB", "withdrew", driver.now_s)
    assert gone.joined_s == joined_s
    driver.now_s += 3
    driver.join(2, name="")
    known = book_of(driver).get(client(2))
    assert known is not None
    assert (known.left, known.left_s, known.name, known.joined_s) == ("", None, "", driver.now_s)
    assert book_of(driver).gone(10) == []


def test_round_has_the_name_that_a_client_had_then() -> None:
    driver = in_round(1)
    driver.play_round()
    driver.join(1, name="NEW")
    driver.next_round()
    driver.play_round()
    history = Projection()
    history.take(driver.instructions, 1)
    assert [detail.clients[0].name for detail in history.details] == ["LAB", "NEW"]


def test_book_forgets_who_left_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.member_book.MAX_KNOWN_MEMBERS", 3)
    book = MemberBook([KnownMember(client(number), name=f"LAB {number}") for number in (1, 2, 3)])
    for number in (1, 2, 3, 4):
        book.change(MembershipChanged(client(number), "joined", None, number))
    for number in (3, 1, 2):
        book.change(MembershipChanged(client(number), "withdrew", None, 10.0 - number))
    assert book.get(client(3)) is None
    assert [known.client_id for known in book.gone(10)] == [client(1), client(2)]
    assert book.get(client(4)) is not None, "a present member is never forgotten"
    assert book.names == {client(1): "LAB 1", client(2): "LAB 2"}
