"""Rounds: refused reports, the contents of outcomes, and the fate of work that no outcome applied."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.instructions import OutcomeDecided
from epochal.coordinator.machine.transitions import DRAIN_ROUNDS
from epochal.state.errors import FailureKind, Refused
from epochal.state.intervals import BatchId, total_batches
from epochal.state.messages.requests import Attestation, FailureReport, ResultCommitment
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import METRICS, Driver, client, digest_of, in_round, in_warmup, refused


def bound(name: str, step: int = 1, attempt: int = 0) -> ResultCommitment:
    return ResultCommitment(step, attempt, digest_of(name), 10, METRICS)


def commit(driver: Driver, client_id: ClientId, name: str, *, step: int = 1, attempt: int = 0) -> None:
    driver.send(stimuli.ResultReceived(client_id, bound(name, step, attempt)))


def fail(driver: Driver, client_id: ClientId, kind: FailureKind = "corrupt", batch_id: BatchId | None = None) -> None:
    current = driver.round
    report = FailureReport(current.number.step, current.number.attempt, kind, "bad shard", batch_id)
    driver.send(stimuli.StepFailed(client_id, report))


def included(driver: Driver) -> set[ClientId]:
    """The clients whose results the one outcome so far holds."""
    (decided,) = (item for item in driver.instructions if isinstance(item, OutcomeDecided))
    return set() if decided.outcome is None else {entry.client_id for entry in decided.outcome.entries}


def test_second_commitment_is_refused_and_an_equal_one_changes_nothing() -> None:
    driver = in_round(1, 2)
    commit(driver, client(1), "first")
    before = driver.run
    commit(driver, client(1), "first")
    assert driver.run is before
    with refused("already-committed"):
        commit(driver, client(1), "second")


def test_result_after_the_training_time_is_refused_as_late() -> None:
    driver = in_round(1, 2)
    commit(driver, client(1), "mine")
    driver.deliver(client(2))
    driver.pass_time(61)
    assert driver.in_phase(RunState.ROUND_WITNESS)
    with refused("late-result"):
        driver.verify(client(1), bound("mine"))


@pytest.mark.parametrize(("step", "attempt"), [(1, 1), (2, 0)])
def test_commitment_for_another_round_is_refused_as_late(step: int, attempt: int) -> None:
    driver = in_round(1, 2)
    with refused("late-result"):
        commit(driver, client(1), "x", step=step, attempt=attempt)


def test_late_report_is_told_which_round_is_under_way() -> None:
    with pytest.raises(Refused, match="step 1 is over or has not begun; no round is under way"):
        commit(in_warmup(1, 2), client(1), "x")
    with pytest.raises(Refused, match="step 2 is over or has not begun; step 1 is under way"):
        commit(in_round(1, 2), client(1), "x", step=2)


def test_commitment_of_a_stranger_is_refused() -> None:
    driver = in_round(1, 2)
    with refused("not-in-roster"):
        commit(driver, client(9), "x")


def test_rejected_result_is_not_waited_for_and_its_work_is_carried() -> None:
    driver = in_round(1, 2, 3)
    commit(driver, client(1), "nan")
    driver.reject(client(1), bound("nan"))
    driver.deliver(client(2), client(3))
    driver.attest(client(1), client(2), client(3))
    assert driver.run.progress.step == 2
    assert total_batches(driver.applied) == 8
    assert total_batches(driver.round.tasks.work.shared) == 12


def test_result_is_judged_once() -> None:
    driver = in_round(1, 2, 3)
    commit(driver, client(1), "nan")
    driver.reject(client(1), bound("nan"))
    before = driver.run
    driver.reject(client(1), bound("nan"), "max_abs")
    assert driver.run is before
    commit(driver, client(2), "good")
    driver.verify(client(2), bound("good"))
    before = driver.run
    driver.verify(client(2), bound("good"))
    driver.reject(client(2), bound("good"))
    assert driver.run is before
    with refused("already-committed"):
        driver.verify(client(2), bound("nan"))


def test_failure_binds_as_a_commitment_does_until_a_result_is_held() -> None:
    driver = in_round(1, 2, 3, 4)
    fail(driver, client(1))
    before = driver.run
    fail(driver, client(1), "trainer")
    assert driver.run is before
    with refused("already-committed"):
        commit(driver, client(1), "late")
    driver.deliver(client(2))
    with refused("already-committed"):
        fail(driver, client(2))
    commit(driver, client(3), "mine")
    fail(driver, client(3))
    assert driver.round.missing.pending == {client(4)}


def test_attestation_by_no_witness_is_refused() -> None:
    driver = in_round(1, 2, config__witness_nodes=1)
    (witness,) = driver.round.tasks.plan.witnesses
    other = client(1) if witness == client(2) else client(2)
    with refused("not-in-roster"):
        driver.send(stimuli.AttestationReceived(other, Attestation(1, 0, driver.replica_digest(), "0")))


def test_attested_bits_beyond_what_is_verified_are_dropped() -> None:
    driver = in_round(1, 2, 3)
    driver.deliver(client(1))
    driver.send(stimuli.AttestationReceived(client(2), Attestation(1, 0, driver.replica_digest(), "7")))
    position = driver.round.tasks.plan.positions[client(1)]
    assert driver.round.witnessed.attestations[client(2)].received_bits() == 1 << position


def test_outcome_without_agreement_on_a_replica_is_empty_and_rebuilds() -> None:
    driver = in_round(1, 2)
    driver.deliver(client(1), client(2))
    driver.attest(client(1))
    driver.attest(client(2), replica_digest=digest_of("other"))
    assert driver.run.progress.step == 1
    assert driver.run.progress.attempt == 1
    assert driver.run.models.rebuild
    assert driver.applied == []
    driver.play_round()
    assert driver.run.progress.step == 2
    assert not driver.run.models.rebuild


def test_result_trained_from_another_replica_is_not_applied() -> None:
    driver = in_round(1, 2, 3)
    driver.deliver(client(1), client(2))
    commit(driver, client(3), "odd")
    driver.verify(client(3), bound("odd"), digest_of("another replica"))
    driver.attest(client(1), client(2), client(3))
    assert included(driver) == {client(1), client(2)}


def test_result_that_only_a_minority_saw_is_carried() -> None:
    driver = in_round(1, 2, 3)
    driver.deliver(client(1), client(2))
    driver.attest(client(1), client(2))
    driver.deliver(client(3))
    driver.attest(client(3))
    driver.pass_time(61)
    driver.pass_time(11)
    assert included(driver) == {client(1), client(2)}


def test_outcome_of_a_quorum_that_died_after_attesting_still_counts() -> None:
    driver = in_round(1, 2, 3)
    driver.deliver(client(1), client(2), client(3))
    driver.attest(client(1))
    driver.send(stimuli.ClientsFellSilent((client(1),)))
    driver.attest(client(2))
    driver.attest(client(3))
    assert driver.run.progress.step == 2


def test_all_clients_gone_mid_round_carries_everything_until_they_return() -> None:
    driver = in_round(1, 2)
    driver.deliver(client(1))
    driver.send(stimuli.ClientsFellSilent((client(1), client(2))))
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)
    assert total_batches(driver.run.work.carried) == 12
    driver.join(1, 2)
    driver.pass_time(2)
    driver.warm_up()
    driver.play_round()
    assert driver.run.progress.step == 2
    assert total_batches(driver.applied) == 12


def test_drain_rounds_take_only_carried_work_and_are_bounded() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    driver.deliver(client(1))
    fail(driver, client(2), "unavailable")
    driver.attest(client(1), client(2))
    assert driver.run.progress.step == 2
    for _ in range(DRAIN_ROUNDS):
        assert driver.in_phase(RunState.ROUND_TRAIN)
        assert driver.run.work.cursor == 12
        for client_id in tuple(driver.round.missing.pending):
            fail(driver, client_id, "unavailable")
    assert driver.in_phase(RunState.COOLDOWN)
    assert total_batches(driver.run.work.carried) == 6


@settings(max_examples=settings().max_examples * 3 // 2)
@given(st.data())
def test_ledger_holds_and_the_run_finishes_whatever_clients_do(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    driver = Driver(state_file(config__init_min_clients=1, config__total_steps=3))
    driver.join(*range(1, count + 1))
    actions = ("deliver", "attest", "fail", "unavailable", "silent", "join", "ready", "time", "checkpoint", "differ")
    for action in data.draw(st.lists(st.sampled_from(actions), max_size=60)):
        number = data.draw(st.integers(1, count))
        try:
            act(driver, action, number, data)
        except Refused:
            continue
    for _ in range(60):
        if driver.run.clock.phase is RunState.FINISHED:
            break
        recover(driver, count)
    assert driver.in_phase(RunState.FINISHED)
    assert driver.run.progress.step == 4


def act(driver: Driver, action: str, number: int, data: st.DataObject) -> None:
    who = client(number)
    match action:
        case "deliver" if driver.run.round:
            driver.deliver(who)
        case "attest" if driver.run.round:
            driver.attest(who)
        case "differ" if driver.run.round:
            driver.attest(who, replica_digest=digest_of("other"))
        case "fail" if driver.run.round:
            assigned = driver.round.tasks.plan.assignments.get(who) or (BatchId(0, 0),)
            part = data.draw(st.sampled_from(assigned))
            kind: FailureKind = data.draw(st.sampled_from(("corrupt", "trainer")))
            fail(driver, who, kind, data.draw(st.sampled_from([None, part, BatchId(part.start, part.start)])))
        case "unavailable" if driver.run.round:
            fail(driver, who, "unavailable")
        case "silent":
            driver.send(stimuli.ClientsFellSilent((who,)))
        case "join":
            driver.join(number)
        case "ready":
            driver.ready(who)
        case "time":
            driver.pass_time(data.draw(st.sampled_from([0.5, 2.0, 31.0, 700.0])))
        case "checkpoint" if driver.run.models.checkpointing and driver.run.members.by_id:
            driver.make_checkpoint()


def attest_again(driver: Driver) -> None:
    """Every witness attests what is held, except those that have attested another replica in this round."""
    current = driver.round
    for witness in current.tasks.plan.witnesses:
        before = current.witnessed.attestations.get(witness)
        bound = before is not None and before.replica_digest != driver.replica_digest()
        if witness in driver.run.members and not bound and driver.run.round is not None:
            if (driver.run.progress.step, driver.run.progress.attempt) != (current.number.step, current.number.attempt):
                break
            driver.attest(witness)


def recover(driver: Driver, count: int) -> None:
    """From here on everyone is healthy."""
    for number in range(1, count + 1):
        if client(number) not in driver.run.members:
            driver.join(number)
    match driver.run.clock.phase:
        case RunState.WARMUP:
            if driver.run.models.checkpoint is None:
                driver.make_checkpoint()
            driver.ready(*driver.run.members.by_id)
        case RunState.ROUND_TRAIN:
            current = driver.round
            plan = current.tasks.plan
            for client_id, assigned in plan.assignments.items():
                known = client_id in current.results.commitments or client_id in current.missing.failures
                if not assigned or client_id not in driver.run.members or known:
                    continue
                if driver.round.missing.pending:  # else it has joined again, after the others had delivered: too late
                    driver.deliver(client_id)
            if driver.run.round is not None and driver.run.clock.phase is RunState.ROUND_TRAIN:
                attest_again(driver)
            driver.pass_time(61)
        case RunState.ROUND_WITNESS:
            attest_again(driver)
            driver.pass_time(11)
        case _:
            driver.pass_time(31)
    if driver.run.clock.phase is RunState.ROUND_TRAIN and driver.run.progress.step < 4:
        unready = [member.client_id for member in driver.run.members.by_id.values() if member.readiness.step is None]
        driver.ready(*unready)
