"""Blobs that a client sends to a coordinator, resumed where a connection broke.

The rule kept here: the client believes the coordinator how much has arrived. If the blob does not match then, all of it
is sent.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.messages.blob_messages import UploadProgress
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256

if TYPE_CHECKING:  # with numpy, which commands that carry no blob do not need
    from epochal.runtime.files.spool_part import SentBytes

ASKED_FROM_BYTES = 4 * 1024 * 1024
"""From this size on, an upload begins with the question how much has arrived: an earlier process may have sent some."""
MAX_REMEMBERED = 64
"""Maximum number of broken uploads that are remembered; each is of an announced blob that is sent again soon."""
MAX_OFFSETS = 4
"""Maximum number of places from which the rest of a blob is sent in one delivery, before all of it is."""
_ENDS_REQUEST = frozenset({Refusal.OVERLOADED, Refusal.BODY_INCOMPLETE, Refusal.BODY_TIMEOUT})
"""Refusals that end a request, but not its upload."""
_WRONG_REST = frozenset({Refusal.BLOB_MISMATCH, Refusal.BLOB_TOO_LARGE, Refusal.OFFSET_DIFFERS})

Send = Callable[[str, Mapping[str, str], "SentBytes"], Awaitable[None]]
"""Sends bytes to a path of the coordinator by PUT, with further headers; raises as `CoordinatorClient`'s requests."""


class ResumedUploads:
    """The uploads of one client.

    Args:
        progress: asks how much of a blob has arrived; raises as `CoordinatorClient`'s requests.
        send: sends bytes.
    """

    def __init__(self, progress: Callable[[Sha256], Awaitable[UploadProgress]], send: Send) -> None:
        self._progress = progress
        self._send = send
        self._broken: OrderedDict[Sha256, None] = OrderedDict()

    async def put(self, sha256: Sha256, file: "SentBytes") -> None:
        """Deliver a blob, or the part that the coordinator lacks. Raises as `send`."""
        start = 0
        if sha256 in self._broken or file.size_bytes >= ASKED_FROM_BYTES:
            found = await self._progress(sha256)
            if found.delivered:
                return
            start = found.received_bytes if found.received_bytes < file.size_bytes else 0
        self._broken[sha256] = None
        self._broken.move_to_end(sha256)
        if len(self._broken) > MAX_REMEMBERED:
            self._broken.popitem(last=False)
        try:
            await self._put_from(start, sha256, file)
        except CoordinatorUnreachable:
            raise
        except Refused as refusal:
            if refusal.kind not in _ENDS_REQUEST:
                self._broken.pop(sha256, None)
            raise
        self._broken.pop(sha256, None)

    async def _put_from(self, start: int, sha256: Sha256, file: "SentBytes") -> None:
        from epochal.runtime.files.spool_part import rest_of

        path, whole = f"/v1/blobs/{sha256}", file.size_bytes
        for _ in range(MAX_OFFSETS):
            if not 0 < start < whole:
                break
            try:
                await self._send(path, {"Content-Range": f"bytes {start}-{whole - 1}/{whole}"}, rest_of(file, start))
            except Refused as refusal:
                if refusal.kind not in _WRONG_REST:
                    raise
                start = _offset_in(refusal)
            else:
                return
        await self._send(path, {}, file)


def _offset_in(refusal: Refused) -> int:
    """Return how many bytes have arrived according to `offset-differs`; 0 if the blob must be sent whole."""
    arrived = refusal.context.get("received_bytes")
    return arrived if refusal.kind is Refusal.OFFSET_DIFFERS and isinstance(arrived, int) else 0
