"""The folder, on a disk or in a bucket, in which a published run lies as files that anybody may read.

A file is there whole or not at all. Names are relative, with "/" between folders.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Protocol

from epochal.coordinator.store.failures import store_failure
from epochal.coordinator.store.object_store.objects import PART_BYTES, ObjectMissing, Objects
from epochal.runtime.files.durable_files import make_folder, sync_folder

PARTIAL_SUFFIX = ".partial"


class PublishedFiles(Protocol):
    """Files of one folder. Methods raise `StoreFailed` if the medium fails."""

    @property
    def name(self) -> str:
        """The folder, for messages."""
        ...

    async def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None if there is none."""

    async def is_empty(self) -> bool:
        """Return whether the folder holds nothing, or does not exist."""

    def pieces(self, name: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a file that is there."""
        ...

    async def put(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        """Keep a file, in the place of one of this name; what `pieces` raises passes through, and nothing is kept."""

    async def delete(self, name: str) -> None:
        """Delete a file if there is one."""


async def digest_of(files: PublishedFiles, name: str) -> tuple[int, str] | None:
    """Return size in bytes and SHA-256 (hex) of a file, which is read; None if there is none."""
    if await files.size(name) is None:
        return None
    found, size_bytes = hashlib.sha256(), 0
    async for piece in files.pieces(name):
        size_bytes += len(piece)
        await asyncio.to_thread(found.update, piece)
    return size_bytes, found.hexdigest()


class FolderFiles:
    """The `PublishedFiles` protocol over a folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = str(folder)

    async def size(self, name: str) -> int | None:
        try:
            return (await asyncio.to_thread((self.folder / name).stat)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise store_failure(self.name, error) from error

    async def is_empty(self) -> bool:
        try:
            return not await asyncio.to_thread(os.listdir, self.folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            raise store_failure(self.name, error) from error

    async def pieces(self, name: str) -> AsyncIterator[bytes]:
        try:
            with await asyncio.to_thread((self.folder / name).open, "rb") as file:
                while piece := await asyncio.to_thread(file.read, PART_BYTES):
                    yield piece
        except OSError as error:
            raise store_failure(self.name, error) from error

    async def put(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        path = self.folder / name
        partial = path.with_name(path.name + PARTIAL_SUFFIX)
        try:
            await asyncio.to_thread(make_folder, path.parent)
            try:
                with await asyncio.to_thread(partial.open, "wb") as file:
                    async for piece in pieces:
                        await asyncio.to_thread(file.write, piece)
                    await asyncio.to_thread(_sync, file)
                await asyncio.to_thread(_rename, partial, path)
            finally:
                await asyncio.to_thread(partial.unlink, missing_ok=True)
        except OSError as error:
            raise store_failure(self.name, error) from error

    async def delete(self, name: str) -> None:
        try:
            await asyncio.to_thread((self.folder / name).unlink, missing_ok=True)
        except OSError as error:
            raise store_failure(self.name, error) from error


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _rename(partial: Path, path: Path) -> None:
    partial.replace(path)
    sync_folder(path.parent)


class BucketFiles:
    """The `PublishedFiles` protocol over a folder of a bucket."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.name = objects.location

    async def size(self, name: str) -> int | None:
        try:
            return (await self._objects.head(name)).size_bytes
        except ObjectMissing:
            return None

    async def is_empty(self) -> bool:
        async for page in self._objects.pages(""):
            return not page
        return True

    async def pieces(self, name: str) -> AsyncIterator[bytes]:
        size_bytes = await self.size(name) or 0
        for start in range(0, size_bytes, PART_BYTES):
            yield await self._objects.read(name, start, min(start + PART_BYTES, size_bytes))

    async def put(self, name: str, pieces: AsyncIterator[bytes]) -> None:
        await self._objects.put(name, pieces)

    async def delete(self, name: str) -> None:
        await self._objects.delete(name)
