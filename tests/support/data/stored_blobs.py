"""Whole blobs of a coordinator's store, for tests, whose blobs are small."""

from collections.abc import AsyncIterator

from epochal.coordinator.store.blobs import BlobReader
from epochal.state.wire import Sha256


async def blob_bytes(blobs: BlobReader, sha256: Sha256) -> bytes:
    """Return the blob. Raise `Refused` (`not-found`) if it is not held."""
    async with blobs.opened(sha256) as data:
        return bytes(data[:])


async def one_piece(data: bytes) -> AsyncIterator[bytes]:
    """Yield the bytes, as a body."""
    yield data
