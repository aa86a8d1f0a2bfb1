"""A blob that arrives: hashed and written behind the event loop, and made durable on the way.

Theory of operation. While one thread hashes and writes a piece, the next piece arrives, so that the network, the
processor and the disk work at the same time. Pieces are large while few blobs arrive, and small while many do. What was
written is synced again and again by another thread, so that at the end the disk has little left to do: a blob counts
only once all of it is durable, and a round waits for that.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from epochal.coordinator.store.failures import is_passing, repeated_while_passing, store_failure
from epochal.runtime.files.durable_files import Disk, open_private
from epochal.state.errors import StoreFailed
from epochal.state.model.tensors import Buffer
from epochal.state.wire import Sha256

MIN_PIECE_BYTES = 128 * 1024
MAX_PIECE_BYTES = 1024 * 1024
"""Bytes of a blob that are written at a time. A blob up to this size may be written at once, at its end."""
PIECES_BYTES = 32 * 1024 * 1024
"""Size of one piece of every arriving blob together, unless even `MIN_PIECE_BYTES` of each are more."""
SYNC_BYTES = 32 * 1024 * 1024
"""What is written of a blob between two syncs on the way."""

T = TypeVar("T")


def piece_bytes(arriving_count: int) -> int:
    """Return how many bytes of each of that many arriving blobs are written at a time."""
    return max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, PIECES_BYTES // max(1, arriving_count)))


class _Behind:
    """One piece of blocking work at a time, in a thread, whose failure is raised by the next call.

    The work may be repeated if something passing was in its way.
    """

    def __init__(self) -> None:
        self._work: Callable[[], object] = _nothing
        self._running: asyncio.Future[object] | None = None

    @property
    def is_busy(self) -> bool:
        return self._running is not None and not self._running.done()

    async def begin(self, work: Callable[[], object]) -> None:
        """Begin the work, when the one before has ended."""
        await self.ended()
        self._work = work
        self._running = asyncio.get_running_loop().run_in_executor(None, work)

    async def ended(self) -> None:
        """Wait for the work's end. If the caller is cancelled, the work goes on."""
        if self._running is None:
            return
        try:
            await asyncio.shield(self._running)
        except (OSError, MemoryError) as error:
            if not is_passing(_failure(error)):
                raise _failure(error) from error
            await in_thread(self._work)
        self._running = None

    async def abandon(self) -> None:
        """Wait for the work's end, whatever it raises."""
        running, self._running = self._running, None
        if running is not None:
            await asyncio.wait({running})
            if not running.cancelled():
                running.exception()  # whoever abandons has another one to raise


class Arriving:
    """One blob that is being received into a file. `abandon` ends it, unless `finish` has.

    Args:
        path: the file; it is written only by this object.
        disk: writes and syncs it.

    Attributes:
        received_bytes: number of bytes that have arrived.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self.received_bytes = 0
        self._disk = disk
        self._waiting = bytearray()
        self._writing, self._syncing = _Behind(), _Behind()
        self._synced_bytes = self._hashed_bytes = 0
        self._digest = hashlib.sha256()
        """Of the bytes before `_hashed_bytes`; changed by one thread at a time, and not by the event loop."""

    async def add(self, piece: bytes, max_waiting_bytes: int) -> None:
        """Add the next bytes.

        Args:
            piece: the bytes.
            max_waiting_bytes: number of bytes from which on those that wait are written.

        Raises:
            StoreFailed: they, or earlier ones, cannot be written.
        """
        self.received_bytes += len(piece)
        self._waiting += piece
        if len(self._waiting) >= max_waiting_bytes:
            offset, data = self._taken()
            await self._writing.begin(partial(self._write, offset, data))
            if offset - self._synced_bytes >= SYNC_BYTES and not self._syncing.is_busy:
                self._synced_bytes = offset
                await self._syncing.begin(self._sync)

    async def digest(self) -> Sha256:
        """Return the digest of all bytes. Raise `StoreFailed` if one of them could not be written."""
        await self._writing.ended()
        if self._waiting:
            await in_thread(self._hash, self.received_bytes - len(self._waiting), self._waiting)
        return Sha256(self._digest.hexdigest())

    async def finish(self, keep: Callable[[], T]) -> T:
        """Write the rest, make all bytes durable, and return what `keep` returns, which names the file in that thread.

        Raises:
            StoreFailed: the bytes cannot be written or made durable.
        """
        await self._syncing.ended()
        offset, rest = self._taken()

        def finish() -> T:
            self._write(offset, rest, is_last=True)
            return keep()

        return await in_thread(finish)

    async def abandon(self) -> None:
        """Remove the file."""
        await self._writing.abandon()
        await self._syncing.abandon()
        await in_thread(self.path.unlink, True)

    def _taken(self) -> tuple[int, bytearray]:
        """Return the place of the bytes that wait, and the bytes, which wait no longer."""
        taken, self._waiting = self._waiting, bytearray()
        return self.received_bytes - len(taken), taken

    def _hash(self, offset: int, data: Buffer) -> None:
        """Add the bytes at `offset` to the digest; once, however often a write of them is repeated."""
        if offset == self._hashed_bytes:
            self._digest.update(data)
            self._hashed_bytes += len(data)

    def _write(self, offset: int, data: Buffer, *, is_last: bool = False) -> None:
        """Write a piece at its place, so that a failed call may be repeated.

        The file is open only meanwhile: however many blobs arrive, few descriptors are taken from the journal.
        """
        self._hash(offset, data)
        with open_private(self.path) as file:
            file.seek(offset)
            self._disk.write(file, data)
            if is_last:
                self._disk.sync(file.fileno())

    def _sync(self) -> None:
        with open_private(self.path) as file:
            self._disk.sync_data(file.fileno())


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Return what blocking work returns, done in a thread; raise every `OSError` as `StoreFailed`.

    The work is repeated for a few seconds if something passing is in the way.
    """

    def attempt() -> Awaitable[T]:
        return _attempt(work, *arguments)

    return await repeated_while_passing(attempt)


async def _attempt(work: Callable[..., T], *arguments: object) -> T:
    try:
        return await asyncio.to_thread(work, *arguments)
    except (OSError, MemoryError) as error:
        raise _failure(error) from error


def _failure(error: OSError | MemoryError) -> StoreFailed:
    return store_failure("a blob could not be kept or read", error)


def _nothing() -> None:
    """Do nothing."""
