"""Keeps what is made from a source's files (decompressed files, places of records) in files, within a limit.

In a cache's folder it is kept for the next start and shared by any number of processes; without one it is in a
temporary folder that is removed at the end. Such a file is 32 bytes of SHA-256 and the content. It is written to a name
of its own and renamed when it is complete, and compared with its hash when a process uses it for the first time; a
damaged one is made again. At the limit the least recently used ones are deleted.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from epochal.data_providers.sources.range_file import SeekableFile
from epochal.state.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

DEFAULT_SPOOL_BYTES = 64 * 1024**3
MAX_OPEN_FILES = 64
STALE_S = 3600.0
"""An incomplete file that was not written to for so long was left by a process that was killed."""
_DIGEST_BYTES = 32
_PART_BYTES = 4 * 1024**2
_INCOMING = "incoming-"


class SpooledFile:
    """An open file of a spool; its descriptor is closed when its last user drops it."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self._path = path
        self.size_bytes = os.fstat(self._fd).st_size - _DIGEST_BYTES

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def read_into(self, start: int, into: memoryview) -> None:
        """Fill `into` from byte `start` on. Raises `SourceUnavailable` if the disk does not answer."""
        filled = 0
        while filled < len(into):
            try:
                count = os.preadv(self._fd, [into[filled:]], _DIGEST_BYTES + start + filled)
            except OSError as error:
                raise SourceUnavailable(f"{self._path} cannot be read: {error}") from error
            if not count:
                raise CorruptData(f"{self._path} ends at byte {start + filled}; it was longer")
            filled += count

    def is_intact(self) -> bool:
        """Return whether the content has the hash that precedes it."""
        if self.size_bytes < 0:
            return False
        digest, part = hashlib.sha256(), memoryview(bytearray(_PART_BYTES))
        for at in range(0, self.size_bytes, _PART_BYTES):
            here = part[: min(_PART_BYTES, self.size_bytes - at)]
            self.read_into(at, here)
            digest.update(here)
        return digest.digest() == os.pread(self._fd, _DIGEST_BYTES, 0)


class SpooledReader(SeekableFile):
    """A file of a spool as Python's file object."""

    def __init__(self, file: SpooledFile) -> None:
        super().__init__(file.size_bytes)
        self._file = file

    def readinto(self, into: "WriteableBuffer", /) -> int:
        view = memoryview(into).cast("B")
        view = view[: max(0, min(len(view), self._size_bytes - self._at))]
        self._file.read_into(self._at, view)
        self._at += len(view)
        return len(view)


class SpoolSink:
    """Takes the content of a file of the spool, hashes it, and keeps its size within a limit."""

    def __init__(self, fd: int, place: str, max_bytes: int, make_room: Callable[[int], None]) -> None:
        self.size_bytes = 0
        self.digest = hashlib.sha256()
        self._fd = fd
        self._place = place
        self._max_bytes = max_bytes
        self._make_room = make_room
        self._room = 0

    def write(self, part: bytes | memoryview) -> None:
        """Append a part.

        Raises:
            Rejected: the content is larger than the whole spool may be.
            OSError: the disk is full, or does not answer.
        """
        self.size_bytes += len(part)
        if self.size_bytes + _DIGEST_BYTES > self._max_bytes:
            raise Rejected(
                f"{self._place} unpacks to more than {self._max_bytes} bytes, the limit for unpacked files;"
                " unpack it yourself, or give the client a larger --cache with --cache-bytes",
                place=self._place,
            )
        self._room -= len(part)
        if self._room < 0:
            self._room = max(_PART_BYTES, len(part))
            self._make_room(self.size_bytes + self._room)
        self.digest.update(part)
        view = memoryview(part)
        while view:
            view = view[os.write(self._fd, view) :]


