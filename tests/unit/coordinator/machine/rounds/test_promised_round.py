"""Rounds whose work is drawn one round ahead (`merge.delay`): promised, and kept, or dropped without a trace."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.parts.planned_ahead import Ahead
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.parts.speed import delivered
from epochal.coordinator.machine.work import STEPS_TO_GET_READY
from epochal.state.errors import FailureKind
from epochal.state.intervals import BatchId, total_batches
from epochal.state.messages.requests import FailureReport, ResultCommitment
from epochal.state.phase_names import RunState
from epochal.state.refusals import Refusal
from tests.support.drive.machine_driver import METRICS, Driver, client, digest_of, in_round, played_once, refused

AHEAD = {
    "merge__delay": 1,
    "config__total_steps": 60,
    "config__global_batch_size_start": 12,
    "config__global_batch_size_end": 12,
}


@played_once
def ahead_of(members: int, **overrides: Any) -> Driver:
    """A run of so many proven members in its third round, of which the work was drawn ahead."""
    driver = in_round(*range(1, members + 1), config__init_min_clients=members, **{**AHEAD, **overrides})
    driver.play_round()
    play_kept(driver)
    assert driver.round.tasks.starts is not None
    return driver


def promise(current: Round) -> Ahead:
    assert current.ahead is not None
    assert current.ahead.is_promised
    return current.ahead


def play_kept(driver: Driver) -> None:
    """Everyone delivers, those that may from their own results, and attests."""
    current = driver.round
    if current.tasks.starts is None:
        driver.play_round()
        return
    workers = driver.workers()
    eager = [who for who in workers if who in current.tasks.starts.results and who in current.tasks.plan.electorate]
    driver.deliver_eager(*eager)
    driver.deliver(*(who for who in workers if who not in eager))
    driver.attest(*current.tasks.plan.witnesses)


def is_promised_before(driver: Driver, before: Round) -> bool:
    """Whether the round under way is the one that was promised as the other one began."""
    tasks = driver.round.tasks
    roster = promise(before).roster or before.tasks.roster
    return tasks.starts is not None and (tasks.work, tasks.roster) == (promise(before).work, roster)


def test_promise_becomes_the_round_with_its_starts() -> None:
    driver = ahead_of(3)
    before = driver.round
    play_kept(driver)
    assert is_promised_before(driver, before)
    starts = driver.round.tasks.starts
    outcome = driver.run.models.outcomes[before.number.step]
    assert starts is not None
    assert starts.replica_digest == outcome.replica_digest
    assert dict(starts.results) == {entry.client_id: entry.result_sha256 for entry in outcome.entries}


def test_promise_takes_no_batch_from_the_run_before_its_round() -> None:
    driver = ahead_of(3)
    cursor = driver.run.work.cursor
    assert promise(driver.round).work.shared == (BatchId(cursor, cursor + 11),)


def test_result_from_the_own_start_counts_and_a_naive_one_does_not() -> None:
    driver = ahead_of(3)
    starts = driver.round.tasks.starts
    assert starts is not None
    driver.deliver_eager(client(1))
    driver.deliver(client(2))
    current = driver.round
    naive = ResultCommitment(current.number.step, 0, digest_of("naive"), 10, METRICS)
    driver.send(stimuli.ResultReceived(client(3), naive))
    driver.verify(client(3), naive, digest_of("replica of another step"))
    driver.attest(*current.tasks.plan.witnesses)
    outcome = driver.run.models.outcomes[current.number.step]
    assert {entry.client_id for entry in outcome.entries} == {client(1), client(2)}
    assert driver.conduct(3).misses == 1


def test_client_whose_last_result_did_not_count_may_not_start_from_it() -> None:
    driver = ahead_of(4)
    current = driver.round
    driver.deliver_eager(client(1), client(2), client(3))
    driver.send(stimuli.StepFailed(client(4), FailureReport(current.number.step, 0, "unavailable", "no data", None)))
    driver.attest(*current.tasks.plan.witnesses)
    after = driver.round
    assert after.tasks.starts is not None
    assert client(4) not in after.tasks.starts.results
    driver.deliver_eager(client(1), client(2), client(3), client(4))
    driver.attest(*after.tasks.plan.witnesses)
    outcome = driver.run.models.outcomes[after.number.step]
    assert {entry.client_id for entry in outcome.entries} == {client(1), client(2), client(3)}


def test_member_that_leaves_is_not_waited_for_and_its_batches_return() -> None:
    driver = ahead_of(5)
    before = driver.round
    driver.deliver_eager(*driver.workers())
    driver.send(stimuli.ClientWithdrew(client(5)))
    driver.attest(*(who for who in before.tasks.plan.witnesses if who != client(5)))
    assert is_promised_before(driver, before)
    left = driver.round.tasks.plan.assignments[client(5)]
    assert left
    assert client(5) not in driver.round.missing.pending
    kept = [who for who in driver.workers() if who != client(5)]
    current = driver.round
    driver.deliver_eager(*kept)
    driver.attest(*(who for who in current.tasks.plan.witnesses if who != client(5)))
    assert driver.run.progress.step == current.number.step + 1
    assert total_batches(driver.run.work.carried) == total_batches(left)
    assert driver.run.members.departed == {}


def test_promise_is_dropped_when_too_few_of_its_witnesses_are_left() -> None:
    driver = ahead_of(2, config__min_clients=1)
    before = driver.round
    driver.deliver_eager(*driver.workers())
    driver.attest(client(1))
    driver.send(stimuli.ClientWithdrew(client(2)))
    driver.next_round()
    if driver.run.progress.step > before.number.step:
        assert driver.round.tasks.starts is None
    assert set(driver.round.tasks.plan.positions) == {client(1)}


@pytest.mark.parametrize("rounds_until_ready", [0, 1])
def test_newcomer_takes_part_in_the_round_after_the_promised_one(rounds_until_ready: int) -> None:
    """It is promised a part before it is ready: the round that was promised as it joined is the only one without it."""
    driver = ahead_of(3)
    driver.join(4)
    for number in range(2):
        if number == rounds_until_ready:
            driver.ready(client(4))
        assert client(4) not in driver.round.tasks.plan.positions
        play_kept(driver)
    assert client(4) in driver.workers()
    assert client(4) not in driver.round.tasks.plan.electorate
    assert client(4) in driver.round.missing.pending
    play_kept(driver)
    assert driver.conduct(4).last_applied_step == driver.run.progress.step - 1


def test_part_of_a_newcomer_doubles_with_each_round() -> None:
    sizes = {"config__global_batch_size_start": 96, "config__global_batch_size_end": 96}
    driver = ahead_of(2, **sizes)
    driver.join(3)
    driver.ready(client(3))
    parts = list[int]()
    while len(parts) < 5:
        part = total_batches(driver.round.tasks.plan.assignments.get(client(3), ()))
        parts += [part] * bool(part)
        play_kept(driver)
    assert parts == [16, 16, 32, 32, 32], "the second one was promised before anything was known of it"


def timed_ahead_of(members: int) -> Driver:
    """A run of proven members that take ten seconds for their parts, at the beginning of a round."""
    driver = ahead_of(members, config__global_batch_size_start=96, config__global_batch_size_end=96)
    for _ in range(2):
        driver.pass_time(10)
        play_kept(driver)
    return driver


def test_next_round_is_promised_late_with_those_that_joined_until_then() -> None:
    driver = timed_ahead_of(3)
    assert driver.round.promise_from_s == pytest.approx(8.0)
    driver.join(4)
    driver.ready(client(4))
    driver.pass_time(7.9)
    assert driver.round.ahead is None
    driver.pass_time(0.1)
    before = driver.round
    assert client(4) in {entry.client_id for entry in (promise(before).roster or before.tasks.roster).clients}
    driver.join(5)
    play_kept(driver)
    assert is_promised_before(driver, before)
    assert client(4) in driver.workers()
    assert client(5) not in driver.workers()


def test_next_round_is_promised_at_once_when_many_batches_are_done() -> None:
    driver = timed_ahead_of(3)
    workers, starts = driver.workers(), driver.round.tasks.starts
    assert starts is not None
    small = ResultCommitment(driver.round.number.step, 0, digest_of("soon"), 10, METRICS)
    assert driver.round.ahead is None
    driver.send(stimuli.ResultReceived(workers[0], small))
    promise(driver.round)


def test_newcomer_that_delivered_before_the_promise_is_promised_twice() -> None:
    driver = timed_ahead_of(3)
    driver.join(4)
    driver.ready(client(4))
    parts = list[int]()
    while len(parts) < 3:
        part = total_batches(driver.round.tasks.plan.assignments.get(client(4), ()))
        parts += [part] * bool(part)
        if part and client(4) not in driver.round.tasks.plan.electorate:
            driver.deliver(client(4))
            assert driver.round.ahead is None
        driver.pass_time(10)
        play_kept(driver)
    assert parts == [12, 24, 48]


def test_newcomer_that_is_not_ready_in_time_is_not_waited_for_nor_blamed() -> None:
    driver = ahead_of(3)
    driver.join(4)
    has_part = []
    for _ in range(STEPS_TO_GET_READY + 3):
        current = driver.round
        has_part.append(client(4) in driver.workers())
        assert client(4) not in current.missing.pending
        driver.deliver_eager(*(who for who in driver.workers() if who != client(4)))
        driver.attest(*current.tasks.plan.witnesses)
        assert driver.run.progress.step == current.number.step + 1
    assert has_part == [False, False, *[True] * STEPS_TO_GET_READY, False]
    assert driver.conduct(4).misses == 0


def test_void_round_drops_the_promise() -> None:
    driver = ahead_of(3)
    current, carried = driver.round, driver.round.tasks.work.batch_count()
    for who in driver.workers():
        report = FailureReport(current.number.step, 0, "unavailable", "no data", None)
        driver.send(stimuli.StepFailed(who, report))
    assert driver.round.number.is_attempt(current.number.step, 1)
    assert driver.round.tasks.starts is None
    assert driver.round.tasks.work.batch_count() == carried
    assert driver.round.tasks.work.shared[0] == current.tasks.work.shared[0]


def test_last_step_promises_nothing() -> None:
    driver = ahead_of(3, config__total_steps=4)
    assert driver.round.number.step == 3
    assert driver.round.ahead is not None
    play_kept(driver)
    assert driver.round.number.step == 4
    assert driver.round.ahead is None
    play_kept(driver)
    assert driver.run.clock.phase is RunState.COOLDOWN


def test_pause_pending_promises_nothing_and_drops_what_was_promised() -> None:
    driver = ahead_of(3)
    step = driver.round.number.step
    driver.send(stimuli.PauseRequested())
    play_kept(driver)
    driver.make_checkpoint()
    assert driver.run.clock.phase is RunState.PAUSED
    driver.send(stimuli.ResumeRequested())
    driver.next_round()
    assert driver.round.number.step == step + 1
    assert driver.round.tasks.starts is None
    assert driver.round.ahead is not None


def test_finish_request_drops_the_promise_and_drains() -> None:
    driver = ahead_of(4)
    step = driver.round.number.step
    driver.send(stimuli.FinishRequested(after_step=step))
    driver.deliver_eager(*driver.workers(4))
    driver.pass_time(driver.run.state_file.config.max_round_train_time)
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.run.progress.step == step + 1
    cursor = driver.run.work.cursor
    driver.next_round()
    assert driver.round.tasks.starts is None
    assert driver.round.tasks.cursor == cursor


def test_suspect_that_is_due_keeps_the_next_round_from_being_promised() -> None:
    driver = ahead_of(4)
    current = driver.round
    bad = driver.round.tasks.plan.assignments[client(4)][0].start
    driver.deliver_eager(*driver.workers(4))
    report = FailureReport(current.number.step, 0, "corrupt", "bad", BatchId(bad, bad))
    driver.send(stimuli.StepFailed(client(4), report))
    driver.attest(*current.tasks.plan.witnesses)
    assert driver.run.work.suspects
    assert driver.round.ahead is None
    play_kept(driver)
    assert [item.batch_id for item in driver.round.tasks.work.isolated] == [BatchId(bad, bad)]


def test_early_commitment_binds_in_the_promised_round() -> None:
    driver = ahead_of(3)
    driver.deliver_eager(client(1))
    driver.commit_ahead(client(1))
    driver.commit_ahead(client(1))
    with refused(Refusal.ALREADY_COMMITTED):
        driver.commit_ahead(client(1), name="another")
    driver.deliver_eager(client(2), client(3))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert set(driver.round.results.commitments) == {client(1)}
    assert driver.round.missing.pending >= {client(1)}
    with refused(Refusal.ALREADY_COMMITTED):
        driver.deliver_eager(client(1), name="another")
    driver.deliver_eager(client(1))
    assert set(driver.round.results.verified) == {client(1)}


def test_early_commitment_needs_a_commitment_of_the_round_itself() -> None:
    driver = ahead_of(3)
    with refused(Refusal.LATE_RESULT):
        driver.commit_ahead(client(1))


@pytest.mark.parametrize("instance", ["ab" * 16, None])
def test_early_commitment_of_a_process_that_was_replaced_is_void(instance: str | None) -> None:
    driver = ahead_of(3)
    driver.deliver_eager(client(1))
    driver.commit_ahead(client(1))
    driver.join(1, instance=instance)
    driver.deliver_eager(client(2), client(3))
    driver.attest(client(2), client(3), client(1))
    assert not driver.round.early
    assert not driver.round.results.commitments


def test_run_without_delay_refuses_early_commitments() -> None:
    driver = in_round(1, 2, 3, config__init_min_clients=3, **{**AHEAD, "merge__delay": 0})
    driver.play_round()
    driver.deliver(client(1))
    with refused(Refusal.LATE_RESULT):
        driver.commit_ahead(client(1))


def test_speed_runs_from_one_commitment_to_the_next() -> None:
    driver = ahead_of(2)
    driver.now_s += 4
    driver.deliver_eager(client(1))  # ready 4 s after the round's start
    driver.now_s += 7
    driver.commit_ahead(client(1))  # 7 s of work
    driver.now_s += 9
    driver.deliver_eager(client(2))
    driver.attest(*driver.round.tasks.plan.witnesses)
    batches = total_batches(driver.round.tasks.plan.assignments[client(1)])
    driver.now_s += 2
    driver.deliver_eager(*driver.workers())
    driver.attest(*driver.round.tasks.plan.witnesses)
    last = driver.run.members.by_id[client(1)].speed.deliveries[-1]
    assert last == (batches, 7000, 2000)
    slow = driver.run.members.by_id[client(2)].speed.deliveries[-1]
    assert slow[1:] == (2000, 0)


@given(st.integers(-50_000, 0), st.integers(-50_000, 50_000), st.integers(0, 50_000), st.integers(0, 9_000))
def test_time_of_a_delivery_has_no_wait_for_the_round(began_ms: int, work: int, upload: int, check: int) -> None:
    committed_ms = max(began_ms, work)
    held_ms = max(0, committed_ms) + upload + check
    timed = delivered(3, held_ms / 1000, committed_ms / 1000, check, began_ms / 1000)
    assert timed == (3, committed_ms - began_ms, upload)


def test_time_limit_follows_the_work_and_not_the_round() -> None:
    """Half of the work is ready as a round begins: its limit must not shrink to the upload."""
    driver = ahead_of(2)
    for _ in range(20):
        current, first = driver.round, driver.workers()[0]
        eager = current.tasks.starts is not None
        (driver.deliver_eager if eager else driver.deliver)(first)
        driver.now_s += 8
        driver.commit_ahead(first)
        others = [who for who in driver.workers() if who != first]
        (driver.deliver_eager if eager else driver.deliver)(*others)
        driver.attest(*current.tasks.plan.witnesses)
        limit_s = (driver.run.clock.phase_ends_s or 0.0) - driver.run.clock.phase_started_s
        assert limit_s >= 12


@settings(max_examples=settings().max_examples // 2)
@given(st.integers(2, 5), st.data())
def test_nothing_is_lost_or_counted_twice_whatever_happens(members: int, data: st.DataObject) -> None:
    """The driver checks the ledger, and that a snapshot reads back to the same run, after every stimulus."""
    driver = in_round(*range(1, members + 1), config__init_min_clients=members, **{**AHEAD, "config__total_steps": 12})
    newcomers = iter(range(members + 1, members + 9))
    for _ in range(25):
        if driver.run.clock.phase is not RunState.ROUND_TRAIN:
            if driver.run.clock.phase is RunState.FINISHED:
                break
            driver.pass_time(5)
            if driver.run.clock.phase is RunState.WARMUP:
                driver.warm_up()
            elif driver.run.clock.phase is RunState.COOLDOWN:
                driver.make_checkpoint()
            continue
        current, starts = driver.round, driver.round.tasks.starts
        for who in driver.workers():
            if driver.run.clock.phase is not RunState.ROUND_TRAIN or not is_round(driver, current):
                break
            if who not in driver.round.missing.pending:
                continue
            fate = data.draw(st.sampled_from(["eager", "plain", "fails", "leaves", "ahead", "silent"]))
            is_bound = who in current.results.commitments
            if fate == "fails" and not is_bound:
                kind: FailureKind = data.draw(st.sampled_from(["corrupt", "unavailable"]))
                report = FailureReport(current.number.step, current.number.attempt, kind, "x", None)
                driver.send(stimuli.StepFailed(who, report))
            elif fate == "leaves" and len(driver.run.members) > 2:
                driver.send(stimuli.ClientWithdrew(who))
            elif fate != "silent":
                is_eager = starts is not None and who in starts.results and (is_bound or fate in ("eager", "ahead"))
                (driver.deliver_eager if is_eager else driver.deliver)(who)
                if fate == "ahead" and is_round(driver, current) and driver.round.ahead is not None:
                    driver.commit_ahead(who)
        if data.draw(st.booleans()):
            number = next(newcomers, None)
            if number is not None:
                driver.join(number)
                if data.draw(st.booleans()):
                    driver.ready(client(number))
        driver.attest(
            *(who for who in current.tasks.plan.witnesses if who in driver.run.members and is_round(driver, current))
        )
        if is_round(driver, current):
            driver.pass_time(driver.run.state_file.config.max_round_train_time)
            driver.pass_time(driver.run.state_file.config.round_witness_time)


def is_round(driver: Driver, current: Round) -> bool:
    """Whether this round is still under way."""
    return driver.run.round is not None and driver.round.number == current.number
