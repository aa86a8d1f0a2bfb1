"""Uploads that go on after their connection broke: a blob is received by a task that outlives the request.

Theory of operation. One task receives a blob into the store, which hashes and writes it on the way, and reads it from
the body of a request. If that body breaks off, the task pauses, and the member's next request for the blob gives it the
rest. So nothing is read or hashed twice. Only this task knows what has arrived, which counts among the store's bytes.
Once all bytes have arrived it goes on by itself: it checks and counts them, and later requests wait for that.

The rules kept here: a member goes on with its own upload only, whatever others send. A request that goes on takes over
from one whose connection broke unnoticed. The store compares the digest of the whole before the blob has a name. An
upload pauses for `PAUSED_FOR_S` at most, as long as the run waits for its blob; a member has `MAX_PAUSED_PER_CLIENT`
such uploads, and all members `MAX_PAUSED`; they give way, the oldest first, to whoever needs their room
(`coordinator/run/maintenance.py`). None outlives the process.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from epochal.coordinator.blobs.transfers import Transfer
from epochal.coordinator.machine.views import ExpectedBlob
from epochal.state.errors import Refused, StoreFailed
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256

log = logging.getLogger(__name__)

PAUSED_FOR_S = 300.0
"""Maximum time for which an upload waits for its rest."""
FINISHED_WITHIN_S = 10.0
"""Maximum time for which a request waits for the check of an upload of which all bytes have arrived."""
ASK_AGAIN_S = 1.0
MAX_PAUSED = 64
"""Maximum number of uploads that wait; each may hold one piece (`store/files/arriving.py`) in memory."""
MAX_PAUSED_PER_CLIENT = 4
END_S = 3.0
"""Maximum time for which the end of uploads is waited for; then those that remain are cancelled."""
_BROKEN = frozenset({Refusal.BODY_INCOMPLETE, Refusal.BODY_TIMEOUT, Refusal.OVERLOADED})
"""Reasons for which a request ends, but not its upload."""

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")

Keep = Callable[[ExpectedBlob, AsyncIterator[bytes]], Awaitable[None]]
"""Receives an announced blob from the pieces of its bytes, checks and counts it."""


@dataclass(frozen=True, slots=True)
class BlobBody:
    """A blob's bytes, or the last of them, as a request brings them.

    Attributes:
        pieces: the bytes.
        length_bytes: their number, if the sender announces it.
        content_range: says which of the blob's bytes they are (RFC 9110, section 14.5); None: all of them.
    """

    pieces: AsyncIterator[bytes]
    length_bytes: int | None = None
    content_range: str | None = None

    def start_in(self, size_bytes: int) -> int | None:
        """Return how many of a blob's bytes come before these; None if they are all of them.

        Raises:
            Refused: `invalid-parameter`; `blob-too-large` or `blob-mismatch` if they cannot end a blob of this size.
        """
        if self.content_range is None:
            _check_ends(size_bytes, self.length_bytes)
            return None
        found = _CONTENT_RANGE.fullmatch(self.content_range)
        start, last, whole = (int(number) for number in found.groups()) if found is not None else (1, 0, 0)
        if not start <= last < whole or self.length_bytes not in (None, last + 1 - start):
            message = f"Content-Range: {self.content_range[:80]!a}; allowed: bytes START-END/SIZE, as long as the body"
            raise Refused(Refusal.INVALID_PARAMETER, message)
        _check_ends(size_bytes, whole, last + 1)
        return start


def _check_ends(size_bytes: int, *ends: int | None) -> None:
    for end in ends:
        if end is not None and end != size_bytes:
            kind = Refusal.BLOB_TOO_LARGE if end > size_bytes else Refusal.BLOB_MISMATCH
            raise Refused(kind, f"the body ends at byte {end} of the blob; {size_bytes} were announced")


@dataclass(eq=False, slots=True)
class _Source:
    """A request that brings bytes of an upload; `left` is set to the reason if it ends before they are all there."""

    transfer: Transfer
    pieces: AsyncIterator[bytes]
    left: asyncio.Future[Refused]


class _Upload:
    """One blob that is being received, or waits for its rest."""

    def __init__(self, expected: ExpectedBlob, keep: Keep, on_pause: Callable[["_Upload"], None]) -> None:
        self.key = expected.client_id, expected.sha256
        self.received_bytes = 0
        self.is_waiting = False
        self._size_bytes = expected.size_bytes
        self._on_pause = on_pause
        self._source: _Source | None = None
        self._ended: Refused | None = None
        self._news = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(_kept(keep, expected, self._pieces()))

    @property
    def has_source(self) -> bool:
        """Whether a request brings it bytes, and will raise what it raises."""
        return self._source is not None

    @property
    def is_complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self.received_bytes == self._size_bytes

    @property
    def has_ended(self) -> bool:
        """Whether it takes no bytes any more."""
        return self._ended is not None or self.task.done()

    async def receive(self, transfer: Transfer, pieces: AsyncIterator[bytes]) -> None:
        """Take the next bytes from a request; return when all are kept. Raise `Refused` if some are missing."""
        source = self._source = _Source(transfer, pieces, asyncio.get_running_loop().create_future())
        self._news.set()
        either: set[asyncio.Future[Any]] = {self.task, source.left}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._leave(source, Refused(Refusal.BODY_INCOMPLETE, "the request was given up"))
            raise
        if not self.task.done():
            raise source.left.result()
        self.task.result()

    def take_over(self) -> None:
        """Hand the upload to a new request; the old one stops."""
        if self._source is not None:
            self._leave(self._source, Refused(Refusal.BODY_INCOMPLETE, "a new request goes on with this upload"))

    def end(self, refusal: Refused) -> None:
        """End the upload, for this reason."""
        self._ended = self._ended or refusal
        if self._source is not None:
            self._source.transfer.end(refusal)
        self._news.set()

    def _leave(self, source: _Source, reason: Refused) -> None:
        """Take nothing more from this source."""
        if self._source is source:
            self._source = None
        source.transfer.end(reason)
        if not source.left.done():
            source.left.set_result(reason)

    async def _pieces(self) -> AsyncIterator[bytes]:
        """Yield the blob's bytes from one source after another."""
        while self._source is not None or not self.is_complete:
            source = await self._next_source()
            try:
                piece = await anext(source.pieces, None)
            except Refused as refusal:
                if self._source is source and (refusal.kind not in _BROKEN or self._ended is not None):
                    raise
                self._leave(source, refusal)
                continue
            if self._source is not source:
                continue  # it was left meanwhile, and this piece is sent once more
            if piece is None:
                return
            self.received_bytes += len(piece)
            yield piece

    async def _next_source(self) -> _Source:
        while self._source is None:
            if self._ended is not None:
                raise self._ended
            self.is_waiting = True
            self._on_pause(self)
            try:
                async with asyncio.timeout(PAUSED_FOR_S):
                    await self._news.wait()
            except TimeoutError:
                message = f"the rest of the blob did not arrive within {PAUSED_FOR_S:g} s"
                self._ended = Refused(Refusal.BODY_INCOMPLETE, message)
                raise self._ended from None
            finally:
                self.is_waiting = False
            self._news.clear()
        return self._source


