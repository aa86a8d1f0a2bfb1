"""Newcomers, whose keys cost nothing: they neither outvote the members that do the work nor hold their rounds up."""

from dataclasses import replace

import pytest

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.checkpoints import TURN_PARTS
from epochal.coordinator.machine.pace import (
    MAX_WAIT_DOUBLINGS,
    ROUNDS_PER_WAIT,
    TIME_FOR_NEWCOMERS_S,
    only_newcomers_are_late,
    train_limit_s,
    with_pace,
)
from epochal.coordinator.machine.parts.checkpointers import current_checkpointer
from epochal.coordinator.machine.parts.round import Round
from epochal.state.intervals import total_batches
from epochal.state.messages.requests import FailureReport, ResultCommitment
from epochal.state.phase_names import RunState
from epochal.state.wire import Sha256
from tests.support.drive.machine_driver import METRICS, Driver, client, digest_of, in_round, played_once

NEWCOMERS = tuple(range(3, 12))


@played_once
def with_silent_newcomers(numbers: tuple[int, ...] = NEWCOMERS) -> Driver:
    """Return a run of two members that delivered, in its first round with others that never did."""
    driver = in_round(
        1, 2, config__total_steps=50, config__global_batch_size_start=60, config__global_batch_size_end=60
    )
    driver.play_round()
    driver.join(*numbers)
    driver.ready(*(client(number) for number in numbers))
    driver.play_round()
    driver.next_round()
    assert {entry.client_id for entry in driver.round.tasks.roster.clients} > {client(number) for number in numbers}
    return driver


def deliver_all_but_newcomers(driver: Driver, *numbers: int) -> None:
    driver.deliver(*(client(number) for number in numbers or (1, 2)))


def test_newcomers_that_say_nothing_do_not_void_a_round() -> None:
    driver = with_silent_newcomers()
    assert set(driver.round.tasks.plan.witnesses) == {client(1), client(2)}
    step = driver.run.progress.step
    deliver_all_but_newcomers(driver)
    driver.pass_time(TIME_FOR_NEWCOMERS_S)
    assert driver.in_phase(RunState.ROUND_WITNESS), "clients attest once no more results are waited for"
    driver.attest(client(1), client(2))
    assert driver.run.progress.step == step + 1


def test_round_waits_for_newcomers_as_long_again_as_for_the_others() -> None:
    driver = with_silent_newcomers()
    step = driver.run.progress.step
    driver.pass_time(5)
    deliver_all_but_newcomers(driver)
    driver.pass_time(2)
    driver.deliver(client(3))
    driver.pass_time(2.9)
    assert driver.in_phase(RunState.ROUND_TRAIN)
    driver.pass_time(0.1)
    driver.attest(client(1), client(2))
    assert driver.run.progress.step == step + 1


def test_newcomers_that_say_nothing_rest_and_leave_the_time_limit_as_it_is() -> None:
    driver = with_silent_newcomers()
    limit_s = train_limit_s(driver.run.pace, driver.run.state_file.config.max_round_train_time)
    for waits_s in (TIME_FOR_NEWCOMERS_S, 0, 0):  # the first round has waited in vain, so the next ones do not wait
        deliver_all_but_newcomers(driver)
        driver.pass_time(waits_s)
        driver.attest(client(1), client(2))
        driver.next_round()
        assert train_limit_s(driver.run.pace, driver.run.state_file.config.max_round_train_time) <= limit_s
    run = driver.run
    resting = {member.client_id for member in run.members.by_id.values() if member.conduct.is_resting(run.clock.now_s)}
    assert resting == {client(number) for number in NEWCOMERS}


