"""The blobs of a run: results and checkpoints, immutable bytes named by their SHA-256, and the rules for them."""

import mmap
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from epochal.state.errors import Refused, StoreFailed
from epochal.state.model.tensors import Readable
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256

STREAM_BYTES = 256 * 1024
"""A blob is read and sent in pieces of at most this size."""


class OpenBlob(Readable, Protocol):
    """A blob of which parts are read."""

    def view(self) -> memoryview:
        """Return all of its bytes, which take no memory of the process's own where a file holds them.

        It stays valid after the context is left. The medium must not fail while it is used: that ends the process.
        """


@dataclass(frozen=True, slots=True)
class SignedPut:
    """A request that puts one announced blob into an object store: `PUT url` with exactly these headers.

    Attributes:
        expires_in_s: seconds within which it must begin.
    """

    url: str
    headers: Mapping[str, str]
    expires_in_s: float


class BlobReader(Protocol):
    """Blobs that are only read; meanwhile a coordinator may add and delete some.

    Every method raises `StoreFailed` if the medium fails: `StoreBlocked` if the same may succeed later.
    """

    def opened(self, sha256: Sha256) -> AbstractAsyncContextManager[OpenBlob]:
        """Open a blob to read parts of it, in any thread, until the context is left.

        Only the parts that are read take memory. Entering raises `Refused(Refusal.NOT_FOUND)` if it is not held.
        """

    async def size(self, sha256: Sha256) -> int | None:
        """Return the blob's size in bytes, or None if it is not held."""

    def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        """Return the bytes `[start, stop)` in pieces. Raise `Refused(Refusal.NOT_FOUND)` if the blob is not held."""


class BlobStore(BlobReader, Protocol):
    """Blobs in one place, which a coordinator receives, serves and deletes."""

    @property
    def total_bytes(self) -> int:
        """Size of all blobs, and of what has arrived of unfinished ones."""

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        """Keep the streamed bytes durably if they are `size_bytes` long and hash to `sha256`; else keep nothing.

        Receiving a blob that is already held reads the body and changes nothing. A new one must leave `spare_bytes` of
        the store's maximum size free; only the bytes that have arrived take room from other blobs.

        Raises:
            Refused: `blob-mismatch`, `blob-too-large` or `blobs-full`.
        """

    async def add(self, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> Sha256:
        """Keep streamed bytes of this size durably as `receive` does, and return their digest, computed on the way.

        Raises:
            Refused: `blob-mismatch`, `blob-too-large` or `blobs-full`.
        """

    async def held(self) -> frozenset[Sha256]:
        """Return the digests of all blobs."""

    async def delete(self, sha256: Sha256) -> None:
        """Delete the blob if it is held."""

    async def recount(self) -> None:
        """Bring `total_bytes` up to date where other coordinators of the run add and delete blobs as well."""


async def read_again(body: AsyncIterator[bytes], size_bytes: int) -> None:
    """Read the body of a blob that is held already. Raise `Refused(Refusal.BLOB_TOO_LARGE)` if it is longer."""
    received_bytes = 0
    async for piece in body:
        received_bytes += len(piece)
        check_growth(received_bytes, size_bytes)


class BytesOfBlob(bytes):
    """A blob in memory (`OpenBlob`)."""

    def view(self) -> memoryview:
        """Return all of its bytes."""
        return memoryview(self)


def mapped_copy(blob: Readable) -> memoryview:
    """Return all bytes of a blob, mapped from a temporary file into which they are copied; it goes with the view.

    Raises:
        StoreFailed: there is no room for them.
    """
    if not len(blob):
        return memoryview(b"")
    try:
        with tempfile.TemporaryFile() as file:
            for start in range(0, len(blob), STREAM_BYTES):
                file.write(blob[start : start + STREAM_BYTES])
            file.flush()
            return memoryview(mmap.mmap(file.fileno(), len(blob), access=mmap.ACCESS_READ))
    except OSError as error:
        raise StoreFailed(f"a blob of {len(blob)} bytes has no room in {tempfile.gettempdir()}") from error


def check_growth(received_bytes: int, size_bytes: int) -> None:
    """Raise `Refused(Refusal.BLOB_TOO_LARGE)` if more bytes have arrived than were announced."""
    if received_bytes > size_bytes:
        raise Refused(Refusal.BLOB_TOO_LARGE, f"the blob is longer than the announced {size_bytes} bytes")


def check_content(sha256: Sha256 | None, size_bytes: int, received_bytes: int, received_sha256: Sha256) -> None:
    """Raise `Refused(Refusal.BLOB_MISMATCH)` unless length and digest, if there is one, are as announced."""
    if received_bytes != size_bytes:
        raise Refused(Refusal.BLOB_MISMATCH, f"the blob has {received_bytes} bytes; {size_bytes} were announced")
    if sha256 not in (None, received_sha256):
        raise Refused(Refusal.BLOB_MISMATCH, f"the blob hashes to {received_sha256}; {sha256} was announced")


def check_room(needed_bytes: int, max_total_bytes: int) -> None:
    """Raise `Refused(Refusal.BLOBS_FULL)` if the store would exceed its maximum size."""
    if needed_bytes > max_total_bytes:
        limit = f"[blobs] max_total_bytes is {max_total_bytes}"
        raise Refused(Refusal.BLOBS_FULL, f"the blobs would need {needed_bytes} bytes; {limit}")


def blob_not_found(sha256: Sha256) -> Refused:
    """Return the refusal for a blob that is not held."""
    return Refused(Refusal.NOT_FOUND, f"no blob {sha256} is held")
