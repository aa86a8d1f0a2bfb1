"""The blobs of a run: results and checkpoints, immutable bytes named by their SHA-256."""

from collections.abc import AsyncIterator
from typing import Protocol

from state.wire import Sha256


class BlobReader(Protocol):
    """Blobs that are only read; a coordinator may add and delete some meanwhile."""

    async def read(self, sha256: Sha256) -> bytes:
        """Return the whole blob.

        Raises:
            Refused: `not-found`, when it is not held.
            StoreFailed: the medium failed.
        """
        ...


class BlobStore(BlobReader, Protocol):
    """Blobs that a coordinator receives, serves and deletes."""

    @property
    def total_bytes(self) -> int:
        """How many bytes the blobs take up, unfinished uploads included."""
        ...

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        """Keep the streamed bytes durably if they are `size_bytes` long and hash to `sha256`; else keep nothing.

        Receiving a blob that is already held reads the body and changes nothing. A new one must leave `spare_bytes` of
        the bound free.

        Raises:
            Refused: `blob-mismatch`, `blob-too-large` or `blobs-full`.
            StoreFailed: the medium failed.
        """
        ...

    async def contains(self, sha256: Sha256) -> bool:
        """Return whether the blob is held."""
        ...

    async def size(self, sha256: Sha256) -> int | None:
        """Return the blob's size in bytes, or None when it is not held."""
        ...

    def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        """Return the bytes `[start, stop)` in pieces. Raise `Refused(Refusal.NOT_FOUND)` when the blob is not held."""
        ...

    async def delete(self, sha256: Sha256) -> None:
        """Forget the blob; no error when it is not held."""
        ...

    async def held(self) -> frozenset[Sha256]:
        """Return the digests of all blobs held."""
        ...
