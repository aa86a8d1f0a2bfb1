"""The blobs of a checkpoint in a store, as the one file that they are together: read, kept, and taken apart.

See `state/checkpoint_parts.py` for what parts are.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from epochal.coordinator.store.blobs import BlobReader, BlobStore, OpenBlob, mapped_copy
from epochal.state.checkpoint_parts import CheckpointPart, part_ranges
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256


class JoinedParts:
    """The bytes of a checkpoint, of which a part is read at a time (`OpenBlob`) from the blobs of its parts.

    Args:
        blobs: of the parts, in their order.
    """

    def __init__(self, blobs: Sequence[OpenBlob]) -> None:
        self._blobs = tuple(blobs)
        self._starts = [0]
        for blob in self._blobs:
            self._starts.append(self._starts[-1] + len(blob))

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(len(self))
        pieces = []
        for blob, first in zip(self._blobs, self._starts, strict=False):
            if first < stop and start < first + len(blob):
                pieces.append(bytes(blob[max(0, start - first) : min(len(blob), stop - first)]))
        return b"".join(pieces)

    def view(self) -> memoryview:
        """Return all bytes, as a copy in a temporary file."""
        return mapped_copy(self)


@asynccontextmanager
async def opened_parts(blobs: BlobReader, digests: Sequence[Sha256]) -> AsyncIterator[OpenBlob]:
    """Open a checkpoint's parts as one file, to be read in any thread until the context is left.

    Raises:
        Refused: `not-found` if one of them is not held.
        StoreFailed: the medium fails.
    """
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(blobs.opened(sha256)) for sha256 in digests]
        yield opened[0] if len(opened) == 1 else JoinedParts(opened)


async def digest_of_parts(blobs: BlobReader, parts: Sequence[tuple[Sha256, int]]) -> Sha256:
    """Return the digest of the file that these blobs, by digest and size, are together.

    Raises as `BlobReader.stream`.
    """
    if len(parts) == 1:
        return parts[0][0]
    digest = hashlib.sha256()
    for sha256, size_bytes in parts:
        async for piece in blobs.stream(sha256, 0, size_bytes):
            digest.update(piece)
    return Sha256(digest.hexdigest())


async def keep_in_parts(
    blobs: BlobStore,
    size_bytes: int,
    pieces: AsyncIterator[bytes],
    part_bytes: int,
    look: Callable[[bytes], None] = lambda _: None,
) -> AsyncIterator[CheckpointPart]:
    """Keep a checkpoint's bytes as they come, in parts; yield each part that is kept.

    After a failure it is for the caller to delete those that were kept.

    Args:
        blobs: keeps them.
        size_bytes: their number.
        pieces: the bytes.
        part_bytes: size of a part.
        look: called with the bytes in their order.

    Raises:
        Refused: as `BlobStore.add`.
    """
    body = _Body(pieces, look)
    for start, stop in part_ranges(size_bytes, part_bytes):
        sha256 = await blobs.add(stop - start, body.next(stop - start))
        yield CheckpointPart(sha256, stop - start)
    async for _ in body.next(1):
        raise Refused(Refusal.BLOB_TOO_LARGE, f"the checkpoint is longer than the announced {size_bytes} bytes")


class _Body:
    """The pieces of a body, of which some bytes are taken at a time."""

    def __init__(self, pieces: AsyncIterator[bytes], look: Callable[[bytes], None]) -> None:
        self._pieces = pieces
        self._look = look
        self._rest = b""

    async def next(self, count: int) -> AsyncIterator[bytes]:
        """Yield the next bytes, so many or as many as there are."""
        while count:
            piece = self._rest or await anext(self._pieces, b"")
            if not piece:
                return
            piece, self._rest = piece[:count], piece[count:]
            count -= len(piece)
            self._look(piece)
            yield piece
