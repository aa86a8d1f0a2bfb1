"""Uploads of the bytes that members announced: received, and handed to the intake (`intake.py`).

An upload ends when the run waits for it no longer: with its round, or with its sender's membership. Its minimum rate
and its place are those of `coordinator/blobs/transfers.py`. One whose connection breaks waits for its rest
(`coordinator/blobs/resumable_uploads.py`).
"""

from collections.abc import AsyncIterator

from epochal.coordinator.blobs.announced import expectations, refusal_of
from epochal.coordinator.blobs.intake import Intake
from epochal.coordinator.blobs.resumable_uploads import BlobBody, ResumableUploads
from epochal.coordinator.blobs.transfers import MIN_BYTES_PER_S, Places, Transfer
from epochal.coordinator.machine.journal_records import NO_BLOBS
from epochal.coordinator.machine.run import Run
from epochal.coordinator.machine.views import ExpectedBlob
from epochal.state.messages.blob_messages import UploadProgress
from epochal.state.wire import ClientId, Sha256

MAX_UPLOADS = 512
"""Maximum number of blobs received at a time; each takes up to half a megabyte of memory. Others wait unread."""
MAX_UPLOADS_PER_CLIENT = 4
"""A client uploads one blob at a time; the rest is for connections that broke unnoticed."""


class UploadedBytes:
    """The bytes of a blob that a member uploads (`Source`).

    Args:
        pieces: the bytes; None if they are held already, and not read once more.
    """

    with_record = NO_BLOBS

    def __init__(self, intake: Intake, pieces: AsyncIterator[bytes] | None) -> None:
        self._intake = intake
        self._pieces = pieces

    async def hold(self, expected: ExpectedBlob) -> None:
        """Receive the bytes. Whoever sends them may leave after the last. Raises as `Source.hold`."""
        service, size_bytes = self._intake.service, expected.size_bytes
        if self._pieces is None:
            await service.blobs.receive(expected.sha256, size_bytes, _no_pieces())
        else:
            spare_bytes = await self._intake.make_room(expected)
            pieces = service.maintenance.with_room(self._pieces, size_bytes, spare_bytes)
            await service.blobs.receive(expected.sha256, size_bytes, pieces, spare_bytes)
        service.heard(expected.client_id)


class Uploads:
    """Takes the uploads of one service.

    Args:
        intake: checks and counts what they bring.
    """

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._service = service = intake.service
        self._places = Places(MAX_UPLOADS, MAX_UPLOADS_PER_CLIENT, service.now_s)
        self._receiving: dict[Transfer, Sha256] = {}
        self._resumable = ResumableUploads(self._take, service.note_failure)
        service.maintenance.paused = self._resumable
        service.readers.on_change(self._end_unexpected)

    @property
    def running_count(self) -> int:
        """Number of blobs that are being received."""
        return self._places.running_count

    async def aclose(self) -> None:
        """End the uploads that wait for their rest."""
        await self._resumable.aclose()

    async def progress(self, client_id: ClientId, sha256: Sha256) -> UploadProgress:
        """Return how much of an announced blob has arrived from this member. A request that sends some now ends.

        Raises:
            Refused: as `Intake.expected`; `overloaded`, if all of it has arrived and its check takes long.
        """
        if self._intake.expected(client_id, sha256) is None:
            return UploadProgress(0, delivered=True)
        received = self._resumable.received_bytes(client_id, sha256)
        if await self._resumable.finish(client_id, sha256):
            return UploadProgress(received, delivered=True)
        self._intake.expected(client_id, sha256)  # its check may have refused it
        return UploadProgress(self._resumable.received_bytes(client_id, sha256))

    async def receive(self, client_id: ClientId, sha256: Sha256, body: BlobBody) -> None:
        """Take an announced blob, check it, and count it. A blob that was delivered before is accepted unread.

        Args:
            client_id: a member, authenticated.
            sha256: the digest that it announced.
            body: the bytes, or those that have not arrived before.

        Raises:
            Refused: `not-committed`, `late-result`, `blob-mismatch`, `blob-too-large`, `blobs-full`, `result-invalid`
                (the context's `rule` says why), `body-timeout` (too slow), `overloaded`, `unauthorized` (the member has
                left), `store-failed`, `offset-differs` (other bytes follow), and as reading the body raises.
        """
        await self._resumable.finish(client_id, sha256)
        expected = self._intake.expected(client_id, sha256)
        if expected is None:
            return
        if self._service.health.problem is not None:
            raise self._service.health.refusal()
        start = body.start_in(expected.size_bytes)
        with self._intake.failures_noted():
            async with self._places.place(client_id, self._needed_bytes_per_s(expected)) as transfer:
                self._receiving[transfer] = sha256
                try:
                    if await self._service.blobs.size(sha256) == expected.size_bytes:
                        await self._intake.take(expected, UploadedBytes(self._intake, None))
                    else:
                        await self._resumable.receive(expected, transfer, _moved_by(transfer, body.pieces), start)
                finally:
                    del self._receiving[transfer]

    def _needed_bytes_per_s(self, expected: ExpectedBlob) -> float:
        """Return the minimum rate of an upload: a lower one than usual is enough if the blob arrives within the phase.

        So members that share a slow link are not harmed.
        """
        run = self._service.run
        if run.clock.phase_ends_s is None:
            return MIN_BYTES_PER_S
        return min(MIN_BYTES_PER_S, expected.size_bytes / max(1.0, run.clock.phase_ends_s - self._service.now_s()))

    def _end_unexpected(self, before: Run, run: Run) -> None:
        """End the uploads that the run waits for no longer."""
        if expectations(run) == expectations(before) and run.members.by_id is before.members.by_id:
            return
        for client_id, sha256 in self._resumable.under_way():
            if (refusal := refusal_of(run, client_id, sha256)) is not None:
                self._resumable.end(client_id, sha256, refusal)
        for transfer, sha256 in self._receiving.items():
            if (refusal := refusal_of(run, transfer.client_id, sha256)) is not None:
                transfer.end(refusal)

    async def _take(self, expected: ExpectedBlob, pieces: AsyncIterator[bytes]) -> None:
        await self._intake.take(expected, UploadedBytes(self._intake, pieces))


async def _no_pieces() -> AsyncIterator[bytes]:
    """Yield nothing: the bytes of a part that is held are not read once more."""
    return
    yield b""


async def _moved_by(transfer: Transfer, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of an upload's body while it may go on."""
    while (piece := await transfer.move(lambda: anext(body, None))) is not None:
        transfer.moved_bytes += len(piece)
        yield piece
