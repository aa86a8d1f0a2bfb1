"""Blobs as objects that are read, a window at a time, whoever may overwrite them meanwhile."""

import contextlib
from collections.abc import AsyncIterator

from epochal.coordinator.store.blobs import STREAM_BYTES, OpenBlob, blob_not_found, mapped_copy
from epochal.coordinator.store.object_store.objects import ObjectMissing, Objects
from epochal.runtime.files.mapped_reads import WINDOW_BYTES, Windows
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import Sha256

BLOBS = "blobs"
"""The folder of a run's blobs."""


def key_of(sha256: Sha256) -> str:
    """Return the key of a blob's object."""
    return f"{BLOBS}/{sha256}"


class ObjectReader:
    """The `BlobReader` protocol over a folder of a bucket, in which a coordinator may write meanwhile."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def size(self, sha256: Sha256) -> int | None:
        return await self._size_there(sha256)

    async def _size_there(self, sha256: Sha256) -> int | None:
        try:
            return (await self._objects.head(key_of(sha256))).size_bytes
        except ObjectMissing:
            return None

    async def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        for first in range(start, stop, WINDOW_BYTES):
            try:
                window = await self._objects.read(key_of(sha256), first, min(first + WINDOW_BYTES, stop))
            except ObjectMissing:
                raise blob_not_found(sha256) from None
            for offset in range(0, len(window), STREAM_BYTES):
                yield window[offset : offset + STREAM_BYTES]

    @contextlib.asynccontextmanager
    async def opened(self, sha256: Sha256) -> AsyncIterator[OpenBlob]:
        size_bytes = await self.size(sha256)
        if size_bytes is None:
            raise blob_not_found(sha256)
        yield OpenObject(self._objects, sha256, size_bytes)


class OpenObject:
    """The `OpenBlob` protocol over an object, read a window at a time.

    Reading raises `Refused(Refusal.NOT_FOUND)`, which names the object, if it is gone or changes while it is read.

    Args:
        objects: the folder.
        sha256: names the blob.
        size_bytes: its size.
        version: the one to read (`StoredObject.version`); None for that which the first read finds.

    Attributes:
        version: the one that is read; None before anything was.
    """

    def __init__(self, objects: Objects, sha256: Sha256, size_bytes: int, version: str | None = None) -> None:
        self._objects = objects
        self._key = key_of(sha256)
        self.version = version
        self._windows = Windows(size_bytes, self._fetch)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, part: slice) -> bytes:
        return self._windows[part]

    def sha256(self) -> Sha256:
        """Return the digest of the bytes that were read, and of the rest, which is read now."""
        return self._windows.sha256()

    def _fetch(self, start: int, stop: int) -> bytes:
        place = self._objects.place_of(self._key)
        try:
            data, version = self._objects.read_now(self._key, start, stop)
        except ObjectMissing:
            raise Refused(Refusal.NOT_FOUND, f"{place} is not there any more") from None
        if len(data) != stop - start or version != (self.version or version):
            raise Refused(Refusal.NOT_FOUND, f"{place} was overwritten while it was read")
        self.version = version
        return data

    def view(self) -> memoryview:
        return mapped_copy(self)
