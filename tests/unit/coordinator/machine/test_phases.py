"""The machine from the first member to Finished, phase by phase."""

from dataclasses import replace

import pytest

from epochal.coordinator.machine import stimuli
from epochal.coordinator.machine.handle import PHASES, TRANSITIONS, destination, handle
from epochal.coordinator.machine.instructions import SegmentEnded
from epochal.state.errors import InternalError
from epochal.state.phase_names import RunState
from epochal.state.wire import Seed
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, client, digest_of, in_round, in_warmup, played_once


def test_run_with_three_fast_clients_finishes_through_every_phase() -> None:
    driver = in_round(1, 2, 3, config__total_steps=2)
    driver.play_round()
    driver.play_round()
    driver.make_checkpoint()
    rounds = ["RoundTrain", "RoundWitness"] * 2
    assert driver.phases() == ["WaitingForMembers", "Warmup", *rounds, "Cooldown", "Finished"]
    assert driver.run.work.batches_applied == 24
    assert [checkpoint.step for checkpoint in driver.run.models.checkpoints] == [0, 2]
    assert any(isinstance(item, SegmentEnded) for item in driver.instructions)


def test_warmup_without_checkpoint_in_time_goes_back_to_waiting() -> None:
    driver = in_warmup(1, 2, access__genesis="members")
    driver.pass_time(30)
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)
    driver.pass_time(1)
    assert driver.in_phase(RunState.WARMUP)


def test_member_that_is_never_ready_is_waited_for_once() -> None:
    driver = in_warmup(1, 2, 3, config__total_steps=90, config__epoch_time=61)
    driver.ready(client(1), client(2))
    driver.pass_time(30)
    driver.play_epoch(seconds_per_round=40)
    driver.make_checkpoint()
    driver.pass_time(2)
    assert driver.in_phase(RunState.WARMUP)
    driver.ready(client(1), client(2))
    assert driver.in_phase(RunState.ROUND_TRAIN), "the third was not ready in the last Warmup"
    assert driver.run.members.by_id[client(3)].readiness.was_late


def test_member_that_was_late_and_became_ready_is_waited_for_again() -> None:
    driver = in_warmup(1, 2, 3, config__total_steps=90, config__epoch_time=61)
    driver.ready(client(1), client(2))
    driver.pass_time(30)
    driver.ready(client(3))
    driver.play_epoch(seconds_per_round=40)
    driver.make_checkpoint()
    driver.pass_time(2)
    driver.ready(client(1), client(2))
    assert driver.in_phase(RunState.WARMUP)


@played_once
def in_second_warmup(*newcomers: int) -> Driver:
    """Return a driver whose run is in its second Warmup, and was joined by newcomers in the Cooldown before."""
    driver = in_round(1, 2, config__total_steps=90, config__epoch_time=61)
    driver.play_epoch(seconds_per_round=40)
    driver.join(*newcomers)
    driver.make_checkpoint()
    driver.pass_time(2)
    assert driver.in_phase(RunState.WARMUP)
    return driver


def test_newcomer_does_not_hold_up_a_warmup_and_takes_part_once_ready() -> None:
    driver = in_second_warmup(3)
    driver.ready(client(1), client(2))
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert client(3) not in driver.round.tasks.plan.positions
    driver.ready(client(3))
    driver.play_round()
    assert client(3) in driver.round.tasks.plan.positions, "at the next round's boundary"


def test_member_of_the_last_epoch_is_waited_for_beside_a_newcomer() -> None:
    driver = in_second_warmup(3)
    driver.ready(client(1), client(3))
    assert driver.in_phase(RunState.WARMUP)


def test_session_that_is_renewed_does_not_make_a_newcomer() -> None:
    driver = in_second_warmup()
    driver.join(1, 2, instance="ab")
    driver.ready(client(1), client(2))
    driver.play_epoch(seconds_per_round=40)
    driver.join(2, instance="ab")
    driver.make_checkpoint()
    driver.pass_time(2)
    assert driver.in_phase(RunState.WARMUP)
    driver.ready(client(1))
    assert driver.in_phase(RunState.WARMUP), "the other one is waited for"


