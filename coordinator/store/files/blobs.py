"""Blobs as files, named by their SHA-256: hashed as they arrive, and kept whole or not at all."""

import asyncio
import contextlib
import itertools
import mmap
import os
import stat
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from epochal.coordinator.store.blobs import (
    STREAM_BYTES,
    OpenBlob,
    blob_not_found,
    check_content,
    check_growth,
    check_room,
    read_again,
)
from epochal.coordinator.store.failures import store_failure
from epochal.coordinator.store.files.arriving import Arriving, in_thread, piece_bytes
from epochal.runtime.files.durable_files import (
    PRIVATE_FOLDER_MODE,
    REAL_DISK,
    Disk,
    create_file,
    make_folder,
    sync_folder,
)
from epochal.state.errors import StoreBlocked, StoreFailed
from epochal.state.wire import Sha256

BLOBS_FOLDER = "blobs"
FORGOTTEN_AFTER_S = 86_400.0
"""Age at which a part of a blob in a shared folder is deleted, which a killed process was receiving."""
OWNER_FILE = "owner"
"""File of a shared folder that names the store whose blobs it holds."""
_PARTIAL, _NEW = "partial", "new"


class DirectoryBlobs:
    """The `BlobStore` protocol over `RUN_DIR/blobs`, in folders of the digest's first two characters.

    Args:
        folder: holds them.
        max_total_bytes: maximum size of all blobs.
        disk: writes and syncs.
        held_bytes: size of those that it holds.
        writer: a name of this process in those of arriving blobs, where several receive into the folder.
    """

    def __init__(self, folder: Path, max_total_bytes: int, disk: Disk, held_bytes: int, *, writer: str = "") -> None:
        self._folder = folder
        self._max_total_bytes = max_total_bytes
        self._disk = disk
        self._numbers = itertools.count()
        self._writer = writer
        self._held_bytes = held_bytes
        """Changed on the event loop only. A receiver cancelled while its blob is named leaves it to `recount`."""
        self._arriving: set[Arriving] = set()
        self._naming = threading.Lock()
        """Held while a blob is named or deleted, which several threads do."""

    @property
    def total_bytes(self) -> int:
        return self._held_bytes + sum(arriving.received_bytes for arriving in self._arriving)

    @classmethod
    async def open(cls, run_dir: Path, max_total_bytes: int, disk: Disk = REAL_DISK) -> "DirectoryBlobs":
        """Return the blobs of a run directory, and delete interrupted uploads.

        Raises:
            StoreFailed: the folder cannot be read or created.
        """
        folder = run_dir / BLOBS_FOLDER
        held_bytes = await in_thread(_prepare, folder, disk)
        return cls(folder, max_total_bytes, disk, held_bytes)

    @classmethod
    async def shared(
        cls, folder: Path, run_id: str, owner: bytes, max_total_bytes: int, disk: Disk = REAL_DISK
    ) -> "DirectoryBlobs":
        """Return the blobs of a run whose coordinators share a folder, perhaps on several machines.

        What others receive is counted when `recount` is called. A blob that arrives has a name that is this process's
        own; what a killed process left is deleted after `FORGOTTEN_AFTER_S`.

        Args:
            folder: it must exist, so that a volume that is not mounted is noticed.
            run_id: names the run's folder in it.
            owner: a random name of the run's store: no other one uses the run's folder, whose blobs it would delete.
            max_total_bytes: maximum size of all blobs.
            disk: writes and syncs.

        Raises:
            StoreFailed: the folder is missing, or another store's, or cannot be read or written.
        """
        own = folder / run_id
        if not await asyncio.to_thread(folder.is_dir):
            raise StoreFailed(f"{folder} is no folder; is its volume mounted?")
        if await in_thread(_owner_of, own, owner, disk) != owner:
            raise StoreFailed(
                f"{own} holds the blobs of a run in another store, which would be deleted. Name another folder; or "
                f"delete {own / OWNER_FILE} if nobody serves that run any more"
            )
        held_bytes = await in_thread(_prepare, own / BLOBS_FOLDER, disk, FORGOTTEN_AFTER_S)
        return cls(own / BLOBS_FOLDER, max_total_bytes, disk, held_bytes, writer=f".{os.urandom(8).hex()}")

    @classmethod
    def for_reading(cls, run_dir: Path) -> "DirectoryBlobs":
        """Return the blobs of a run directory that another process may be serving; it receives none."""
        return cls(run_dir / BLOBS_FOLDER, 0, REAL_DISK, 0)

    def _path(self, sha256: Sha256) -> Path:
        return self._folder / sha256[:2] / sha256

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        if self._path(sha256).exists():
            await read_again(body, size_bytes)
            await in_thread(sync_folder, self._path(sha256).parent, self._disk)  # which may have failed before
            return
        await self._keep(sha256, size_bytes, body, spare_bytes)

    async def add(self, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> Sha256:
        return await self._keep(None, size_bytes, body, spare_bytes)

    async def _keep(
        self, sha256: Sha256 | None, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int
    ) -> Sha256:
        """Keep the bytes under their digest, which is returned; it must be `sha256` if that is given."""
        check_room(self.total_bytes + size_bytes + spare_bytes, self._max_total_bytes)
        arriving = Arriving(
            self._folder / _PARTIAL / f"{sha256 or _NEW}{self._writer}.{next(self._numbers)}", self._disk
        )
        self._arriving.add(arriving)
        try:
            try:
                found = await self._receive(sha256, size_bytes, body, arriving, spare_bytes)
            finally:
                self._arriving.remove(arriving)
            await in_thread(sync_folder, self._path(found).parent, self._disk)
        except BaseException as error:
            await arriving.abandon()
            if isinstance(error, StoreBlocked):
                error.needed_bytes = size_bytes
            raise
        return found

    async def _receive(
        self, sha256: Sha256 | None, size_bytes: int, body: AsyncIterator[bytes], arriving: Arriving, spare_bytes: int
    ) -> Sha256:
        async for piece in body:
            check_growth(arriving.received_bytes + len(piece), size_bytes)
            check_room(self.total_bytes + len(piece) + spare_bytes, self._max_total_bytes)
            await arriving.add(piece, piece_bytes(len(self._arriving)))
        found = await arriving.digest()
        check_content(sha256, size_bytes, arriving.received_bytes, found)
        if await arriving.finish(partial(self._name, found, arriving)):
            self._held_bytes += arriving.received_bytes
        return found

    def _name(self, sha256: Sha256, arriving: Arriving) -> bool:
        """Name a blob whose bytes are durable; return whether it is new. The name is durable with its folder."""
        path = self._path(sha256)
        make_folder(path.parent, self._disk, PRIVATE_FOLDER_MODE)
        with self._naming:
            is_new = not path.exists()
            arriving.path.replace(path)
            return is_new

    async def size(self, sha256: Sha256) -> int | None:
        try:
            found = self._path(sha256).stat()
        except FileNotFoundError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    async def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        while start < stop:
            piece = await in_thread(self._read, sha256, start, min(STREAM_BYTES, stop - start))
            if not piece:
                raise StoreFailed(f"blob {sha256} is shorter than {stop} bytes")
            start += len(piece)
            yield piece

    @contextlib.asynccontextmanager
    async def opened(self, sha256: Sha256) -> AsyncIterator[OpenBlob]:
        file = await in_thread(self._open, sha256)
        try:
            yield file
        finally:
            file.close()

    def _open(self, sha256: Sha256) -> "_OpenBlob":
        try:
            return _OpenBlob(sha256, os.open(self._path(sha256), os.O_RDONLY))
        except FileNotFoundError:
            raise blob_not_found(sha256) from None

    def _read(self, sha256: Sha256, start: int, size_bytes: int) -> bytes:
        """Return a piece of a blob. The file is open only meanwhile, as in `_write`."""
        try:
            with self._path(sha256).open("rb") as file:
                file.seek(start)
                return file.read(size_bytes)
        except FileNotFoundError:
            raise blob_not_found(sha256) from None

    async def delete(self, sha256: Sha256) -> None:
        deleted_bytes = await in_thread(self._remove, self._path(sha256))
        self._held_bytes -= deleted_bytes

    def _remove(self, path: Path) -> int:
        """Delete a file, and return its size; 0 if there is none."""
        with self._naming, contextlib.suppress(FileNotFoundError):
            size_bytes = path.stat().st_size
            path.unlink()
            return size_bytes
        return 0

    async def recount(self) -> None:
        self._held_bytes = await in_thread(_named_bytes, self._folder)

    async def held(self) -> frozenset[Sha256]:
        return frozenset(Sha256(path.name) for path in await in_thread(_blob_paths, self._folder))


class _OpenBlob:
    """A blob's bytes, read from its file (`OpenBlob`). Raises `StoreFailed` if that fails."""

    def __init__(self, sha256: Sha256, descriptor: int) -> None:
        self._sha256 = sha256
        self._descriptor = descriptor
        self._size_bytes = os.fstat(descriptor).st_size

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size_bytes)
        try:
            data = os.pread(self._descriptor, stop - start, start)
        except OSError as error:
            raise store_failure("a blob could not be read", error) from error
        if len(data) < stop - start:
            raise StoreFailed(f"blob {self._sha256} is shorter than {self._size_bytes} bytes")
        return data

    def view(self) -> memoryview:
        try:
            return memoryview(mmap.mmap(self._descriptor, self._size_bytes, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise StoreFailed(f"blob {self._sha256} cannot be read: {error}") from error

    def close(self) -> None:
        os.close(self._descriptor)


def _blob_paths(folder: Path) -> list[Path]:
    return [path for path in folder.glob("??/*") if len(path.name) == 64]


def _owner_of(folder: Path, owner: bytes, disk: Disk) -> bytes:
    """Return the name of the store that a folder belongs to: this one, if it belonged to none."""
    make_folder(folder, disk, PRIVATE_FOLDER_MODE)
    path = folder / OWNER_FILE
    with contextlib.suppress(FileExistsError):
        create_file(path, owner)
    return path.read_bytes()


def _prepare(folder: Path, disk: Disk, older_than_s: float = 0.0) -> int:
    """Return the bytes of all blobs; delete those that a process was receiving when it ended."""
    partial = folder / _PARTIAL
    make_folder(partial, disk, PRIVATE_FOLDER_MODE)
    sync_folder(folder, disk)  # a killed process may have made folders in it just before
    for stale in partial.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if not older_than_s or stale.stat().st_mtime < time.time() - older_than_s:
                stale.unlink()
    return _named_bytes(folder)


def _named_bytes(folder: Path) -> int:
    total = 0
    for path in _blob_paths(folder):
        with contextlib.suppress(FileNotFoundError):  # another coordinator has deleted it just now
            total += path.stat().st_size
    return total
