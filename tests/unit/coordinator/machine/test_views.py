"""What a run shows: its document, and the blobs that it waits for."""

from coordinator.machine.membership import MAX_MEMBERS
from coordinator.machine.run import current_checkpointer
from coordinator.machine.stimuli import CheckpointReported
from coordinator.machine.views import document_of, expected_blob
from state.documents import MAX_RUN_DOCUMENT_BYTES
from state.messages import CheckpointReport
from state.phases import RunState
from state.wire import canonical_json
from tests.support.machine_driver import Driver, client, digest_of
from tests.support.states import state_file


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
