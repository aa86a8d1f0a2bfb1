"""Small results that come with their commitments: checked, kept together with others, and counted as one stimulus.

The rules are those of `coordinator/blobs/uploads.py`. The bytes are kept with the record that counts them, where the
store does that; it is so where other coordinators may sweep. Elsewhere they are kept before; until they are counted
nothing else says that the run needs them, so they are named as being taken in, and no sweep deletes them.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from epochal.coordinator.blobs.announced import is_delivered
from epochal.coordinator.blobs.uploads import Uploads
from epochal.coordinator.machine.reports import commit_result
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.stimuli import ResultCommitted, ResultDelivered
from epochal.coordinator.machine.views import ExpectedBlob
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.store.blobs import BytesOfBlob, check_room
from epochal.state.blob_checks import verdict_on
from epochal.state.errors import Refused, StoreFailed
from epochal.state.messages.requests import ResultCommitment
from epochal.state.messages.round_times import milliseconds
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256


class Deliveries:
    """Takes small results for one service.

    Args:
        service: the run's.
        uploads: the rules for blobs.
    """

    def __init__(self, service: CoordinatorService, uploads: Uploads) -> None:
        self._service = service
        self._uploads = uploads

    async def take(self, client_id: ClientId, bound: ResultCommitment, data: bytes) -> None:
        """Count a member's result. Where clients put results into an object store themselves, only its commitment.

        Raises:
            Refused: as the commitment is refused (`coordinator/machine/reports.py`); `result-invalid`, after which the
                commitment binds; `blobs-full`; `store-failed`.
        """
        service, sha256 = self._service, Sha256(bound.result_sha256)
        if service.health.problem is not None:
            raise service.health.refusal()
        if is_delivered(service.run, client_id, sha256):
            return
        committed = ResultCommitted(client_id, bound)
        commit_result(service.run.round, service.run.clock, committed)
        if service.run.state_file.blobs.store is not None:
            await service.submit(committed)
            return
        began_s = service.now_s()
        expected, layout = _expected(service.run, client_id, bound), await self._uploads.layout()
        verdict = verdict_on(self._uploads.results.check_of(expected), layout, BytesOfBlob(data), sha256)
        if verdict.replica_digest is None or verdict.norm is None:
            await service.submit(committed)
            await self._uploads.results.count(expected, verdict)
            return
        check_ms = milliseconds(service.now_s() - began_s)
        delivered = ResultDelivered(client_id, bound, Sha256(verdict.replica_digest), verdict.norm, check_ms)
        of_round = bound.step, bound.attempt
        recorded = service.recorded_blobs
        if recorded is None:
            with service.maintenance.taking_in(sha256):
                await self._with_room(expected, committed, partial(service.blobs.keep, sha256, data))
                self._uploads.recent.add(of_round, sha256, data)
                await service.submit(delivered)
            return
        await self._with_room(expected, committed, partial(self._check_room, bound.size_bytes))
        with recorded.arriving(bound.size_bytes):
            self._uploads.recent.add(of_round, sha256, data)
            await service.submit(delivered, {sha256: data})

    async def _check_room(self, size_bytes: int, spare_bytes: int) -> None:
        """Raise `Refused` (`blobs-full`) unless a blob of this size finds room, and leaves so much free."""
        max_total_bytes = self._service.run.state_file.blobs.max_total_bytes
        check_room(self._service.blobs.total_bytes + size_bytes + spare_bytes, max_total_bytes)

    async def _with_room(
        self, expected: ExpectedBlob, committed: ResultCommitted, keep: Callable[[int], Awaitable[None]]
    ) -> None:
        """Keep a result's bytes, or find that they have room, with so many bytes to spare.

        Where they find no room, the commitment counts, and nobody is blamed.
        """
        service = self._service
        try:
            spare_bytes = await self._uploads.make_room(expected)
            try:
                await keep(spare_bytes)
            except Refused as refusal:
                if refusal.kind is Refusal.BLOBS_FULL:
                    await service.submit(committed)
                await self._uploads.ending_epoch_when_full(expected, _raising(refusal))
        except StoreFailed as error:
            service.note_failure(error)
            raise service.health.refusal() from error


def _expected(run: Run, client_id: ClientId, bound: ResultCommitment) -> ExpectedBlob:
    assert run.round is not None, "a commitment to its round was checked"
    sha256, work = Sha256(bound.result_sha256), run.round.tasks.work_sha256
    return ExpectedBlob("result", client_id, sha256, bound.size_bytes, bound.step, bound.attempt, work)


async def _raising(refusal: Refused) -> None:
    raise refusal