def test_rounds_wait_for_newcomers_again_a_while_after_one_did_in_vain() -> None:
    driver = with_silent_newcomers()
    deliver_all_but_newcomers(driver)
    driver.pass_time(TIME_FOR_NEWCOMERS_S)
    driver.attest(client(1), client(2))
    driver.next_round()
    driver.pass_time(ROUNDS_PER_WAIT * TIME_FOR_NEWCOMERS_S - 0.1)
    deliver_all_but_newcomers(driver)
    assert driver.in_phase(RunState.ROUND_WITNESS)
    driver.pass_time(0.2)
    driver.attest(client(1), client(2))
    driver.next_round()
    deliver_all_but_newcomers(driver)
    assert driver.in_phase(RunState.ROUND_TRAIN)


def test_round_that_starts_as_the_pause_ends_waits_for_newcomers() -> None:
    driver = with_silent_newcomers()
    pace, clock = driver.run.pace, driver.run.clock
    settled = replace(driver.round.times, settled_in_s=0.0)
    at_once, later = clock.phase_started_s, clock.phase_started_s + 0.001
    assert not only_newcomers_are_late(replace(pace, newcomers_from_s=at_once), clock, settled)
    assert only_newcomers_are_late(replace(pace, newcomers_from_s=later), clock, settled)


def test_newcomer_that_has_all_the_work_is_waited_for_as_anybody_is() -> None:
    driver = in_round(1, config__init_min_clients=1, config__min_clients=1)
    driver.play_round()
    driver.join(3)
    driver.ready(client(3))
    failed = driver.round.number
    report = FailureReport(failed.step, failed.attempt, "corrupt", "x", None)
    driver.send(stimuli.StepFailed(client(1), report))
    number = driver.round.number
    assert (driver.workers(), driver.round.tasks.plan.decisive_count) == ([client(3)], 0)
    commitment = ResultCommitment(number.step, number.attempt, digest_of("result"), 10, METRICS)
    driver.send(stimuli.ResultReceived(client(3), commitment))
    driver.pass_time(2 * TIME_FOR_NEWCOMERS_S)
    driver.verify(client(3), commitment)
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.run.progress.step == number.step + 1


def test_pause_between_waits_in_vain_doubles_until_a_newcomer_delivers() -> None:
    driver = with_silent_newcomers()
    pace, clock = driver.run.pace, driver.run.clock
    waited = driver.round.with_parts(replace(driver.round.times, waited_s=1.0))

    def delivered_by(*numbers: int) -> Round:
        verified = {client(number): Sha256("0") for number in numbers}
        return waited.with_parts(replace(waited.results, verified=verified))

    def pause_s(current: Round, *, is_applied: bool) -> float:
        nonlocal pace
        pace = with_pace(pace, clock, current, is_applied=is_applied)
        assert pace.newcomers_from_s is not None
        return pace.newcomers_from_s - clock.now_s

    multiples = [pause_s(waited, is_applied=True) / ROUNDS_PER_WAIT for _ in range(MAX_WAIT_DOUBLINGS + 2)]
    assert multiples == [*(2.0**number for number in range(MAX_WAIT_DOUBLINGS + 1)), 2.0**MAX_WAIT_DOUBLINGS]
    assert pause_s(delivered_by(1, 3), is_applied=False) == ROUNDS_PER_WAIT * 2.0**MAX_WAIT_DOUBLINGS
    assert pause_s(delivered_by(1), is_applied=True) > ROUNDS_PER_WAIT
    assert pause_s(delivered_by(1, 3), is_applied=True) == ROUNDS_PER_WAIT


def test_newcomers_together_have_at_most_a_quarter_of_the_work() -> None:
    driver = with_silent_newcomers()
    batches = driver.round.tasks.plan.assignments
    assert 0 < sum(total_batches(batches[client(number)]) for number in NEWCOMERS) <= 60 / 4


def test_newcomers_that_fail_at_the_last_moment_are_not_waited_for_either() -> None:
    driver = with_silent_newcomers()
    driver.pass_time(5)
    deliver_all_but_newcomers(driver)
    driver.pass_time(4.9)
    current = driver.round
    for client_id in sorted(current.missing.pending):
        report = FailureReport(
            current.number.step, current.number.attempt, "trainer", "too late to be waited for", None
        )
        driver.send(stimuli.StepFailed(client_id, report))
    driver.attest(client(1), client(2))
    assert driver.run.pace.newcomers_from_s == pytest.approx(driver.now_s + ROUNDS_PER_WAIT * 4.9)
    assert driver.run.pace.train_times[-1] == pytest.approx(5)


