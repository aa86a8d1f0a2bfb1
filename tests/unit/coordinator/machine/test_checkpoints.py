"""Checkpoints: who is asked, whose bytes count, and what is kept and swept."""

from coordinator.machine.instructions import SweepBlobs
from coordinator.machine.run import current_checkpointer
from coordinator.machine.stimuli import (
    BlobsNearedBound,
    CheckpointHeld,
    CheckpointReported,
    ClientWithdrew,
    ResultCommitted,
)
from coordinator.machine.views import blobs_kept, blobs_needed
from state.documents import CheckpointRef
from state.messages import CheckpointReport, ResultCommitment
from state.phases import RunState
from tests.support.machine_driver import METRICS, digest_of, in_round, in_warmup


def test_warmup_whose_checkpointer_leaves_asks_the_next() -> None:
    driver = in_warmup(1, 2, 3, access__genesis="members")
    first = driver.checkpointer()
    driver.send(ClientWithdrew(first))
    second = current_checkpointer(driver.run)
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
    driver = in_round(1, 2, config__total_steps=2)
    driver.play_round()
    driver.play_round()
    driver.pass_time(30)
    assert driver.in_phase(RunState.FINISHED)
    assert set(driver.run.outcomes) == {1, 2}
    results = {entry.result_sha256 for outcome in driver.run.outcomes.values() for entry in outcome.entries}
    assert results <= blobs_needed(driver.run)


def test_blobs_that_must_be_there_begin_with_the_newest_checkpoint() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    driver.play_round()
    driver.make_checkpoint()
    kept = blobs_kept(driver.run)
    (outcome,) = driver.run.outcomes.values()
    checkpoints = [(ref.blob_sha256, ref.size_bytes) for ref in reversed(driver.run.checkpoints)]
    results = [(entry.result_sha256, entry.size_bytes) for entry in outcome.entries]
    assert [(blob.sha256, blob.size_bytes) for blob in kept] == [*checkpoints, *results]
    assert kept[0].purpose == "the checkpoint of step 1"
    assert {blob.sha256 for blob in kept} == blobs_needed(driver.run)


def test_blob_that_was_announced_need_not_be_there_before_it_arrives() -> None:
    driver = in_round(1, 2)
    before = {blob.sha256 for blob in blobs_kept(driver.run)}
    writer, other = (entry.client_id for entry in driver.round.roster.clients)
    driver.deliver(writer)
    commitment = ResultCommitment(driver.round.step, driver.round.attempt, digest_of("announced"), 10, METRICS)
    driver.send(ResultCommitted(other, commitment))
    assert {blob.sha256 for blob in blobs_kept(driver.run)} - before == {driver.round.commitments[writer].result_sha256}


def test_verified_checkpoint_sweeps_only_what_the_older_kept_one_includes() -> None:
    driver = in_round(1, 2, config__total_steps=100, config__epoch_time=61)
    for _ in range(3):
        driver.play_epoch(seconds_per_round=40)
        driver.make_checkpoint()
        driver.pass_time(2)
        driver.warm_up()
    assert [checkpoint.step for checkpoint in driver.run.checkpoints] == [4, 6]
    assert set(driver.run.outcomes) == {5, 6}
    assert any(isinstance(item, SweepBlobs) for item in driver.instructions)


def test_blobs_near_their_bound_end_the_epoch_after_the_round() -> None:
    driver = in_round(1, 2)
    driver.send(BlobsNearedBound(10))
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    driver.make_checkpoint()
    assert not driver.run.blobs_near_bound


def test_checkpoint_made_near_the_blobs_bound_is_the_only_thing_kept() -> None:
    driver = in_round(1, 2)
    driver.play_round()
    driver.send(BlobsNearedBound(10))
    driver.play_round()
    driver.make_checkpoint()
    assert [checkpoint.step for checkpoint in driver.run.checkpoints] == [2]
    assert blobs_needed(driver.run) == {driver.run.checkpoints[0].blob_sha256}


def test_blobs_near_their_bound_are_swept_without_progress_too() -> None:
    driver = in_round(1, 2, config__total_steps=100, config__epoch_time=61)
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
