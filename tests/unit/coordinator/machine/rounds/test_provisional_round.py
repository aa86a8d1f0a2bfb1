"""The provisional next round: that of the next run document if nothing is lost, and never more than a hint."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.parts.round import Round
from epochal.coordinator.machine.views import document_of
from epochal.state.assignment import DataAssignments, proven_ahead
from epochal.state.documents import MAX_REASON_CHARS, MAX_RUN_DOCUMENT_BYTES, CheckpointRef, RoundAhead
from epochal.state.messages.requests import FailureReport
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Sha256, canonical_json, document_digest
from tests.support.data.documents import round_head, run_document
from tests.support.drive.machine_driver import Driver, client, in_round

LONG_RUN = {"config__total_steps": 60, "config__global_batch_size_end": 40, "config__global_batch_size_start": 40}


def assigned_ahead(current: Round) -> DataAssignments:
    """The proven clients' assignments of the next round, as everybody can compute them while this one is under way."""
    assert current.ahead is not None
    return proven_ahead(current.ahead.roster or current.tasks.roster, current.ahead.work, current.tasks.seed)


def deliver_all(driver: Driver, *without: ClientId) -> None:
    driver.deliver(*(who for who in driver.workers() if who not in without))


def attest_all(driver: Driver) -> None:
    driver.attest(*driver.round.tasks.plan.witnesses)


def fail(driver: Driver, client_id: ClientId) -> None:
    current = driver.round
    driver.send(
        stimuli.StepFailed(
            client_id, FailureReport(current.number.step, current.number.attempt, "corrupt", "bad", None)
        )
    )


