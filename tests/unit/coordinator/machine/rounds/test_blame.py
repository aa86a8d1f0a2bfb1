"""Failures of data: which batches become suspects, who is believed, when a batch leaves the run."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.coordinator.machine import blame, stimuli
from epochal.coordinator.machine.blame import MEMBERS_BEFORE_QUARANTINE
from epochal.coordinator.machine.instructions import BatchesQuarantined, OutcomeDecided, QuarantineEnded
from epochal.coordinator.machine.parts.run_members import DELIVERED_LATELY_STEPS
from epochal.state.errors import FailureKind
from epochal.state.intervals import BatchId, total_batches
from epochal.state.messages.requests import FailureReport
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId
from tests.support.drive.machine_driver import Driver, client, in_round, played_once, refused
from tests.support.thinned import thinned

BAD = BatchId(5, 5)
Fails = Callable[[ClientId, BatchId], bool]
"""Whether a client fails on a single batch."""
Watch = Callable[[Driver, ClientId, BatchId | None], None]
"""Called before a client reports a failure, with the batch that it names."""


def fail(driver: Driver, client_id: ClientId, kind: FailureKind = "corrupt", batch_id: BatchId | None = None) -> None:
    current = driver.round
    report = FailureReport(current.number.step, current.number.attempt, kind, "bad shard", batch_id)
    driver.send(stimuli.StepFailed(client_id, report))


def batches(parts: Iterable[BatchId]) -> list[BatchId]:
    return [BatchId(number, number) for part in parts for number in range(part.start, part.end + 1)]


def unwatched(_: Driver, __: ClientId, ___: BatchId | None) -> None:
    """Take no note of a failure."""


def play(driver: Driver, fails: Fails, *, named: bool = True, watch: Watch = unwatched) -> None:
    """Play one round: a client fails if it fails on a batch that it is assigned, else it delivers; witnesses attest."""
    plan = driver.round.tasks.plan
    for client_id, assigned in plan.assignments.items():
        bad = next((batch for batch in batches(assigned) if fails(client_id, batch)), None)
        if bad is not None:
            watch(driver, client_id, bad if named else None)
            fail(driver, client_id, batch_id=bad if named else None)
        elif assigned:
            driver.deliver(client_id)
    if driver.run.round is not None and driver.round.results.verified:
        driver.attest(*plan.witnesses)


def play_rounds(driver: Driver, fails: Fails, rounds: int, *, named: bool = True) -> None:
    for _ in range(rounds):
        if driver.run.round is not None:
            play(driver, fails, named=named)


def everyone_on(bad: BatchId) -> Fails:
    return lambda _, batch: batch == bad


def nobody(_: ClientId, __: BatchId) -> bool:
    return False


@thinned("named", [False, True])
@thinned("clients", [3, 5])
def test_batch_that_three_members_fail_on_is_quarantined(named: bool, clients: int) -> None:
    driver = in_round(*range(1, clients + 1), config__init_min_clients=clients, config__total_steps=20)
    play_rounds(driver, everyone_on(BAD), 40, named=named)
    assert [item.batch_id for item in driver.run.work.quarantined] == [BAD]
    (told,) = [item for item in driver.instructions if isinstance(item, BatchesQuarantined)]
    assert len(set(told.against)) == MEMBERS_BEFORE_QUARANTINE
    assert driver.in_phase(RunState.COOLDOWN)
    assert driver.run.work.carried == ()
    assert driver.run.work.suspects == ()


@pytest.mark.parametrize("clients", [1, 2])
def test_fewer_than_three_members_quarantine_nothing_and_go_on(clients: int) -> None:
    driver = in_round(*range(1, clients + 1), config__init_min_clients=clients, config__total_steps=20)
    play_rounds(driver, everyone_on(BAD), 200)
    assert driver.in_phase(RunState.COOLDOWN)
    assert driver.run.work.quarantined == ()
    assert [suspect.batch_id for suspect in driver.run.work.suspects] == [BAD]
    assert driver.run.work.carried == ()
    assert driver.run.work.batches_applied == driver.run.work.cursor - 1
    assert driver.run.progress.step == 21


def test_pauses_between_attempts_at_a_batch_grow_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blame, "MAX_PAUSE_STEPS", 8)
    driver = in_round(1, config__init_min_clients=1, config__total_steps=60)
    attempted = []
    while driver.run.progress.step < 40:
        if any(item.batch_id == BAD for item in driver.round.tasks.work.isolated):
            attempted.append(driver.run.progress.step)
        play(driver, everyone_on(BAD))
    pauses = [later - earlier for earlier, later in pairwise(attempted)]
    assert pauses[:5] == [2, 4, 8, 8, 8]


def test_members_that_fail_on_everything_quarantine_nothing() -> None:
    driver = in_round(1, 2, 3, 4, config__init_min_clients=4, config__total_steps=20)
    play_rounds(driver, lambda client_id, _: client_id != client(4), 60)
    assert driver.run.work.quarantined == ()
    assert driver.run.work.suspects == (), "nobody believes them while another member delivers"
    assert driver.in_phase(RunState.COOLDOWN)


def test_lone_member_that_always_fails_quarantines_nothing() -> None:
    driver = in_round(1, config__init_min_clients=1)
    for _ in range(3):
        play(driver, lambda *_: True)
    assert driver.run.work.suspects
    assert all(suspect.against == () for suspect in driver.run.work.suspects)
    assert driver.run.work.quarantined == ()
    assert driver.run.progress.step == 1


def test_suspects_of_nondeliverers_are_carried_once_anybody_delivers() -> None:
    driver = in_round(1, 2, config__init_min_clients=2)
    play(driver, lambda *_: True)
    failed = [suspect.batch_id for suspect in driver.run.work.suspects]
    assert len(failed) == 2
    driver.play_round()
    assert not driver.run.work.suspects
    driver.play_round()
    assert set(failed) <= set(batches(driver.applied))


def test_member_counts_only_while_its_last_result_is_recent() -> None:
    driver = in_round(1, 2, config__init_min_clients=2, config__total_steps=100)
    driver.play_round()
    assert driver.run.members.has_delivered_lately(client(1), driver.run.progress.step)
    while driver.run.progress.step <= 1 + DELIVERED_LATELY_STEPS:
        assert driver.run.members.has_delivered_lately(client(1), driver.run.progress.step)
        driver.deliver(client(2))
        if client(1) in driver.round.missing.pending:
            fail(driver, client(1), "unavailable")
        driver.attest(*driver.round.tasks.plan.witnesses)
    assert not driver.run.members.has_delivered_lately(client(1), driver.run.progress.step)
    assert driver.run.members.has_delivered_lately(client(2), driver.run.progress.step)


def test_bad_data_with_on_bad_data_stop_pauses_and_keeps_the_batch() -> None:
    driver = in_round(1, 2, 3, config__on_bad_data="stop", config__total_steps=50)
    play_rounds(driver, everyone_on(BAD), 30)
    assert driver.in_phase(RunState.COOLDOWN)
    driver.make_checkpoint()
    assert driver.in_phase(RunState.PAUSED)
    assert driver.run.work.quarantined == ()
    assert [suspect.batch_id for suspect in driver.run.work.suspects] == [BAD]


@pytest.mark.parametrize("kind", ["unavailable", "trainer"])
def test_failure_that_is_not_the_datas_is_carried_and_never_suspected(kind: FailureKind) -> None:
    driver = in_round(1, 2)
    for attempt in range(2):
        fail(driver, client(1), kind)
        fail(driver, client(2), kind)
        assert (driver.run.progress.step, driver.run.progress.attempt) == (1, attempt + 1)
    assert driver.run.work.suspects == ()
    driver.play_round()
    assert driver.run.progress.step == 2


def test_batch_that_failed_once_is_attempted_alone_by_another_and_cleared() -> None:
    driver = in_round(1, 2, 3)
    driver.play_round()
    (bad, *_) = batches(driver.round.tasks.plan.assignments[client(1)])
    play(driver, lambda client_id, _: client_id == client(1))
    (item,) = driver.round.tasks.work.isolated
    assert (item.batch_id, item.tried) == (bad, (client(1),))
    assert driver.round.tasks.plan.assignments[client(1)] != (bad,)
    driver.play_round()
    assert driver.run.work.suspects == ()


def test_drain_rounds_leave_a_batch_that_waits_and_the_run_ends() -> None:
    driver = in_round(1, 2, config__init_min_clients=2, config__total_steps=3)
    play_rounds(driver, everyone_on(BatchId(30, 30)), 40)
    assert driver.in_phase(RunState.COOLDOWN)
    assert total_batches(suspect.batch_id for suspect in driver.run.work.suspects) == 1
    assert driver.run.work.carried == ()


def quarantined(driver: Driver) -> list[BatchId]:
    return [item.batch_id for item in driver.run.work.quarantined]


@played_once
def with_quarantine(*bad: int, steps: int = 30) -> Driver:
    """Return a driver whose run has quarantined these batches, and gone on."""
    driver = in_round(1, 2, 3, config__init_min_clients=3, config__total_steps=steps)
    for _ in range(40):
        if len(driver.run.work.quarantined) < len(bad):
            play(driver, lambda _, batch: batch.start in bad)
    assert sorted(quarantined(driver)) == [BatchId(number, number) for number in bad]
    return driver


def test_released_batches_are_carried_and_applied() -> None:
    driver = with_quarantine(5, 7)
    told = driver.send(stimuli.BatchesReleased((BatchId(0, 6),)))
    assert told[0] == QuarantineEnded((BatchId(5, 5),))
    assert quarantined(driver) == [BatchId(7, 7)]
    play_rounds(driver, nobody, 60)
    assert BatchId(5, 5) in batches(driver.applied)
    assert BatchId(7, 7) not in batches(driver.applied)


def test_release_of_all_carries_each_quarantined_batch() -> None:
    driver = with_quarantine(5, 6)
    driver.send(stimuli.BatchesReleased(None))
    assert quarantined(driver) == []
    assert BatchId(5, 6) in driver.run.work.carried


@pytest.mark.parametrize("intervals", [None, (BatchId(0, 100),)])
def test_release_of_what_is_not_quarantined_is_refused(intervals: tuple[BatchId, ...] | None) -> None:
    driver = in_round(1, 2)
    with refused("not-found"):
        driver.send(stimuli.BatchesReleased(intervals))


def test_released_batch_that_fails_again_is_quarantined_again() -> None:
    driver = with_quarantine(5)
    driver.send(stimuli.BatchesReleased(None))
    play_rounds(driver, everyone_on(BAD), 40)
    assert quarantined(driver) == [BAD]


def test_release_after_the_end_reopens_the_run() -> None:
    driver = with_quarantine(5, steps=8)
    play_rounds(driver, nobody, 20)
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    driver.send(stimuli.BatchesReleased(None))
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)
    assert driver.run.clock.reason == "an operator released quarantined batches"
    driver.pass_time(2)
    driver.warm_up()
    driver.play_round()
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    assert BAD in batches(driver.applied)


class Oracle:
    """Counts by the rule's words alone: who named each single batch, among those with a result in the last steps."""

    def __init__(self) -> None:
        self.named_by: dict[BatchId, set[ClientId]] = {}

    def expected(self, driver: Driver) -> set[BatchId]:
        named = {batch for batch, clients in self.named_by.items() if len(clients) >= MEMBERS_BEFORE_QUARANTINE}
        return named - set(batches(driver.applied))

    def watch(self, driver: Driver, client_id: ClientId, named: BatchId | None) -> None:
        outcomes = [item.outcome for item in driver.instructions if isinstance(item, OutcomeDecided) and item.outcome]
        recent = [outcome for outcome in outcomes if outcome.step >= driver.run.progress.step - DELIVERED_LATELY_STEPS]
        assigned = driver.round.tasks.plan.assignments[client_id]
        exact = named or (assigned[0] if len(assigned) == 1 and assigned[0].count == 1 else None)
        if exact and any(entry.client_id == client_id for outcome in recent for entry in outcome.entries):
            self.named_by.setdefault(exact, set()).add(client_id)


@settings(max_examples=settings().max_examples // 4)
@given(st.data(), st.randoms(use_true_random=False))
def test_quarantined_are_the_batches_that_three_deliverers_named(data: st.DataObject, random: Random) -> None:
    count = data.draw(st.integers(1, 6))
    bad = data.draw(st.sets(st.integers(0, 60), max_size=4))
    lying = {client(number) for number in data.draw(st.sets(st.integers(1, count)))}
    driver, oracle = in_round(*range(1, count + 1), config__init_min_clients=1, config__total_steps=12), Oracle()

    def fails(client_id: ClientId, batch: BatchId) -> bool:
        return batch.start in bad or (client_id in lying and random.random() < 0.1)

    for _ in range(40):
        if driver.run.round is not None:
            play(driver, fails, named=random.random() < 0.7, watch=oracle.watch)
        assert {item.batch_id for item in driver.run.work.quarantined} == oracle.expected(driver)
