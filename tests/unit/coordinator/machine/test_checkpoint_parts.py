"""Checkpoints of several parts: what is claimed, waited for, kept and swept."""

from dataclasses import replace
from typing import Any

import pytest

from epochal.coordinator.machine.stimuli import CheckpointHeld, CheckpointReported, GenesisProvided
from epochal.coordinator.machine.views import blobs_kept, blobs_needed, document_of, expected_blob
from epochal.state.checkpoint_parts import CheckpointManifest, CheckpointPart, parts_digest
from epochal.state.documents import CheckpointRef
from epochal.state.messages.requests import CheckpointReport
from epochal.state.phase_names import RunState
from epochal.state.wire import ClientId
from tests.support.data.states import state_file
from tests.support.drive.machine_driver import Driver, digest_of, in_round, played_once, refused

PART_BYTES = 1024


def parts_of(name: str, *sizes: int) -> tuple[CheckpointPart, ...]:
    return tuple(CheckpointPart(digest_of(f"{name} {number}"), size) for number, size in enumerate(sizes))


PARTS = parts_of("part", PART_BYTES, PART_BYTES, 10)
SIZE_BYTES = 2 * PART_BYTES + 10


def report_of(driver: Driver, parts: tuple[CheckpointPart, ...] = PARTS, **fields: Any) -> CheckpointReport:
    report = CheckpointReport(
        driver.run.progress.replica_step,
        driver.replica_digest(),
        parts_digest(parts),
        sum(p.size_bytes for p in parts),
        parts,
    )
    return replace(report, **fields)


@played_once
def in_cooldown() -> Driver:
    driver = in_round(1, 2, 3, config__total_steps=1, blobs__part_bytes=PART_BYTES)
    driver.play_round()
    assert driver.in_phase(RunState.COOLDOWN)
    return driver


def reader(driver: Driver) -> ClientId:
    """Return a client that is not asked to write the checkpoint."""
    return next(member for member in driver.run.members.by_id if member != driver.checkpointer())


def verify(driver: Driver, parts: tuple[CheckpointPart, ...] = PARTS) -> CheckpointRef:
    """The checkpointer delivers these parts, and everyone claims the replica."""
    writer, report = driver.checkpointer(), report_of(driver, parts)
    assert report.blob_sha256 is not None
    held = CheckpointRef(report.step, report.blob_sha256, report.size_bytes, report.replica_digest, len(parts))
    driver.send(CheckpointReported(writer, report))
    driver.send(CheckpointHeld(writer, held))
    for member in tuple(driver.run.members.by_id):
        if member != writer and driver.run.models.checkpointing is not None:
            driver.send(CheckpointReported(member, CheckpointReport(report.step, report.replica_digest, None, 0)))
    return held


def test_each_part_is_expected_with_its_own_size() -> None:
    driver = in_cooldown()
    writer = driver.checkpointer()
    driver.send(CheckpointReported(writer, report_of(driver)))
    for part in PARTS:
        expected = expected_blob(driver.run, writer, part.sha256)
        assert expected is not None
        assert expected.size_bytes == part.size_bytes
        assert expected_blob(driver.run, reader(driver), part.sha256) is None
        assert part.sha256 in blobs_needed(driver.run)
    assert expected_blob(driver.run, writer, parts_digest(PARTS)) is None, "the manifest is no blob"


def test_verified_parts_are_kept_and_their_manifest_is_published() -> None:
    driver = in_cooldown()
    held = verify(driver)
    assert document_of(driver.run, 1).checkpoint == held
    assert driver.run.models.manifests == {held.blob_sha256: CheckpointManifest(PARTS)}
    assert blobs_needed(driver.run) >= {part.sha256 for part in PARTS}
    assert [(blob.purpose, blob.size_bytes) for blob in blobs_kept(driver.run)[:3]] == [
        (f"part {number} of 3 of the checkpoint of step 1", part.size_bytes) for number, part in enumerate(PARTS, 1)
    ]


def test_parts_of_a_checkpoint_that_is_kept_no_longer_are_swept() -> None:
    driver = in_round(1, 2, 3, config__total_steps=40, config__epoch_time=61, blobs__part_bytes=PART_BYTES)
    for epoch in range(3):
        driver.next_round()
        driver.play_epoch(seconds_per_round=40)
        verify(driver, parts_of(f"epoch {epoch}", PART_BYTES, 5))
    assert len(driver.run.models.manifests) == 2
    assert parts_of("epoch 0", PART_BYTES, 5)[0].sha256 not in blobs_needed(driver.run)
    assert parts_of("epoch 1", PART_BYTES, 5)[1].sha256 in blobs_needed(driver.run)


@pytest.mark.parametrize(
    "parts",
    [(), parts_of("p", 500, 524), parts_of("p", 10, PART_BYTES), parts_of("p", PART_BYTES + 1, 1)],
    ids=["none", "small", "order", "large"],
)
def test_checkpoint_that_is_cut_wrongly_is_refused(parts: tuple[CheckpointPart, ...]) -> None:
    driver = in_cooldown()
    report = report_of(driver, parts) if parts else report_of(driver, parts=PARTS, blob_sha256=digest_of("b"))
    with refused("result-invalid"):
        driver.send(CheckpointReported(driver.checkpointer(), replace(report, parts=parts)))


@pytest.mark.parametrize("fields", [{"blob_sha256": None}, {"blob_sha256": digest_of("b")}, {"size_bytes": 2048}])
def test_parts_that_are_not_those_of_the_digest_are_refused(fields: dict[str, Any]) -> None:
    driver = in_cooldown()
    with refused("result-invalid"):
        driver.send(CheckpointReported(driver.checkpointer(), report_of(driver, **fields)))


def test_parts_are_taken_only_from_a_client_that_is_asked_for_them() -> None:
    driver = in_cooldown()
    with refused("not-now"):
        driver.send(CheckpointReported(reader(driver), report_of(driver)))


def test_one_that_was_passed_over_may_still_name_its_parts() -> None:
    driver = in_cooldown()
    slow = driver.checkpointer()
    driver.pass_time(6)
    assert driver.checkpointer() != slow
    driver.send(CheckpointReported(slow, report_of(driver)))
    assert expected_blob(driver.run, slow, PARTS[0].sha256) is not None


def test_first_checkpoint_of_several_parts_is_kept_with_its_manifest() -> None:
    driver = Driver(state_file(access__genesis="members"))
    provided = CheckpointRef(0, parts_digest(PARTS), SIZE_BYTES, driver.replica_digest(), 3)
    driver.send(GenesisProvided(provided, driver.run.state_file.model.LLM.spec, PARTS))
    assert driver.run.models.manifests == {provided.blob_sha256: CheckpointManifest(PARTS)}