class DataSpool:
    """A folder for files that can be made again, with a limit in bytes. Its methods block, and may overlap.

    Args:
        folder: where to keep them; None for a temporary folder.
        max_bytes: of all files together; by default `DEFAULT_SPOOL_BYTES`, or in a temporary folder half of what is
            free there if that is less.
    """

    def __init__(self, folder: Path | None = None, max_bytes: int | None = None) -> None:
        if max_bytes is None:
            free_bytes = 2 * DEFAULT_SPOOL_BYTES if folder else shutil.disk_usage(tempfile.gettempdir()).free
            max_bytes = min(DEFAULT_SPOOL_BYTES, free_bytes // 2)
        self.max_bytes = max_bytes
        self.is_kept = folder is not None
        """Whether the files are kept for the next start."""
        self._folder = folder
        self._temporary: Path | None = None
        self._remove: Callable[[], object] = lambda: None
        self._open: OrderedDict[str, SpooledFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> SpooledFile | None:
        """Return a file that is held and intact, or None."""
        with self._lock:
            file = self._open.get(key)
            if file is not None:
                self._open.move_to_end(key)
                return file
            path = self._place() / key
        try:
            file = SpooledFile(path)
            if not file.is_intact():
                path.unlink(missing_ok=True)
                return None
            os.utime(path)
        except (OSError, SourceUnavailable, CorruptData):
            return None
        return self._held(key, file)

    def put(self, key: str, place: str, write: Callable[[SpoolSink], None]) -> SpooledFile:
        """Make a file and return it.

        Args:
            key: names it, a file name.
            place: of the source's file that it is made from, for messages.
            write: writes its content; what it raises is raised.

        Raises:
            Rejected: it is larger than the spool may be.
            SourceUnavailable: the disk is full, or does not answer.
        """
        with self._lock:
            folder = self._place()
        try:
            fd, incoming = tempfile.mkstemp(prefix=_INCOMING, dir=folder)
            try:
                sink = SpoolSink(fd, place, self.max_bytes, lambda needed: self._make_room(folder, needed, incoming))
                os.write(fd, bytes(_DIGEST_BYTES))
                write(sink)
                os.pwrite(fd, sink.digest.digest(), 0)
                made = SpooledFile(Path(incoming))  # under its name, it may have to give way to another one at once
                Path(incoming).replace(folder / key)
            finally:
                os.close(fd)
                Path(incoming).unlink(missing_ok=True)
            held = self._held(key, made)
            self._make_room(folder, 0, incoming)  # files that were made at the same time did not see each other whole
            return held
        except OSError as error:
            raise SourceUnavailable(f"{place} cannot be unpacked into {folder}: {error.strerror or error}") from error

    def close(self) -> None:
        """Drop the open files, and a temporary folder. A second call does nothing."""
        with self._lock:
            self._open.clear()
            self._remove()
            self._temporary = None

    def _place(self) -> Path:
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidInput(f"data cache {self._folder}: {error.strerror or error}") from error
            return self._folder
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="epochal-data-"))
            self._remove = weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary

    def _held(self, key: str, file: SpooledFile) -> SpooledFile:
        with self._lock:
            self._open[key] = file
            if len(self._open) > MAX_OPEN_FILES:
                self._open.popitem(last=False)
        return file

    def _make_room(self, folder: Path, needed_bytes: int, incoming: str) -> None:
        """Delete the least recently used files until a file of `needed_bytes` has room beside the others."""
        entries = sorted(self._entries(folder, incoming))
        total = needed_bytes + sum(size for _, size, _ in entries)
        for used_at, size, path in entries:
            if total <= self.max_bytes:
                return
            if path.name.startswith(_INCOMING) and used_at > time.time() - STALE_S:
                continue
            path.unlink(missing_ok=True)
            with self._lock:
                self._open.pop(path.name, None)
            total -= size

    def _entries(self, folder: Path, incoming: str) -> Iterator[tuple[float, int, Path]]:
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another process has just deleted it
                found = path.stat()
                if str(path) != incoming:
                    yield found.st_mtime, found.st_size, path
