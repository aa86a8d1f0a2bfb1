"""What a run shows: its document, and the blobs that it waits for."""

from coordinator.machine.membership import MAX_MEMBERS
from coordinator.machine.stimuli import CheckpointReported
from coordinator.machine.views import document_of, expected_blob
from state.documents import MAX_RUN_DOCUMENT_BYTES
from state.messages import CheckpointReport
from state.phases import RunState
from state.wire import canonical_json
from tests.support.machine_driver import client, digest_of, in_warmup


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
    assert found is not None
    assert (found.kind, found.size_bytes) == ("checkpoint", 7)
    assert expected_blob(driver.run, client(9), blob) is None
