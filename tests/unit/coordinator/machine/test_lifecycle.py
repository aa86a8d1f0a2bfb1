"""The machine from the first member to Finished, phase by phase."""

from dataclasses import replace

import pytest

from coordinator.machine.handle import handle
from coordinator.machine.instructions import SegmentEnded, SweepBlobs
from coordinator.machine.membership import MAX_MEMBERS
from coordinator.machine.phases import PHASES, TRANSITIONS, destination
from coordinator.machine.run import current_checkpointer
from coordinator.machine.stimuli import (
    BlobsNearedBound,
    CheckpointHeld,
    CheckpointReported,
    ClientBecameReady,
    ClientEjected,
    ClientsFellSilent,
    ClientWithdrew,
    ConfigChanged,
    CoordinatorStarted,
    PauseRequested,
    ResumeRequested,
    RunRestored,
    Stamped,
    Ticked,
)
from coordinator.machine.views import blobs_needed, document_of, expected_blob
from state.documents import MAX_RUN_DOCUMENT_BYTES, CheckpointRef
from state.errors import InternalError, Refused
from state.messages import CheckpointReport, ReadyReport
from state.phases import RunState
from state.wire import Seed, canonical_json
from tests.support.machine_driver import Driver, client, digest_of
from tests.support.states import state_file


def test_run_with_three_fast_clients_finishes_through_every_phase() -> None:
    driver = Driver(state_file(config__total_steps=2))
    driver.start_round(1, 2, 3)
    driver.play_round()
    driver.play_round()
    driver.make_checkpoint()
    assert driver.phases() == [
        "WaitingForMembers",
        "Warmup",
        "RoundTrain",
        "RoundWitness",
        "RoundTrain",
        "RoundWitness",
        "Cooldown",
        "Finished",
    ]
    assert driver.run.batches_applied == 24
    assert [checkpoint.step for checkpoint in driver.run.checkpoints] == [0, 2]
    assert any(isinstance(item, SegmentEnded) for item in driver.instructions)


def test_waiting_with_too_few_members_stays_and_extra_time_counts_from_enough() -> None:
    driver = Driver(state_file(config__init_min_clients=2, config__waiting_for_members_extra_time=5))
    driver.join(1)
    driver.pass_time(100)
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)
    driver.join(2)
    driver.pass_time(4)
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)
    driver.pass_time(1)
    assert driver.in_phase(RunState.WARMUP)


def test_warmup_without_checkpoint_in_time_goes_back_to_waiting() -> None:
    driver = Driver(state_file())
    driver.join(1, 2)
    driver.pass_time(2)
    first = current_checkpointer(driver.run)
    driver.pass_time(30)
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)
    driver.pass_time(1)
    assert driver.in_phase(RunState.WARMUP)
    assert first is not None


def test_warmup_whose_checkpointer_leaves_asks_the_next() -> None:
    driver = Driver(state_file())
    driver.join(1, 2, 3)
    driver.pass_time(2)
    first = current_checkpointer(driver.run)
    assert first is not None
    driver.send(ClientWithdrew(first))
    second = current_checkpointer(driver.run)
    assert second not in (None, first)
    driver.warm_up()
    assert driver.in_phase(RunState.ROUND_TRAIN)


def test_warmup_with_one_unready_member_starts_when_time_is_over() -> None:
    driver = Driver(state_file())
    driver.join(1, 2, 3)
    driver.pass_time(2)
    driver.make_checkpoint()
    driver.ready(client(1), client(2))
    assert driver.in_phase(RunState.WARMUP)
    driver.pass_time(30)
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert driver.run.round is not None
    assert {entry.client_id for entry in driver.run.round.roster.clients} == {client(1), client(2)}


def test_joining_during_a_round_changes_the_next_roster_only() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    driver.join(3)
    driver.ready(client(3))
    assert driver.run.round is not None
    assert len(driver.run.round.roster.clients) == 2
    driver.play_round()
    assert driver.run.round is not None
    assert len(driver.run.round.roster.clients) == 3


def test_silent_client_is_not_waited_for_and_leaves_with_the_next_roster() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2, 3)
    driver.deliver(client(1), client(2))
    driver.attest(client(1), client(2))
    assert driver.in_phase(RunState.ROUND_TRAIN)
    driver.send(ClientsFellSilent((client(3),)))
    assert driver.in_phase(RunState.ROUND_TRAIN), "the lost client's slot is filled by no later step"
    assert driver.run.step == 2
    assert driver.run.round is not None
    assert client(3) not in {entry.client_id for entry in driver.run.round.roster.clients}
    assert driver.run.round.work.shared[0].start < 12 <= driver.run.round.work.shared[-1].end


