"""A file of a `ByteSource` as Python's blocking file object, for libraries that read files: in a separate thread.

The event loop does the reading; the thread waits for it. Such a thread must not be one of the event loop's own pool
(`asyncio.to_thread`), whose threads the source itself may need: `SourceThreads` are for that.
"""

import asyncio
import concurrent.futures
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from epochal.data_providers.protocol import SourceUnavailable
from epochal.data_providers.sources.byte_source import ByteSource, SourceFile

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

WINDOW_BYTES = 4 * 1024**2
"""Number of bytes that are read at a time from a file that is read in order."""
MAX_WAIT_S = 600.0
"""Maximum time for one range. Sources have shorter limits for each of their attempts."""

LOOK_S = 1.0
"""Time between two checks of a waiting thread whether the event loop has ended."""

T = TypeVar("T")


class SourceThreads:
    """Threads for blocking calls that read a source's files. Close it before the source."""

    def __init__(self, threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="epochal-data")

    async def run(self, call: Callable[[], T]) -> T:
        """Return the call's result, or raise its exception. A call that runs is not stopped by a cancellation."""
        context = copy_context()  # which counts its time (`data_providers/waits.py`)
        return await asyncio.get_running_loop().run_in_executor(self._executor, context.run, call)

    def close(self) -> None:
        """Let no further call begin. Does not wait."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def opened_in_order(source: ByteSource, file: SourceFile) -> io.BufferedReader:
    """Return a file that is read in order, for a thread other than the event loop's."""
    return io.BufferedReader(RangeFile(source, file), WINDOW_BYTES)


class RangeFile(io.RawIOBase):
    """A readable, seekable file over ranges of a source. Use it in a thread other than the event loop's.

    Args:
        source: is read; not closed.
        file: one of the source's files.
        loop: the event loop that reads; by default the one that runs in this thread.
    """

    def __init__(self, source: ByteSource, file: SourceFile, *, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__()
        self._size_bytes = file.size_bytes
        self._at = 0
        self._source = source
        self._file = file
        self._loop = loop or asyncio.get_running_loop()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}")
        self._at = base + offset
        return self._at

    def size(self) -> int:
        """Return the file's size in bytes."""
        return self._size_bytes

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` further bytes, at most what the file holds: hostile lengths take no memory."""
        left = max(0, self._size_bytes - self._at)
        found: bytes | None = super().read(left if size is None or size < 0 else min(size, left))
        return found or b""

    def readinto(self, into: "WriteableBuffer", /) -> int:
        """Fill as much of `into` as the file, or the window, holds. Raises what `ByteSource.read_into` raises."""
        view = memoryview(into).cast("B")
        wanted = min(len(view), self._file.size_bytes - self._at)
        if wanted <= 0:
            return 0
        found = self._wait(self._ask(self._at, self._at + wanted))
        view[: len(found)] = found
        self._at += len(found)
        return len(found)

    def _ask(self, start: int, stop: int) -> "concurrent.futures.Future[bytes]":
        async def read() -> bytes:
            found = bytearray(stop - start)
            await self._source.read_into(self._file.name, start, memoryview(found))
            return bytes(found)

        reading = read()
        try:
            return asyncio.run_coroutine_threadsafe(reading, self._loop)
        except RuntimeError as error:  # the event loop is closed
            reading.close()
            raise SourceUnavailable(f"{self._file.place} is no longer read", place=self._file.place) from error

    def _wait(self, asked: "concurrent.futures.Future[bytes]") -> bytes:
        place = self._file.place
        for _ in range(int(MAX_WAIT_S / LOOK_S)):
            try:
                return asked.result(LOOK_S)
            except concurrent.futures.CancelledError as error:
                raise SourceUnavailable(f"{place} is no longer read", place=place) from error
            except TimeoutError:
                if asked.done():  # the reading itself took too long
                    raise
                if self._loop.is_closed():
                    raise SourceUnavailable(f"{place} is no longer read", place=place) from None
        asked.cancel()
        raise SourceUnavailable(f"{place} does not answer in {MAX_WAIT_S:.0f} s", place=place)