def test_wait_for_a_member_that_delivered_before_is_not_the_newcomers() -> None:
    driver = with_silent_newcomers()
    deliver_all_but_newcomers(driver, 1)
    driver.pass_time(2.5)
    driver.send(stimuli.ClientWithdrew(client(2)))
    driver.pass_time(2.5)
    driver.attest(client(1))
    driver.pass_time(11)
    assert driver.run.pace.newcomers_from_s is not None
    assert driver.run.pace.newcomers_from_s < driver.now_s + ROUNDS_PER_WAIT * 3


def test_results_of_newcomers_say_nothing_of_the_time_limit() -> None:
    driver = with_silent_newcomers()
    driver.deliver(client(3), client(4))
    assert (driver.round.times.delivered_batches, driver.round.times.mostly_in_s) == (0, None)
    deliver_all_but_newcomers(driver)
    assert driver.round.times.delivered_batches == driver.round.tasks.plan.decisive_count


def test_outage_of_the_coordinator_is_no_time_without_waits() -> None:
    driver = with_silent_newcomers()
    deliver_all_but_newcomers(driver)
    driver.pass_time(TIME_FOR_NEWCOMERS_S)
    driver.attest(client(1), client(2))
    before_s = driver.run.pace.newcomers_from_s
    assert before_s is not None
    outage_s = 10_000
    driver.now_s = driver.run.clock.now_s + outage_s
    driver.send(stimuli.CoordinatorStarted())
    assert driver.run.pace.newcomers_from_s == before_s + outage_s


def test_newcomer_without_work_stays_a_newcomer() -> None:
    driver = with_silent_newcomers(tuple(range(3, 40)))
    plan = driver.round.tasks.plan
    idle = [client_id for client_id, batches in plan.assignments.items() if not batches]
    assert idle
    deliver_all_but_newcomers(driver)
    driver.pass_time(TIME_FOR_NEWCOMERS_S)
    driver.attest(client(1), client(2))
    assert {driver.run.members.by_id[client_id].conduct.earned for client_id in idle} == {0}


@pytest.mark.nightly
def test_every_newcomer_gets_its_turn() -> None:
    driver = with_silent_newcomers()
    tried = set()
    for _ in range(40):
        driver.next_round()
        plan = driver.round.tasks.plan
        tried |= {client_id for client_id in plan.assignments if plan.assignments[client_id]} - plan.electorate
        deliver_all_but_newcomers(driver)
        driver.pass_time(TIME_FOR_NEWCOMERS_S)
        driver.attest(client(1), client(2))
    assert tried == {client(number) for number in NEWCOMERS}


def test_newcomers_are_asked_for_a_checkpoint_only_after_the_others() -> None:
    driver = with_silent_newcomers()
    driver.run = driver.run.with_parts(
        replace(driver.run.clock, epoch_started_s=driver.run.clock.now_s - driver.run.state_file.config.epoch_time)
    )
    deliver_all_but_newcomers(driver)
    driver.pass_time(TIME_FOR_NEWCOMERS_S)
    driver.attest(client(1), client(2))
    assert driver.in_phase(RunState.COOLDOWN)
    asked = set()
    for _ in range(2):
        asked.add(current_checkpointer(driver.run.models, driver.run.members))
        driver.pass_time(driver.run.state_file.config.cooldown_time / TURN_PARTS)
    assert asked == {client(1), client(2)}


def test_newcomer_whose_result_was_applied_is_a_witness_next() -> None:
    driver = with_silent_newcomers()
    driver.deliver(client(1), client(2), client(3))
    driver.pass_time(TIME_FOR_NEWCOMERS_S)
    driver.attest(client(1), client(2))
    driver.next_round()
    assert client(3) in driver.round.tasks.plan.witnesses