def test_below_min_clients_after_a_round_cools_down_and_waits() -> None:
    driver = Driver(state_file(config__min_clients=2))
    driver.start_round(1, 2)
    driver.deliver(client(1))
    driver.send(ClientsFellSilent((client(2),)))
    driver.attest(client(1))
    assert driver.run.step == 1, "one of two witnesses is no quorum"
    assert driver.phases()[-2:] == ["Cooldown", "WaitingForMembers"], "one member is too few; nothing new to keep"


def test_epoch_time_over_makes_a_checkpoint_and_starts_another_epoch() -> None:
    driver = Driver(state_file(config__total_steps=100, config__epoch_time=61))
    driver.start_round(1, 2)
    driver.play_epoch(seconds_per_round=40)
    assert driver.in_phase(RunState.COOLDOWN)
    driver.make_checkpoint()
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)
    assert driver.run.epoch == 1
    driver.pass_time(2)
    driver.warm_up()
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert driver.run.step == 3


def test_pause_in_a_round_finishes_it_checkpoints_and_holds_until_resumed() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    driver.send(PauseRequested())
    assert driver.in_phase(RunState.ROUND_TRAIN)
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    driver.make_checkpoint()
    assert driver.in_phase(RunState.PAUSED)
    driver.pass_time(10_000)
    assert driver.in_phase(RunState.PAUSED)
    driver.send(ResumeRequested())
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)


@pytest.mark.parametrize("warming_up", [False, True])
def test_pause_before_the_first_round_holds_at_once(warming_up: bool) -> None:
    driver = Driver(state_file())
    driver.join(1, 2)
    if warming_up:
        driver.pass_time(2)
    driver.send(PauseRequested())
    assert driver.in_phase(RunState.PAUSED)


def test_restart_after_a_long_outage_keeps_phase_round_and_members() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    before = driver.run
    driver.now_s += 10_000_000
    driver.send(CoordinatorStarted())
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert driver.run.round == before.round
    assert driver.run.members == before.members
    assert driver.run.phase_ends_s is not None
    assert before.phase_ends_s is not None
    assert driver.run.phase_ends_s - driver.now_s == pytest.approx(before.phase_ends_s - before.now_s)


def test_clock_that_goes_back_changes_nothing() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    before = driver.run
    after, instructions = handle(before, Stamped(Ticked(), before.now_s - 500, Seed(digest_of("s"))))
    assert after is before
    assert instructions == ()


def test_tick_that_changes_nothing_returns_the_same_run() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    before = driver.run
    driver.pass_time(1)
    assert driver.run is before


def test_cooldown_with_another_digest_than_the_quorum_asks_the_next_checkpointer() -> None:
    driver = Driver(state_file(config__total_steps=1))
    driver.start_round(1, 2, 3)
    driver.play_round()
    liar = current_checkpointer(driver.run)
    assert liar is not None
    wrong = digest_of("another replica")
    driver.send(CheckpointReported(liar, CheckpointReport(1, wrong, digest_of("b"), 9)))
    driver.send(CheckpointHeld(liar, CheckpointRef(1, digest_of("b"), 9, wrong)))
    assert driver.in_phase(RunState.COOLDOWN)
    for member in driver.run.members:
        if member != liar:
            driver.send(CheckpointReported(member, CheckpointReport(1, driver.replica_digest(), None, 0)))
    assert driver.in_phase(RunState.COOLDOWN)
    writer = current_checkpointer(driver.run)
    assert writer not in (None, liar)
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    assert driver.run.checkpoint is not None
    assert driver.run.checkpoint.replica_digest == driver.replica_digest()


def test_cooldown_without_checkpoint_keeps_every_outcome_and_result() -> None:
    driver = Driver(state_file(config__total_steps=2))
    driver.start_round(1, 2)
    driver.play_round()
    driver.play_round()
    driver.pass_time(30)
    assert driver.in_phase(RunState.FINISHED)
    assert set(driver.run.outcomes) == {1, 2}
    results = {entry.result_sha256 for outcome in driver.run.outcomes.values() for entry in outcome.entries}
    assert results <= blobs_needed(driver.run)