def test_process_that_starts_again_is_a_newcomer_in_the_next_warmup() -> None:
    driver = in_second_warmup(2)
    driver.ready(client(1))
    assert driver.in_phase(RunState.ROUND_TRAIN)


def test_joining_again_does_not_make_the_run_wait_again() -> None:
    driver = in_warmup(1, 2, 3, config__total_steps=90, config__epoch_time=61)
    driver.ready(client(1), client(2))
    driver.pass_time(30)
    driver.join(3)
    driver.play_epoch(seconds_per_round=40)
    driver.make_checkpoint()
    driver.pass_time(2)
    driver.ready(client(1), client(2))
    assert driver.in_phase(RunState.ROUND_TRAIN)


def test_below_min_clients_after_a_round_cools_down_and_waits() -> None:
    driver = in_round(1, 2, config__min_clients=2)
    driver.deliver(client(1))
    driver.send(stimuli.ClientsFellSilent((client(2),)))
    driver.attest(client(1))
    assert driver.run.progress.step == 1, "one of two witnesses is no quorum"
    assert driver.phases()[-2:] == ["Cooldown", "WaitingForMembers"], "one member is too few; nothing new to keep"


def test_pause_in_a_round_finishes_it_checkpoints_and_holds_until_resumed() -> None:
    driver = in_round(1, 2)
    driver.send(stimuli.PauseRequested())
    assert driver.in_phase(RunState.ROUND_TRAIN)
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    driver.make_checkpoint()
    assert driver.in_phase(RunState.PAUSED)
    driver.pass_time(10_000)
    assert driver.in_phase(RunState.PAUSED)
    driver.send(stimuli.ResumeRequested())
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)


@pytest.mark.parametrize("warming_up", [False, True])
def test_pause_before_the_first_round_holds_at_once(warming_up: bool) -> None:
    driver = Driver(state_file())
    driver.join(1, 2)
    if warming_up:
        driver.pass_time(2)
    driver.send(stimuli.PauseRequested())
    assert driver.in_phase(RunState.PAUSED)


def test_restart_after_a_long_outage_keeps_phase_round_and_members() -> None:
    driver = in_round(1, 2)
    before = driver.run
    driver.now_s += 10_000_000
    driver.send(stimuli.CoordinatorStarted())
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert driver.run.round == before.round
    assert driver.run.members.by_id == before.members.by_id
    assert driver.run.clock.phase_ends_s is not None
    assert before.clock.phase_ends_s is not None
    assert driver.run.clock.phase_ends_s - driver.now_s == pytest.approx(before.clock.phase_ends_s - before.clock.now_s)


def test_clock_that_goes_back_changes_nothing() -> None:
    driver = in_round(1, 2)
    before = driver.run
    after, instructions = handle(
        before, stimuli.Stamped(stimuli.Ticked(), before.clock.now_s - 500, Seed(digest_of("s")))
    )
    assert after is before
    assert instructions == ()


def test_tick_that_changes_nothing_returns_the_same_run() -> None:
    driver = in_round(1, 2)
    before = driver.run
    driver.pass_time(1)
    assert driver.run is before


def test_fresh_start_from_a_paused_state_file_waits_for_resume() -> None:
    driver = Driver(state_file(run_state="Paused"))
    assert driver.in_phase(RunState.PAUSED)


def test_restored_run_has_another_lineage_and_is_the_same_otherwise() -> None:
    driver = in_round(1, 2)
    before = driver.run
    driver.send(stimuli.RunRestored("0f" * 16))
    assert driver.run.identity.lineage == "0f" * 16
    assert (
        driver.run.with_parts(
            replace(driver.run.identity, lineage=before.identity.lineage),
            replace(driver.run.clock, now_s=before.clock.now_s),
        )
        == before
    )


def test_trigger_that_the_phase_does_not_have_is_an_internal_error() -> None:
    with pytest.raises(InternalError):
        destination(RunState.FINISHED, "next_round")


def test_conditions_are_those_of_every_transition() -> None:
    assert PHASES.conditions() == [(source, goal, condition) for _, source, goal, condition in TRANSITIONS]
