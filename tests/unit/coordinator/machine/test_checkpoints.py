"""Checkpoints: who is asked, whose bytes count, and what is kept and swept."""

import pytest

from epochal.coordinator.machine.instructions import SweepBlobs
from epochal.coordinator.machine.parts.checkpointers import current_checkpointer
from epochal.coordinator.machine.stimuli import (
    BlobsNearedBound,
    CheckpointHeld,
    CheckpointRejected,
    CheckpointReported,
    ClientWithdrew,
    CoordinatorStarted,
    ResultReceived,
)
from epochal.coordinator.machine.views import blobs_kept, blobs_needed, expected_blob
from epochal.state.documents import CheckpointRef
from epochal.state.messages.requests import CheckpointReport, ResultCommitment
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId, Sha256
from tests.support.drive.machine_driver import (
    METRICS,
    Driver,
    client,
    digest_of,
    in_round,
    in_warmup,
    played_once,
    refused,
)


def test_warmup_whose_checkpointer_leaves_asks_the_next() -> None:
    driver = in_warmup(1, 2, 3, access__genesis="members")
    first = driver.checkpointer()
    driver.send(ClientWithdrew(first))
    second = current_checkpointer(driver.run.models, driver.run.members)
    assert second not in (None, first)
    driver.warm_up()
    assert driver.in_phase(RunState.ROUND_TRAIN)


def test_cooldown_claim_that_differs_from_the_quorum_asks_the_next() -> None:
    driver = in_round(1, 2, 3, config__total_steps=1)
    driver.play_round()
    liar = driver.checkpointer()
    wrong = digest_of("another replica")
    driver.send(CheckpointReported(liar, CheckpointReport(1, wrong, digest_of("b"), 9)))
    driver.send(CheckpointHeld(liar, CheckpointRef(1, digest_of("b"), 9, wrong)))
    assert driver.in_phase(RunState.COOLDOWN)
    for member in driver.run.members.by_id:
        if member != liar:
            driver.send(CheckpointReported(member, CheckpointReport(1, driver.replica_digest(), None, 0)))
    assert driver.in_phase(RunState.COOLDOWN)
    writer = current_checkpointer(driver.run.models, driver.run.members)
    assert writer not in (None, liar)
    driver.make_checkpoint()
    assert driver.in_phase(RunState.FINISHED)
    assert driver.run.models.checkpoint is not None
    assert driver.run.models.checkpoint.replica_digest == driver.replica_digest()


def claim(driver: Driver, client_id: ClientId, blob: str | None) -> None:
    """Claim the agreed replica, as the one that uploads `blob` or as an elector only."""
    report = CheckpointReport(1, driver.replica_digest(), None if blob is None else digest_of(blob), 9 if blob else 0)
    driver.send(CheckpointReported(client_id, report))


@played_once
def in_cooldown(*numbers: int) -> Driver:
    driver = in_round(*numbers, config__total_steps=1, config__cooldown_time=30)
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    return driver


def test_checkpointer_that_says_nothing_is_passed_over_after_a_fifth() -> None:
    driver = in_cooldown(1, 2, 3)
    silent = driver.checkpointer()
    driver.pass_time(5.9)
    assert driver.checkpointer() == silent
    driver.pass_time(0.1)
    assert driver.checkpointer() != silent
    assert driver.run.members.by_id[silent].conduct.missed == 1
    assert "asked to write a checkpoint" in driver.run.members.by_id[silent].conduct.last_miss


def test_checkpointer_that_uploads_has_half_of_the_time() -> None:
    driver = in_cooldown(1, 2, 3)
    slow = driver.checkpointer()
    claim(driver, slow, "bytes")
    driver.pass_time(14.9)
    assert driver.checkpointer() == slow
    driver.pass_time(0.1)
    assert driver.checkpointer() != slow


def test_checkpoint_of_one_that_was_passed_over_is_still_taken() -> None:
    driver = in_cooldown(1, 2, 3)
    slow = driver.checkpointer()
    claim(driver, slow, "bytes")
    driver.pass_time(15)
    for member in driver.run.members.by_id:
        if member != slow:
            claim(driver, member, None)
    expected = expected_blob(driver.run, slow, digest_of("bytes"))
    assert expected is not None
    driver.send(CheckpointHeld(slow, CheckpointRef(1, digest_of("bytes"), 9, driver.replica_digest())))
    assert driver.in_phase(RunState.FINISHED)