def test_verified_checkpoint_sweeps_only_what_the_older_kept_one_includes() -> None:
    driver = Driver(state_file(config__total_steps=100, config__epoch_time=61))
    driver.start_round(1, 2)
    for _ in range(3):
        driver.play_epoch(seconds_per_round=40)
        driver.make_checkpoint()
        driver.pass_time(2)
        driver.warm_up()
    assert [checkpoint.step for checkpoint in driver.run.checkpoints] == [4, 6]
    assert set(driver.run.outcomes) == {5, 6}
    assert any(isinstance(item, SweepBlobs) for item in driver.instructions)


def test_blobs_near_their_bound_end_the_epoch_after_the_round() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    driver.send(BlobsNearedBound(10))
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    driver.make_checkpoint()
    assert not driver.run.blobs_near_bound


def test_checkpoint_made_near_the_blobs_bound_is_the_only_thing_kept() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    driver.play_round()
    driver.send(BlobsNearedBound(10))
    driver.play_round()
    driver.make_checkpoint()
    assert [checkpoint.step for checkpoint in driver.run.checkpoints] == [2]
    assert blobs_needed(driver.run) == {driver.run.checkpoints[0].blob_sha256}


def test_blobs_near_their_bound_without_progress_since_the_checkpoint_are_swept_too() -> None:
    driver = Driver(state_file(config__total_steps=100, config__epoch_time=61))
    driver.start_round(1, 2)
    driver.play_epoch(seconds_per_round=40)
    driver.make_checkpoint()
    driver.pass_time(2)
    driver.warm_up()
    assert len(driver.run.checkpoints) == 2
    before = len(driver.instructions)
    driver.send(BlobsNearedBound(10))
    driver.pass_time(120)
    driver.pass_time(120)
    assert [checkpoint.step for checkpoint in driver.run.checkpoints] == [driver.run.replica_step]
    assert not driver.run.outcomes
    assert not driver.run.blobs_near_bound
    assert any(isinstance(item, SweepBlobs) for item in driver.instructions[before:])


def test_finished_run_whose_total_steps_are_raised_goes_on() -> None:
    driver = Driver(state_file(config__total_steps=1))
    driver.start_round(1, 2)
    driver.play_round()
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    driver.send(ConfigChanged(state_file(config__total_steps=2)))
    assert driver.in_phase(RunState.WAITING_FOR_MEMBERS)


def test_fresh_start_from_a_paused_state_file_waits_for_resume() -> None:
    driver = Driver(state_file(run_state="Paused"))
    assert driver.in_phase(RunState.PAUSED)


def test_ready_with_another_fingerprint_is_refused_with_both_shown() -> None:
    driver = Driver(state_file())
    driver.join(1, 2)
    driver.pass_time(2)
    driver.make_checkpoint()
    driver.ready(client(1))
    with pytest.raises(Refused, match=r"other.*data") as refused:
        driver.ready(client(2), data_fingerprint="other")
    assert refused.value.kind == "fingerprint-differs"


def ready_with(driver: Driver, number: int, fingerprint: str) -> None:
    driver.ready(client(number), data_fingerprint=fingerprint)


def test_fingerprint_that_nobody_vouches_for_any_more_is_forgotten_before_the_first_outcome() -> None:
    driver = Driver(state_file(config__init_min_clients=3))
    driver.join(1, 2, 3)
    driver.pass_time(2)
    driver.make_checkpoint()
    ready_with(driver, 1, "wrong")
    with pytest.raises(Refused, match=r"right.*wrong"):
        ready_with(driver, 2, "right")
    driver.send(ClientEjected(client(1)))
    ready_with(driver, 2, "right")
    assert driver.run.data_fingerprint == "right"
    driver.send(ClientWithdrew(client(3)))
    assert driver.run.data_fingerprint == "right", "a ready member vouches for it"


def test_fingerprint_that_was_trained_on_stays() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    driver.play_round()
    for number in (1, 2):
        driver.send(ClientEjected(client(number)))
    assert driver.run.data_fingerprint == "data"


def test_restored_run_has_another_lineage_and_is_the_same_otherwise() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    before = driver.run
    driver.send(RunRestored("0f" * 16))
    assert driver.run.lineage == "0f" * 16
    assert replace(driver.run, lineage=before.lineage, now_s=before.now_s) == before


