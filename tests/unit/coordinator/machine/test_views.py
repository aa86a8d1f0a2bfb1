"""What a run shows: its document, and the blobs that it waits for."""

from dataclasses import replace

import pytest

from epochal.coordinator.machine.membership import MAX_MEMBERS
from epochal.coordinator.machine.parts.run_work import Suspect
from epochal.coordinator.machine.stimuli import CheckpointReported, ResultReceived
from epochal.coordinator.machine.views import ExpectedPart, blobs_needed, document_of, expected_blob
from epochal.state.documents import MAX_REASON_CHARS, MAX_RUN_DOCUMENT_BYTES
from epochal.state.intervals import BatchId
from epochal.state.messages.blob_messages import ExpectedResult
from epochal.state.messages.requests import CheckpointReport, ResultCommitment
from epochal.state.phase_names import RunState
from epochal.state.wire import canonical_json, document_digest
from tests.support.drive.machine_driver import METRICS, client, digest_of, in_round, in_warmup


@pytest.mark.nightly
def test_document_stays_small_with_many_members() -> None:
    driver = in_warmup(*range(1, 201), config__init_min_clients=200, config__global_batch_size_end=400)
    driver.warm_up()
    assert driver.in_phase(RunState.ROUND_TRAIN)
    assert len(canonical_json(document_of(driver.run, 10**9))) <= MAX_RUN_DOCUMENT_BYTES
    assert MAX_MEMBERS >= 10_000


def test_expected_blob_names_only_what_was_announced() -> None:
    driver = in_warmup(1, 2, access__genesis="members")
    writer = driver.checkpointer()
    blob = digest_of("blob")
    assert expected_blob(driver.run, writer, blob) is None
    driver.send(CheckpointReported(writer, CheckpointReport(0, digest_of("r"), blob, 7)))
    found = expected_blob(driver.run, writer, blob)
    assert isinstance(found, ExpectedPart)
    assert found.size_bytes == 7
    assert expected_blob(driver.run, client(9), blob) is None


def test_document_counts_work_that_waits_and_work_that_left() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    driver.play_round()
    run = driver.run.with_parts(
        replace(
            driver.run.work,
            carried=(BatchId(40, 43),),
            suspects=(Suspect(BatchId(50, 52), (), ""),),
            quarantined=(Suspect(BatchId(60, 61), (), ""), Suspect(BatchId(63, 63), (), "")),
        ),
        replace(driver.run.clock, reason="x" * 1000),
    )
    document = document_of(run, 5)
    assert (document.version, document.step, document.total_steps, document.cursor) == (5, 2, 9, 24)
    assert (document.carried_batches, document.quarantined_batches) == (7, 3)
    assert document.last_outcome_sha256 == document_digest(driver.run.models.outcomes[1])
    assert len(document.reason) == MAX_REASON_CHARS
    assert document.round is not None
    assert (document.round.roster_count, document.round.witness_count, document.round.batches) == (2, 2, 12)


def test_document_has_a_round_in_its_phases_and_the_last_outcome() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    assert document_of(driver.run, 1).last_outcome_sha256 is None
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    assert document_of(driver.run, 1).round is None


def test_expected_result_is_the_one_that_its_client_committed_to() -> None:
    driver = in_round(1, 2, config__total_steps=9)
    blob = digest_of("result")
    assert expected_blob(driver.run, client(1), blob) is None
    driver.send(ResultReceived(client(1), ResultCommitment(1, 0, blob, 77, METRICS)))
    found = expected_blob(driver.run, client(1), blob)
    assert found is not None
    assert isinstance(found, ExpectedResult)
    assert (found.client_id, found.commitment) == (client(1), ResultCommitment(1, 0, blob, 77, METRICS))
    assert found.work_sha256 == driver.round.tasks.work_sha256
    assert expected_blob(driver.run, client(1), digest_of("another")) is None
    assert expected_blob(driver.run, client(2), blob) is None
    driver.reject(client(1), ResultCommitment(1, 0, blob, 77, METRICS))
    assert expected_blob(driver.run, client(1), blob) is None


def test_no_result_is_expected_once_training_is_over() -> None:
    driver = in_round(1, 2)
    driver.deliver(client(1))
    driver.send(ResultReceived(client(2), ResultCommitment(1, 0, digest_of("late"), 77, METRICS)))
    driver.pass_time(60)
    assert driver.in_phase(RunState.ROUND_WITNESS)
    assert expected_blob(driver.run, client(2), digest_of("late")) is None


def test_expected_checkpoint_names_its_replica_and_no_round() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    driver.play_round()
    writer, blob = driver.checkpointer(), digest_of("blob")
    driver.send(CheckpointReported(writer, CheckpointReport(1, digest_of("r"), blob, 7)))
    found = expected_blob(driver.run, writer, blob)
    assert isinstance(found, ExpectedPart)
    assert (found.size_bytes, found.claim.step) == (7, 1)
    assert expected_blob(driver.run, writer, digest_of("another")) is None
    (other,) = set(driver.run.members.by_id) - {writer}
    driver.send(CheckpointReported(other, CheckpointReport(1, digest_of("r"), digest_of("other"), 7)))
    assert expected_blob(driver.run, other, digest_of("other")) is None


def test_blobs_of_the_round_are_needed_unless_rejected() -> None:
    driver = in_round(1, 2)
    driver.send(ResultReceived(client(1), ResultCommitment(1, 0, digest_of("one"), 7, METRICS)))
    driver.send(ResultReceived(client(2), ResultCommitment(1, 0, digest_of("two"), 7, METRICS)))
    assert {digest_of("one"), digest_of("two")} <= blobs_needed(driver.run)
    driver.reject(client(2), ResultCommitment(1, 0, digest_of("two"), 7, METRICS))
    assert digest_of("one") in blobs_needed(driver.run)
    assert digest_of("two") not in blobs_needed(driver.run)


def test_blobs_of_a_checkpoint_under_way_are_needed() -> None:
    driver = in_round(1, 2, config__total_steps=1)
    driver.play_round()
    before = blobs_needed(driver.run)
    writer = driver.checkpointer()
    (other,) = set(driver.run.members.by_id) - {writer}
    driver.send(CheckpointReported(other, CheckpointReport(1, digest_of("r"), None, 0)))
    assert blobs_needed(driver.run) == before
    driver.send(CheckpointReported(writer, CheckpointReport(1, digest_of("another"), digest_of("blob"), 7)))
    assert blobs_needed(driver.run) == before | {digest_of("blob")}