def test_last_checkpointer_is_asked_until_the_phase_ends() -> None:
    driver = in_cooldown(1, 2)
    asked = [driver.checkpointer()]
    for _ in range(4):
        driver.pass_time(6)
        asked.append(driver.checkpointer())
    assert len(set(asked)) == 2
    assert asked[1:] == [asked[1]] * 4
    driver.pass_time(6)
    assert not driver.in_phase(RunState.COOLDOWN)


def test_outage_of_the_coordinator_is_no_part_of_a_turn() -> None:
    driver = in_cooldown(1, 2, 3)
    first = driver.checkpointer()
    driver.now_s += 1000
    driver.send(CoordinatorStarted())
    driver.pass_time(5.9)
    assert driver.checkpointer() == first


def test_first_checkpoint_by_members_is_asked_of_the_next_after_a_turn() -> None:
    driver = in_warmup(1, 2, 3, access__genesis="members")
    first = driver.checkpointer()
    driver.pass_time(6)
    assert driver.checkpointer() != first
    assert driver.in_phase(RunState.WARMUP)


def test_cooldown_without_checkpoint_keeps_every_outcome_and_result() -> None:
    driver = in_round(1, 2, config__total_steps=2)
    driver.play_round()
    driver.play_round()
    driver.pass_time(30)
    assert driver.in_phase(RunState.FINISHED)
    assert set(driver.run.models.outcomes) == {1, 2}
    results = {entry.result_sha256 for outcome in driver.run.models.outcomes.values() for entry in outcome.entries}
    assert results <= blobs_needed(driver.run)


def test_blobs_that_must_be_there_begin_with_the_newest_checkpoint() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    driver.play_round()
    driver.make_checkpoint()
    kept = blobs_kept(driver.run)
    (outcome,) = driver.run.models.outcomes.values()
    checkpoints = [(ref.blob_sha256, ref.size_bytes) for ref in reversed(driver.run.models.checkpoints)]
    updates = [(update.blob_sha256, update.size_bytes) for update in driver.run.models.updates.values()]
    results = [(entry.result_sha256, entry.size_bytes) for entry in outcome.entries]
    assert [(blob.sha256, blob.size_bytes) for blob in kept] == [*checkpoints, *updates, *results]
    assert kept[0].purpose == "the checkpoint of step 1"
    assert {blob.sha256 for blob in kept} == blobs_needed(driver.run)


def test_blob_that_was_announced_need_not_be_there_before_it_arrives() -> None:
    driver = in_round(1, 2)
    before = {blob.sha256 for blob in blobs_kept(driver.run)}
    writer, other = (entry.client_id for entry in driver.round.tasks.roster.clients)
    driver.deliver(writer)
    commitment = ResultCommitment(
        driver.round.number.step, driver.round.number.attempt, digest_of("announced"), 10, METRICS
    )
    driver.send(ResultReceived(other, commitment))
    assert {blob.sha256 for blob in blobs_kept(driver.run)} - before == {
        driver.round.results.commitments[writer].result_sha256
    }


def test_verified_checkpoint_sweeps_only_what_the_older_kept_one_includes() -> None:
    driver = in_round(1, 2, config__total_steps=100, config__epoch_time=61)
    for _ in range(3):
        driver.play_epoch(seconds_per_round=40)
        driver.make_checkpoint()
        driver.pass_time(2)
        driver.warm_up()
    assert [checkpoint.step for checkpoint in driver.run.models.checkpoints] == [4, 6]
    assert set(driver.run.models.outcomes) == {5, 6}
    assert any(isinstance(item, SweepBlobs) for item in driver.instructions)


def test_blobs_near_their_bound_end_the_epoch_after_the_round() -> None:
    driver = in_round(1, 2)
    driver.send(BlobsNearedBound(10))
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    driver.make_checkpoint()
    assert not driver.run.models.blobs_near_bound


def test_checkpoint_made_near_the_blobs_bound_is_the_only_thing_kept() -> None:
    driver = in_round(1, 2)
    driver.play_round()
    driver.send(BlobsNearedBound(10))
    driver.play_round()
    driver.make_checkpoint()
    assert [checkpoint.step for checkpoint in driver.run.models.checkpoints] == [2]
    assert blobs_needed(driver.run) == {driver.run.models.checkpoints[0].blob_sha256}


