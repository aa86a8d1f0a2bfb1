"""Blobs as files, named by their SHA-256: hashed as they arrive, and kept whole or not at all."""

import asyncio
import contextlib
import hashlib
import itertools
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from coordinator.store.blobs import STREAM_BYTES, blob_not_found, check_content, check_growth, check_room
from runtime.durable_files import PRIVATE_FOLDER_MODE, REAL_DISK, Disk, make_folder, open_private, sync_folder
from state.errors import StoreFailed
from state.wire import Sha256

BLOBS_FOLDER = "blobs"
MAX_IN_MEMORY_BYTES = 1024 * 1024
"""A blob up to this size is written at once; a larger one is written as it arrives."""
_PARTIAL = "partial"

T = TypeVar("T")


class DirectoryBlobs:
    """The `BlobStore` protocol over `RUN_DIR/blobs`, in folders of the digest's first two characters."""

    def __init__(self, folder: Path, max_total_bytes: int, disk: Disk, total_bytes: int) -> None:
        self._folder = folder
        self._max_total_bytes = max_total_bytes
        self._disk = disk
        self.total_bytes = total_bytes
        self._numbers = itertools.count()
        self._naming = threading.Lock()
        """Held while a blob is named, so that equal uploads in several threads are counted once."""

    @classmethod
    async def open(cls, run_dir: Path, max_total_bytes: int, disk: Disk = REAL_DISK) -> "DirectoryBlobs":
        """Return the blobs of a run directory, and delete interrupted uploads.

        Raises:
            StoreFailed: the folder cannot be read or created.
        """
        folder = run_dir / BLOBS_FOLDER
        total_bytes = await _in_thread(_prepare, folder, disk)
        return cls(folder, max_total_bytes, disk, total_bytes)

    @classmethod
    def for_reading(cls, run_dir: Path) -> "DirectoryBlobs":
        """Return the blobs of a run directory that another process may be serving; it receives none."""
        return cls(run_dir / BLOBS_FOLDER, 0, REAL_DISK, 0)

    def _path(self, sha256: Sha256) -> Path:
        return self._folder / sha256[:2] / sha256

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        if self._path(sha256).exists():
            received = 0
            async for piece in body:
                received += len(piece)
                check_growth(received, size_bytes)
            return
        check_room(self.total_bytes + size_bytes + spare_bytes, self._max_total_bytes)
        self.total_bytes += size_bytes
        kept = False
        try:
            kept = await self._receive(sha256, size_bytes, body)
        finally:
            if not kept:
                self.total_bytes -= size_bytes

    async def _receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes]) -> bool:
        partial = self._folder / _PARTIAL / f"{sha256}.{next(self._numbers)}"
        digest, received = hashlib.sha256(), 0
        waiting = bytearray()
        file: BinaryIO | None = None
        try:
            async for piece in body:
                received += len(piece)
                check_growth(received, size_bytes)
                digest.update(piece)
                waiting += piece
                if len(waiting) > MAX_IN_MEMORY_BYTES:
                    file = file or await _in_thread(_create, partial)
                    await _in_thread(self._disk.write, file, bytes(waiting))
                    waiting.clear()
            check_content(sha256, size_bytes, received, Sha256(digest.hexdigest()))
            return await _in_thread(self._finish, sha256, partial, file, bytes(waiting))
        except BaseException:
            await _in_thread(_discard, partial, file)
            raise

    def _finish(self, sha256: Sha256, partial: Path, file: BinaryIO | None, rest: bytes) -> bool:
        """Write the rest, name the blob durably, and return whether it is new."""
        with file or _create(partial) as opened:
            self._disk.write(opened, rest)
            opened.flush()
            self._disk.sync(opened.fileno())
        path = self._path(sha256)
        with self._naming:
            make_folder(path.parent, self._disk, PRIVATE_FOLDER_MODE)
            is_new = not path.exists()
            partial.replace(path)
        sync_folder(path.parent, self._disk)
        return is_new

    async def size(self, sha256: Sha256) -> int | None:
        try:
            return self._path(sha256).stat().st_size
        except FileNotFoundError:
            return None

    async def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        file = await _in_thread(self._open, sha256)
        try:
            file.seek(start)
            while start < stop:
                piece = await _in_thread(file.read, min(STREAM_BYTES, stop - start))
                if not piece:
                    raise StoreFailed(f"blob {sha256} is shorter than {stop} bytes")
                start += len(piece)
                yield piece
        finally:
            file.close()

    async def read(self, sha256: Sha256) -> bytes:
        with await _in_thread(self._open, sha256) as file:
            return await _in_thread(file.read)

    def _open(self, sha256: Sha256) -> BinaryIO:
        try:
            return self._path(sha256).open("rb")
        except FileNotFoundError:
            raise blob_not_found(sha256) from None

    async def delete(self, sha256: Sha256) -> None:
        self.total_bytes -= await _in_thread(_remove, self._path(sha256))

    async def held(self) -> frozenset[Sha256]:
        return frozenset(Sha256(path.name) for path in await _in_thread(_blob_paths, self._folder))


def _blob_paths(folder: Path) -> list[Path]:
    return [path for path in folder.glob("??/*") if len(path.name) == 64]


def _prepare(folder: Path, disk: Disk) -> int:
    partial = folder / _PARTIAL
    make_folder(partial, disk, PRIVATE_FOLDER_MODE)
    sync_folder(folder, disk)  # a killed process may have made folders in it just before
    for stale in partial.iterdir():
        stale.unlink()
    return sum(path.stat().st_size for path in _blob_paths(folder))


def _create(partial: Path) -> BinaryIO:
    return open_private(partial, os.O_TRUNC)


def _discard(partial: Path, file: BinaryIO | None) -> None:
    if file is not None:
        with contextlib.suppress(OSError):  # closing a file on a full disk fails again; the first error is raised
            file.close()
    partial.unlink(missing_ok=True)


def _remove(path: Path) -> int:
    try:
        size = path.stat().st_size
        path.unlink()
    except FileNotFoundError:
        return 0
    return size


async def _in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Return what blocking work returns, done in a thread; raise every `OSError` as `StoreFailed`."""
    try:
        return await asyncio.to_thread(work, *arguments)
    except OSError as error:
        raise StoreFailed(f"a blob could not be kept or read: {error.strerror or error}") from error