class ResumableUploads:
    """The uploads of one service that can be gone on with.

    Args:
        keep: receives a blob into the store, checks and counts it.
        fail: called when the store fails while no request waits for the upload.
    """

    def __init__(self, keep: Keep, fail: Callable[[StoreFailed], None]) -> None:
        self._keep = keep
        self._fail = fail
        self._uploads: dict[tuple[ClientId, Sha256], _Upload] = {}
        """One of each member and blob, those that have waited the longest first."""

    @property
    def paused_count(self) -> int:
        """Number of uploads that wait for their rest."""
        return len(self._waiting())

    @property
    def paused_bytes(self) -> int:
        """Bytes that have arrived of the uploads that wait for their rest."""
        return sum(upload.received_bytes for upload in self._waiting())

    def under_way(self) -> tuple[tuple[ClientId, Sha256], ...]:
        """Return member and blob of every upload."""
        return tuple(self._uploads)

    def received_bytes(self, client_id: ClientId, sha256: Sha256) -> int:
        """Return how many bytes of its upload the member need not send again; a request that sends some now ends."""
        upload = self._open(client_id, sha256)
        if upload is None:
            return 0
        upload.take_over()
        return upload.received_bytes

    async def finish(self, client_id: ClientId, sha256: Sha256) -> bool:
        """Wait for a member's upload if all of its bytes have arrived; return whether it was taken.

        Raises:
            Refused: `overloaded`, if that takes longer than `FINISHED_WITHIN_S`.
        """
        upload = self._open(client_id, sha256)
        if upload is None or not upload.is_complete:
            return False
        done, _ = await asyncio.wait({upload.task}, timeout=FINISHED_WITHIN_S)
        if not done:
            message = f"all of blob {sha256} has arrived, and is being checked; ask again in a moment"
            raise Refused(Refusal.OVERLOADED, message, retry_after_s=ASK_AGAIN_S)
        return not upload.task.cancelled() and upload.task.exception() is None

    async def receive(
        self, expected: ExpectedBlob, transfer: Transfer, pieces: AsyncIterator[bytes], start: int | None
    ) -> None:
        """Receive an announced blob, or the rest of it; return when it is kept and counted.

        Args:
            expected: the blob.
            transfer: of the request.
            pieces: the request's body, by way of the transfer.
            start: number of bytes that were received before; None for the whole blob. While another request
                sends that, this one is received for itself and cannot be gone on with.

        Raises:
            Refused: `offset-differs`: other bytes follow; as reading the body, and keeping the blob, raise.
            StoreFailed: the medium fails.
        """
        key = expected.client_id, expected.sha256
        upload = self._open(*key)
        if start is not None:
            received = self.received_bytes(*key)
            if start != received:
                message = f"the body begins at byte {start} of the blob; {received} bytes have arrived before"
                raise Refused(Refusal.OFFSET_DIFFERS, message, received_bytes=received)
        elif upload is not None and upload.is_waiting:
            await self._end(upload, "the blob is sent anew")
            upload = self._open(*key)
        if start is None and upload is not None:
            await self._keep(expected, pieces)
            if upload.is_waiting:
                await self._end(upload, "the blob was sent by another request")
            return
        if upload is None:
            upload = self._uploads[key] = _Upload(expected, self._keep, self._note_waiting)
            upload.task.add_done_callback(partial(self._note_end, upload))
        await upload.receive(transfer, pieces)

    def end(self, client_id: ClientId, sha256: Sha256, refusal: Refused) -> None:
        """End an upload that the run waits for no longer."""
        self._uploads[client_id, sha256].end(refusal)

    async def end_oldest(self) -> None:
        """End the upload that has waited the longest, if any; return when its bytes are given up."""
        for upload in self._waiting()[:1]:
            await self._end(upload, "its room is needed")

    async def aclose(self) -> None:
        """End all uploads; return when they have given up their bytes, or after twice `END_S`."""
        uploads = list(self._uploads.values())
        await self._end_all(uploads, "the coordinator ends")
        remaining = [upload.task for upload in uploads if not upload.task.done()]
        for task in remaining:
            task.cancel()
        if remaining:
            await asyncio.wait(remaining, timeout=END_S)

    def _open(self, client_id: ClientId, sha256: Sha256) -> _Upload | None:
        """Return an upload that can be resumed; None if there is none."""
        upload = self._uploads.get((client_id, sha256))
        return None if upload is None or upload.has_ended else upload

    def _waiting(self) -> list[_Upload]:
        return [upload for upload in self._uploads.values() if upload.is_waiting]

    def _note_waiting(self, upload: _Upload) -> None:
        self._uploads[upload.key] = self._uploads.pop(upload.key)  # now the last one
        waiting = self._waiting()
        of_client = [other for other in waiting if other.key[0] == upload.key[0]]
        for surplus in (of_client[:-MAX_PAUSED_PER_CLIENT], waiting[:-MAX_PAUSED]):
            for other in surplus:
                other.end(Refused(Refusal.OVERLOADED, "too many uploads wait for their rest"))

    def _note_end(self, upload: _Upload, task: asyncio.Task[None]) -> None:
        if self._uploads.get(upload.key) is upload:
            del self._uploads[upload.key]
        error = None if task.cancelled() else task.exception()
        if error is None or isinstance(error, Refused) or upload.has_source:
            return  # the request, if there is one, raises it
        if isinstance(error, StoreFailed):
            self._fail(error)
        else:
            log.error("upload_failed", extra={"sha256": upload.key[1]}, exc_info=error)

    async def _end(self, upload: _Upload, reason: str) -> None:
        await self._end_all([upload], reason)

    @staticmethod
    async def _end_all(uploads: Sequence[_Upload], reason: str) -> None:
        """End uploads and wait until their bytes are given up, for `END_S` at most."""
        for upload in uploads:
            upload.end(Refused(Refusal.BODY_INCOMPLETE, reason))
        if uploads:
            await asyncio.wait({upload.task for upload in uploads}, timeout=END_S)


async def _kept(keep: Keep, expected: ExpectedBlob, pieces: AsyncIterator[bytes]) -> None:
    await keep(expected, pieces)
