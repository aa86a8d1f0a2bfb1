"""The blobs of a run: results and checkpoints, immutable bytes named by their SHA-256, and the rules for them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from epochal.state.blob_checks import HashedReadable
from epochal.state.errors import Refused
from epochal.state.model.tensors import Readable
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, Sha256

STREAM_BYTES = 256 * 1024
"""A blob is read and sent in pieces of at most this size."""


class OpenBlob(Readable, Protocol):
    """A blob of which parts are read."""

    @property
    def descriptor(self) -> int | None:
        """The open file that holds exactly these bytes; None if there is none."""

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


class BlobWriter(BlobReader, Protocol):
    """Blobs that are received and read."""

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


class BlobSweeper(Protocol):
    """Blobs that are counted, and deleted once the run needs them no longer."""

    @property
    def total_bytes(self) -> int:
        """Size of all blobs, and of what has arrived of unfinished ones."""

    async def held(self) -> frozenset[Sha256]:
        """Return the digests of all blobs."""

    async def delete(self, sha256: Sha256) -> None:
        """Delete the blob if it is held. It may take room until `swept`."""

    async def drop_unfinished(self) -> None:
        """Delete what clients have put and nobody will take in any more."""

    async def swept(self) -> None:
        """Note that unneeded blobs were deleted: a place that holds none any more, and takes no new ones, is left."""

    async def recount(self) -> None:
        """Bring `total_bytes` up to date where other coordinators of the run add and delete blobs as well."""


class DirectBlobs(Protocol):
    """Blobs that clients put into an object store, and get from there, without the coordinator."""

    async def signed_get(self, sha256: Sha256, /) -> str | None:
        """Return a URL where anybody gets a blob that is held, or was taken in; None if the coordinator serves it."""

    async def look(self, sha256: Sha256, /, *, reads: bool) -> None:
        """Look whether a held blob is still where `signed_get` leads, because somebody did not find it there.

        Args:
            sha256: the blob.
            reads: read its bytes, because somebody found others, unless these were read before.

        Raises:
            Refused: `not-found`: it was deleted or overwritten, and is not held from now on; the message says where.
        """

    async def signed_put(
        self, sha256: Sha256, size_bytes: int, sender: ClientId, spare_bytes: int = 0, /
    ) -> SignedPut | None:
        """Return how this client puts an announced blob into the store; None if it sends it to the coordinator.

        Raises:
            Refused: `blobs-full`, with `spare_bytes` as for `receive`.
        """

    def end_put(self, sha256: Sha256, sender: ClientId, /) -> None:
        """Note that the run waits no longer for what `signed_put` granted: it takes no room any more."""

    async def take_in(self, sha256: Sha256, size_bytes: int, sender: ClientId, /) -> HashedReadable | None:
        """Take what a client has put where `signed_put` said out of its reach, and return it; it is not held yet.

        `settle` must follow. Return None, and change nothing, if the blob is held already.

        Raises:
            Refused: `body-incomplete` if nothing arrived; `blob-mismatch` or `blob-too-large` for another length.
        """

    async def settle(self, sha256: Sha256, size_bytes: int, sender: ClientId, found: Sha256 | None, /) -> None:
        """Hold what was taken in, if its bytes hash to its name; else delete it.

        Args:
            sha256: its name.
            size_bytes: its size.
            sender: the client that has put it there.
            found: the digest of its bytes; None if nobody knows.

        Raises:
            Refused: `blob-mismatch`.
        """


class BlobStore(BlobWriter, BlobSweeper, DirectBlobs, Protocol):
    """Blobs that a coordinator receives, serves and deletes."""

    async def check_answers(self) -> None:
        """Raise `StoreBlocked` unless the medium answers now."""


class ServedBlobs:
    """The part of `BlobStore` that is the same wherever all bytes pass through the coordinator."""

    async def signed_get(self, _: Sha256) -> None:
        """Return None: the coordinator serves the bytes."""

    async def look(self, _: Sha256, *, reads: bool) -> None:
        """Do nothing: nobody is led elsewhere."""
        del reads

    async def signed_put(self, _: Sha256, _size_bytes: int, _sender: ClientId, _spare_bytes: int = 0) -> None:
        """Return None: the coordinator takes the bytes."""

    def end_put(self, _: Sha256, _sender: ClientId) -> None:
        """Do nothing: nothing was granted."""

    async def settle(self, _: Sha256, _size_bytes: int, _sender: ClientId, _found: Sha256 | None) -> None:
        """Do nothing: nothing was taken in."""

    async def take_in(self, sha256: Sha256, _size_bytes: int, _sender: ClientId) -> None:
        """Raise `Refused(Refusal.BODY_INCOMPLETE)`: nothing can have arrived elsewhere."""
        raise Refused(Refusal.BODY_INCOMPLETE, f"blob {sha256} has not arrived; the coordinator itself takes its bytes")

    async def drop_unfinished(self) -> None:
        """Do nothing: what did not arrive whole is not kept."""

    async def swept(self) -> None:
        """Do nothing: the place stays the run's."""

    async def recount(self) -> None:
        """Do nothing: nobody else adds or deletes blobs."""

    async def check_answers(self) -> None:
        """Do nothing: whether there is room is another question."""


async def one_piece(data: bytes) -> AsyncIterator[bytes]:
    """Yield the bytes, as a body."""
    yield data


class BytesOfBlob(bytes):
    """A blob in memory (`OpenBlob`)."""

    descriptor = None

    def view(self) -> memoryview:
        """Return all of its bytes."""
        return memoryview(self)


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