def test_ready_with_another_replica_is_refused() -> None:
    driver = Driver(state_file())
    driver.join(1, 2)
    driver.pass_time(2)
    driver.make_checkpoint()
    with pytest.raises(Refused) as refused:
        driver.send(ClientBecameReady(client(1), ReadyReport(0, digest_of("x"), "data")))
    assert refused.value.kind == "replica-differs"


def test_ready_far_behind_is_refused() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    driver.play_round()
    driver.play_round()
    driver.join(3)
    with pytest.raises(Refused) as refused:
        driver.send(ClientBecameReady(client(3), ReadyReport(0, digest_of("replica 0"), "data")))
    assert refused.value.kind == "behind"


def test_ejected_key_may_not_join_again() -> None:
    driver = Driver(state_file())
    driver.join(1)
    driver.send(ClientEjected(client(1)))
    with pytest.raises(Refused) as refused:
        driver.join(1)
    assert refused.value.kind == "ejected"


def test_joining_again_keeps_the_place_and_supersedes_the_session() -> None:
    driver = Driver(state_file())
    driver.start_round(1, 2)
    driver.join(1)
    assert driver.run.members[client(1)].session == 2
    assert driver.run.round is not None
    assert client(1) in driver.run.round.plan.positions
    assert client(1) in driver.run.round.pending


def test_access_by_keys_and_by_invitation_refuses_everyone_else() -> None:
    by_key = Driver(state_file(access__mode="keys", access__keys=[(bytes([1]) * 32).hex()]))
    by_key.join(1)
    with pytest.raises(Refused, match="keys"):
        by_key.join(2)
    code = digest_of("code")
    invited = Driver(state_file(access__mode="invitations", access__invitations=[code]))
    with pytest.raises(Refused, match="none was given"):
        invited.join(1)
    with pytest.raises(Refused, match="the one given is not among"):
        invited.join(1, invitation_sha256=digest_of("a guess"))
    invited.join(1, invitation_sha256=code)
    invited.join(1)
    with pytest.raises(Refused, match="used by another"):
        invited.join(2, invitation_sha256=code)


def test_invitation_of_another_client_cannot_be_taken_over_by_one_that_was_invited_itself() -> None:
    first, second = digest_of("first"), digest_of("second")
    driver = Driver(state_file(access__mode="invitations", access__invitations=[first, second]))
    driver.join(1, invitation_sha256=first)
    driver.join(2, invitation_sha256=second)
    driver.join(1, invitation_sha256=second)
    driver.join(2, invitation_sha256=second)
    with pytest.raises(Refused, match="used by another"):
        driver.join(3, invitation_sha256=first)


def test_invitation_that_was_struck_from_the_file_admits_its_client_no_more() -> None:
    first, second = digest_of("first"), digest_of("second")
    invited = {"access__mode": "invitations"}
    driver = Driver(state_file(**invited, access__invitations=[first, second]))
    driver.join(1, invitation_sha256=first)
    driver.send(ConfigChanged(state_file(**invited, access__invitations=[second])))
    with pytest.raises(Refused, match="invitation"):
        driver.join(1, invitation_sha256=first)


def test_document_stays_small_with_many_members() -> None:
    driver = Driver(state_file(config__init_min_clients=200, config__global_batch_size_end=400))
    driver.join(*range(1, 201))
    driver.pass_time(2)
    driver.warm_up()
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert len(canonical_json(document_of(driver.run, 10**9))) <= MAX_RUN_DOCUMENT_BYTES
    assert MAX_MEMBERS >= 10_000


def test_expected_blob_names_only_what_was_announced() -> None:
    driver = Driver(state_file())
    driver.join(1, 2)
    driver.pass_time(2)
    writer = current_checkpointer(driver.run)
    assert writer is not None
    blob = digest_of("blob")
    assert expected_blob(driver.run, writer, blob) is None
    driver.send(CheckpointReported(writer, CheckpointReport(0, digest_of("r"), blob, 7)))
    found = expected_blob(driver.run, writer, blob)
    assert found is not None
    assert (found.kind, found.size_bytes) == ("checkpoint", 7)
    assert expected_blob(driver.run, client(9), blob) is None


def test_phase_table_refuses_what_it_does_not_have_and_draws_every_transition() -> None:
    with pytest.raises(InternalError):
        destination(RunState.FINISHED, "next_round")
    diagram = PHASES.diagram()
    assert all(f"{row['source']} --> {row['dest']}: {row['label']}" in diagram for row in TRANSITIONS)