@settings(max_examples=max(10, settings().max_examples // 5))
@given(st.integers(1, 9), st.integers(1, 50), st.integers(0, 3))
def test_provisional_round_is_the_real_one_if_nothing_is_lost(members: int, batches: int, tokens: int) -> None:
    sizes = {"config__global_batch_size_start": batches, "config__global_batch_size_end": batches + 7}
    growing = {**sizes, "config__global_batch_size_warmup_tokens": tokens * 1000, "config__total_steps": 6}
    driver = in_round(*range(1, members + 1), config__init_min_clients=members, **growing)
    for _ in range(5):
        before = driver.round
        driver.play_round()
        assert before.ahead is not None
        assert before.ahead.work == driver.round.tasks.work
        assert (before.ahead.roster or before.tasks.roster) == driver.round.tasks.roster
        assert before.ahead.work_sha256 == driver.round.tasks.work_sha256
        assert before.ahead.roster_sha256 == driver.round.tasks.roster_sha256
        real = driver.round.tasks.plan.assignments
        assert assigned_ahead(before).items() <= real.items()
        assert assigned_ahead(before)


@settings(max_examples=max(10, settings().max_examples // 5))
@given(st.integers(2, 6), st.data())
def test_provisional_round_knows_the_losses_once_results_are_in(members: int, data: st.DataObject) -> None:
    driver = in_round(*range(1, members + 1), config__init_min_clients=members, **LONG_RUN)
    for _ in range(3):
        driver.play_round()
    for _ in range(3):
        workers = driver.workers()
        failing = data.draw(st.sets(st.sampled_from(workers), max_size=len(workers) - 1))
        for who in failing:
            fail(driver, who)
        deliver_all(driver, *failing)
        complete = driver.round
        attest_all(driver)
        if driver.run.round is None:
            return
        assert complete.ahead is not None
        assert complete.ahead.work == driver.round.tasks.work
        assert assigned_ahead(complete).items() <= driver.round.tasks.plan.assignments.items()


def test_newcomer_changes_no_more_than_the_split_of_the_work() -> None:
    """The order of proven clients depends on neither the keys nor the number of the others."""
    driver = in_round(1, 2, 3, config__init_min_clients=3, **LONG_RUN)
    for _ in range(6):
        driver.play_round()
    before = driver.round
    driver.join(4, 5)
    driver.ready(client(4), client(5))
    deliver_all(driver)
    attest_all(driver)
    assert len(driver.round.tasks.roster.clients) == 5
    expected, real = assigned_ahead(before), driver.round.tasks.plan.assignments
    ordered = sorted(expected, key=lambda who: expected[who][0].start)
    assert [who for who in real if who in expected] == ordered
    first = ordered[0]
    assert expected[first][0].start == real[first][0].start


def test_round_uses_the_seed_of_the_round_before_for_proven_clients() -> None:
    driver = in_round(1, 2, config__init_min_clients=2, **LONG_RUN)
    first = driver.round
    assert first.tasks.assignment_seed == first.tasks.seed
    driver.play_round()
    assert driver.round.tasks.assignment_seed == first.tasks.seed
    assert driver.round.tasks.seed != first.tasks.seed


def test_assignment_seed_outlives_an_epoch() -> None:
    driver = in_round(1, 2, config__init_min_clients=2, config__total_steps=20)
    while driver.in_phase(RunState.ROUND_TRAIN):
        last = driver.round
        driver.now_s += 50
        driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    driver.next_round()
    assert driver.round.tasks.assignment_seed == last.tasks.seed
    assert last.ahead is not None
    assert last.ahead.work == driver.round.tasks.work


def test_last_round_names_no_next_one() -> None:
    driver = in_round(1, 2, config__total_steps=2)
    assert driver.round.ahead is not None
    driver.play_round()
    assert driver.round.number.step == 2
    assert driver.round.ahead is None


def test_round_without_any_result_names_no_next_one() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    for who in driver.workers():
        fail(driver, who)
    assert driver.round.ahead is None or driver.round.number.attempt == 1


def test_round_that_goes_as_expected_keeps_the_provisional_one() -> None:
    """It costs as much as the round's own work: with thousands of members it is not computed twice for nothing."""
    driver = in_round(1, 2, 3, config__init_min_clients=3, **LONG_RUN)
    driver.play_round()
    before = driver.round.ahead
    assert before is not None
    deliver_all(driver)
    assert driver.round.times.complete_in_s is not None
    assert driver.round.ahead is before
    driver.play_round()
    named = driver.round.ahead
    driver.join(4)
    driver.ready(client(4))
    deliver_all(driver)
    assert driver.round.ahead != named


def test_provisional_round_decides_nothing() -> None:
    """A run whose provisional round is wrong, or absent, goes on as if it were right."""
    honest, other = (in_round(1, 2, 3, config__init_min_clients=3, **LONG_RUN) for _ in range(2))
    for _ in range(4):
        wrong = other.round.ahead
        assert wrong is not None
        work = replace(wrong.work, shared=wrong.work.shared[:0])
        changed = None if other.run.progress.step % 2 else replace(wrong, work=work, work_sha256=document_digest(work))
        other.run = replace(other.run, round=replace(other.round, ahead=changed))
        honest.play_round()
        other.play_round()
        assert honest.run == other.run


def test_document_names_the_provisional_round() -> None:
    driver = in_round(1, 2, **LONG_RUN)
    document, current = document_of(driver.run, 1), driver.round
    head = document.round
    assert head is not None
    assert current.ahead is not None
    assert document.ahead == RoundAhead(current.ahead.roster_sha256, document_digest(current.ahead.work))
    assert head.assignment_seed == current.tasks.assignment_seed


def test_round_of_the_document_is_the_same_until_it_ends() -> None:
    """Clients tell rounds apart by it: only what stands beside it may change."""
    driver = in_round(1, 2, 3, config__init_min_clients=3, **LONG_RUN)
    driver.play_round()
    driver.play_round()
    before = document_of(driver.run, 1)
    lost = driver.workers()[0]
    fail(driver, lost)
    deliver_all(driver, lost)
    after = document_of(driver.run, 1)
    assert after.round == before.round
    assert after.ahead != before.ahead


def test_largest_document_is_below_its_limit() -> None:
    digest, large = Sha256("f" * 64), 2**63 - 1
    names = ("step", "attempt", "height", "cursor", "batches", "roster_count")
    numbers: dict[str, Any] = dict.fromkeys(names, large)
    document = run_document(
        RunState.ROUND_WITNESS,
        run_id="r" * 64,
        reason="r" * MAX_REASON_CHARS,
        round=replace(round_head(1), **numbers),
        ahead=RoundAhead(digest, digest),
        checkpointer=ClientId("f" * 32),
        checkpoint=CheckpointRef(large, digest, large, digest, large),
        model_sha256=digest,
        data_fingerprint=digest,
        last_outcome_sha256=digest,
        cursor=large,
        data_indices_applied=large,
    )
    assert len(canonical_json(document)) <= MAX_RUN_DOCUMENT_BYTES
