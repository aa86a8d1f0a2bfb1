"""What a run waits for, in words, phase by phase."""

import re
from typing import Any

import pytest

from epochal.coordinator.insight.member_book import MemberBook
from epochal.coordinator.insight.member_rows import member_rows
from epochal.coordinator.insight.wait_facts import situation_of
from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.run import Run
from epochal.state.phase_names import RunState
from epochal.state.shown.waiting_words import Situation, waiting_words, with_limit
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client


def words(run: Run) -> str:
    return waiting_words(situation_of(run))


def driver_of(**fields: Any) -> Driver:
    known = {"config__min_clients": 2, "config__init_min_clients": 2, "config__total_steps": 9}
    return Driver(state_file(**(known | fields)))


def short(*numbers: int) -> str:
    return ", ".join(sorted(client(number)[:12] for number in numbers))


def test_silent_members_are_named_with_when_they_count_as_gone() -> None:
    driver = driver_of(config__client_timeout_s=30)
    driver.join(1)
    driver.join(2)
    driver.next_round()
    heard_s = {client(1): 20.0, client(2): 14.0}
    said = waiting_words(situation_of(driver.run, None, heard_s.__getitem__))
    assert said.endswith(f"; {short(1)} has been silent for 20 s and counts as gone in 10 s")
    heard_s[client(2)] = 25.0
    said = waiting_words(situation_of(driver.run, None, heard_s.__getitem__))
    assert said.endswith(
        f"; {short(2)} has been silent for 25 s and counts as gone in 5 s"
        f"; {short(1)} has been silent for 20 s and counts as gone in 10 s"
    )


def test_a_run_says_what_each_phase_waits_for() -> None:
    driver = driver_of()
    driver.join(1)
    assert words(driver.run) == "waits for members: 1 of 2 have joined"
    driver.join(2)
    assert words(driver.run) == "has 2 members of 2 needed, and waits a little for more"
    driver.pass_time(driver.run.state_file.config.waiting_for_members_extra_time + 0.1)
    assert words(driver.run).startswith("waits for 2 of 2 members to be ready: ")
    driver.ready(client(1))
    assert words(driver.run) == f"waits for 1 of 2 members to be ready: {short(2)}"
    driver.next_round()
    assert words(driver.run) == f"waits for results of {short(1, 2)}"
    driver.deliver(client(1))
    assert words(driver.run) == f"waits for the result of {short(2)}"
    driver.deliver(client(2))
    assert words(driver.run) == "has all results, and waits for witnesses to attest them: 0 did, 2 must agree"
    driver.send(stimuli.PauseRequested())
    assert words(driver.run).endswith(", and then pauses, as its operator asked")
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.in_phase(RunState.COOLDOWN)
    assert words(driver.run).startswith("waits for the checkpoint of replica 1, from ")
    driver.make_checkpoint()
    assert words(driver.run) == "is paused, and waits for its operator to resume it"


def test_witness_that_lacks_a_result_has_not_attested_all() -> None:
    driver = driver_of()
    driver.join(1, 2)
    driver.next_round()
    driver.deliver(client(1))
    driver.attest(client(1))
    driver.deliver(client(2))
    assert driver.round.witnessed.attestations
    assert words(driver.run) == "has all results, and waits for witnesses to attest them: 0 did, 2 must agree"
    driver.attest(client(1))
    assert words(driver.run) == "has all results, and waits for witnesses to attest them: 1 did, 2 must agree"


def test_clients_with_a_result_train_ahead_of_the_round_that_was_promised() -> None:
    driver = driver_of(merge__delay=1)
    driver.join(1, 2, 3)
    driver.next_round()
    driver.deliver(client(1))
    assert "ahead" not in words(driver.run), "nobody is proven yet, so that no work is known before its round"
    driver.deliver(client(2), client(3))
    driver.attest(*driver.round.tasks.plan.witnesses)
    assert driver.run.progress.step == 2
    assert "ahead" not in words(driver.run), "no result is ready"
    driver.deliver(client(1))
    assert words(driver.run).endswith(", while 1 client trains ahead, for step 3")
    driver.deliver(client(2))
    assert words(driver.run).endswith(", while 2 clients train ahead, for step 3")
    silent_s = dict.fromkeys(driver.run.members.by_id, 0.0)
    rows, _ = member_rows(driver.run, (), MemberBook(), silent_s)
    assert {row.client_id: row.ahead_step for row in rows} == {client(1): 3, client(2): 3, client(3): None}


def test_many_awaited_clients_are_counted() -> None:
    driver = driver_of(config__global_batch_size_start=60, config__global_batch_size_end=60)
    driver.join(*range(1, 11))
    driver.next_round()
    driver.deliver(driver.workers()[0])
    named = ", ".join(sorted(driver.round.missing.pending)[index][:12] for index in range(4))
    assert words(driver.run) == f"waits for results of 9 of 10 clients, {named} and 5 more"


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (Situation(RunState.UNINITIALIZED), "waits for its coordinator to start"),
        (
            Situation(RunState.ROUND_TRAIN, problem="no space"),
            "waits for its coordinator's disk or database, and continues by itself after that: no",
        ),
        (Situation(RunState.ROUND_TRAIN, hold="1 rests", awaited=("a",), awaited_count=1), "waits for the result of a"),
        (Situation(RunState.WARMUP, hold="1 rests"), "waits for members that rest: 1 rests"),
        (Situation(RunState.WAITING_FOR_MEMBERS, has_model=False, operator_gives_model=True), "waits for its first mo"),
        (Situation(RunState.WAITING_FOR_MEMBERS, members=3, available=1, needed=2), "waits for members: 1 of 2 can w"),
        (Situation(RunState.WAITING_FOR_MEMBERS, members=3, available=3), "has 3 members of 0 needed, and waits a li"),
        (Situation(RunState.WARMUP, members=4, ready=2, awaited=("a", "b"), awaited_count=2), "waits for 2 of 4 memb"),
        (Situation(RunState.WARMUP, members=2, ready=2), "begins its first round"),
        (Situation(RunState.WARMUP, has_model=False, awaited=("a",), awaited_count=1), "waits for its first model, fr"),
        (Situation(RunState.ROUND_TRAIN), "has no result to wait for"),
        (Situation(RunState.ROUND_WITNESS), "ends a round without results"),
        (Situation(RunState.COOLDOWN, checkpoint_step=4, awaited=("a",), awaited_count=1), "waits for the checkpoint"),
        (Situation(RunState.COOLDOWN), "ends its epoch"),
        (Situation(RunState.FINISHED, total_steps=9), "is finished: all 9 steps are done"),
    ],
)
def test_words_for_other_situations(now: Situation, expected: str) -> None:
    assert waiting_words(now).startswith(expected)


def test_limit_is_said_if_there_is_one() -> None:
    assert with_limit("waits for results of 7f3a", 40.6) == "waits for results of 7f3a, at most 41 s more"
    assert with_limit("is paused", None) == "is paused"


@pytest.mark.parametrize("phase", RunState)
@pytest.mark.parametrize("ready", [0, 1])
def test_one_member_and_one_step_are_said_in_the_singular(phase: RunState, ready: int) -> None:
    now = Situation(phase, members=1, available=1, needed_first=1, needed=1, ready=ready, total_steps=1)
    assert not re.search(r"\b1 (members|steps|clients|witnesses)\b", waiting_words(now))
