"""Small results that come with their commitments: checked, kept together with others, and counted as one stimulus.

The bytes are kept with the record that counts them.
"""

from collections.abc import Mapping

from epochal.coordinator.blobs.announced import is_delivered
from epochal.coordinator.blobs.intake import Intake
from epochal.coordinator.machine.journal_records import NO_BLOBS
from epochal.coordinator.machine.stimuli import ResultReceived
from epochal.coordinator.machine.views import ExpectedBlob, expected_result
from epochal.coordinator.store.blobs import BytesOfBlob, check_room
from epochal.state.blob_checks import verdict_on
from epochal.state.messages.blob_messages import CheckVerdict, ExpectedResult
from epochal.state.messages.requests import ResultCommitment
from epochal.state.wire import ClientId, Sha256


async def take_with_commitment(intake: Intake, client_id: ClientId, commitment: ResultCommitment, data: bytes) -> None:
    """Count a member's result. Where clients put results into an object store themselves, only its commitment.

    Raises:
        Refused: as the commitment is refused (`coordinator/machine/reports.py`); `result-invalid`, after which the
            commitment binds; `blobs-full`; `store-failed`.
    """
    service, run = intake.service, intake.service.run
    if service.health.problem is not None:
        raise service.health.refusal()
    if is_delivered(run, client_id, commitment.result_sha256):
        return
    if run.round is None or run.state_file.blobs.store is not None:
        await service.submit(ResultReceived(client_id, commitment))
        return
    with intake.failures_noted():
        await intake.take(
            expected_result(run.state_file, run.round, client_id, commitment), BytesWithCommitment(intake, data)
        )


class BytesWithCommitment:
    """The bytes of a small result that came with its commitment (`Source`)."""

    def __init__(self, intake: Intake, data: bytes) -> None:
        self._intake = intake
        self._data = data
        self.with_record: Mapping[Sha256, bytes] = NO_BLOBS

    async def hold(self, expected: ExpectedBlob) -> CheckVerdict:
        """Check the bytes, and keep them unless they break a rule. Raises as `Source.hold`."""
        assert isinstance(expected, ExpectedResult), "a checkpoint's bytes do not come with its announcement"
        intake, service, sha256 = self._intake, self._intake.service, expected.sha256
        layout, began_s = await intake.layout(), service.now_s()
        verdict = intake.timed(verdict_on(expected, layout, BytesOfBlob(self._data)), began_s)
        if verdict.rule is not None:
            return verdict
        spare_bytes = await intake.make_room(expected)
        needed_bytes = service.blobs.total_bytes + len(self._data) + spare_bytes
        check_room(needed_bytes, service.run.state_file.blobs.max_total_bytes)
        self.with_record = {sha256: self._data}
        return verdict