def test_note_of_blobs_older_than_the_newest_checkpoint_ends_no_epoch() -> None:
    driver = in_round(1, 2)
    driver.send(BlobsNearedBound(10, checkpoint_step=-1))
    assert not driver.run.models.blobs_near_bound
    driver.send(BlobsNearedBound(10, checkpoint_step=0))
    assert driver.run.models.blobs_near_bound


def test_blobs_near_their_bound_are_swept_without_progress_too() -> None:
    driver = in_round(1, 2, config__total_steps=100, config__epoch_time=61)
    driver.play_epoch(seconds_per_round=40)
    driver.make_checkpoint()
    driver.pass_time(2)
    driver.warm_up()
    assert len(driver.run.models.checkpoints) == 2
    before = len(driver.instructions)
    driver.send(BlobsNearedBound(10))
    driver.pass_time(120)
    driver.pass_time(120)
    assert [checkpoint.step for checkpoint in driver.run.models.checkpoints] == [driver.run.progress.replica_step]
    assert not driver.run.models.outcomes
    assert not driver.run.models.blobs_near_bound
    assert any(isinstance(item, SweepBlobs) for item in driver.instructions[before:])


def test_member_that_joined_later_is_not_asked_for_the_checkpoint() -> None:
    driver = in_warmup(1, 2, access__genesis="members")
    driver.join(3)
    with refused("not-in-roster"):
        driver.send(CheckpointReported(client(3), CheckpointReport(0, digest_of("r"), digest_of("b"), 9)))


@pytest.mark.parametrize("blob", [digest_of("b"), digest_of("another")])
def test_bytes_that_nobody_announced_are_no_checkpoint(blob: Sha256) -> None:
    driver = in_warmup(1, 2, access__genesis="members")
    writer = driver.checkpointer()
    if blob != digest_of("b"):
        driver.send(CheckpointReported(writer, CheckpointReport(0, digest_of("r"), digest_of("b"), 9)))
    with refused("not-committed"):
        driver.send(CheckpointHeld(writer, CheckpointRef(0, blob, 9, digest_of("r"))))
    with refused("not-committed"):
        driver.send(CheckpointRejected(writer, 0, blob, "layout"))


def test_claims_and_bytes_of_another_replica_are_refused_as_stale() -> None:
    driver = in_warmup(1, 2, access__genesis="members")
    with refused("stale-round"):
        driver.send(CheckpointReported(driver.checkpointer(), CheckpointReport(1, digest_of("r"), digest_of("b"), 9)))


def test_claim_may_change_until_its_bytes_are_held() -> None:
    driver = in_round(1, 2, 3, config__total_steps=1)
    driver.play_round()
    writer = driver.checkpointer()
    for name in ("first", "second"):
        driver.send(CheckpointReported(writer, CheckpointReport(1, digest_of("r"), digest_of(name), 9)))
    before = driver.run
    driver.send(CheckpointReported(writer, CheckpointReport(1, digest_of("r"), digest_of("second"), 9)))
    assert driver.run is before
    driver.send(CheckpointHeld(writer, CheckpointRef(1, digest_of("second"), 9, digest_of("r"))))
    before = driver.run
    driver.send(CheckpointHeld(writer, CheckpointRef(1, digest_of("second"), 9, digest_of("r"))))
    driver.send(CheckpointReported(writer, CheckpointReport(1, digest_of("r"), digest_of("second"), 9)))
    assert driver.run is before
    with refused("already-committed"):
        driver.send(CheckpointReported(writer, CheckpointReport(1, digest_of("r"), digest_of("third"), 9)))
    driver.send(CheckpointRejected(writer, 1, digest_of("second"), "layout"))
    before = driver.run
    driver.send(CheckpointRejected(writer, 1, digest_of("second"), "layout"))
    assert driver.run is before


def test_two_newest_checkpoints_are_kept_with_the_outcomes_since_the_older() -> None:
    driver = in_round(1, 2, config__total_steps=40, config__epoch_time=100)
    for _ in range(3):
        driver.next_round()
        driver.play_epoch(seconds_per_round=40)
        driver.make_checkpoint()
    assert [checkpoint.step for checkpoint in driver.run.models.checkpoints] == [6, 9]
    assert set(driver.run.models.outcomes) == {7, 8, 9}
