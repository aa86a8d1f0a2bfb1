"""A spool: temporary files of one process, for bytes that need not be in memory.

Bytes are appended as they arrive, hashed on the way, and then mapped into memory read-only; or a file is mapped to be
written. The files have no names, so that the system removes each of them when neither its `SpoolFile` nor a view of it
is used any more, however the process ends. The rule kept here: lack of room is an error.

A large file that was mapped to be written is not given back at once: the next one of its size takes its place. A new
file's pages are found and filled with zeros by the system first, which for a replica takes longer than its arithmetic.
"""

import contextlib
import hashlib
import mmap
import os
import shutil
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from epochal.runtime.files.file_room import allocate, write_at
from epochal.state.errors import SpoolFull
from epochal.state.model.tensors import Buffer
from epochal.state.text.amounts import shown_bytes
from epochal.state.wire import Sha256

MAX_IN_MEMORY_BYTES = 64 * 1024
"""A file up to this size never reaches the disk."""
READ_BYTES = 1024 * 1024
"""A file is hashed in pieces of this size."""
ROOM_BY_OPTION = "make room there, or choose another folder with --spool"
"""What to do if a spool finds no room, in a process that has that option."""
MIN_SPARE_BYTES = 16 * 1024 * 1024
"""Size from which on a mapped file's place is used again."""
MAX_SPARES = 4
"""Maximum number of places that wait to be used again: those of a replica, a residual, a sum and an update."""
DROPS_PAGES = hasattr(mmap, "MADV_DONTNEED")

T = TypeVar("T")


class Spool:
    """The temporary files of one process.

    Args:
        folder: on the disk that holds them; it is made if need be.
        max_bytes: maximum size of its files together; None for what the disk holds.
        advice: says what to do if they find no room.
    """

    def __init__(self, folder: Path, max_bytes: int | None = None, advice: str = ROOM_BY_OPTION) -> None:
        self._folder = folder
        self._advice = advice
        self.max_bytes = max_bytes
        self._sizes: dict[int, int] = {}
        """Size of each file; each entry is changed as a whole, by the one thread that writes the file or drops it."""
        self._views: dict[int, weakref.ref[mmap.mmap]] = {}
        self._spares: deque[tuple[int, int]] = deque()
        """Size and descriptor of each file whose place waits to be used again. Files end in any thread: each change of
        the queue is one call."""
        weakref.finalize(self, _close_all, self._spares)

    @property
    def used_bytes(self) -> int:
        """Size of all files, with those whose places wait to be used again."""
        return sum(list(self._sizes.values())) + sum(size_bytes for size_bytes, _ in list(self._spares))

    def file(self) -> "SpoolFile":
        """Return a new, empty file."""
        return SpoolFile(self)

    def keep(self, pieces: Iterable[Buffer], size_bytes: int = 0) -> "SpoolFile":
        """Return a new file with these bytes. It blocks while it writes them.

        Args:
            pieces: the bytes.
            size_bytes: their number, where it is known.

        Raises:
            SpoolFull: as `SpoolFile.append`.
        """
        file = self.file()
        file.reserve(size_bytes)
        for piece in pieces:
            file.append(piece)
        return file

    def check_room(self, needed_bytes: int, purpose: str, beside_bytes: int = 0) -> None:
        """Raise `SpoolFull` unless the spool can hold so many bytes in all.

        Args:
            needed_bytes: size of all files of the spool together, of which some may be held already.
            purpose: says what they are.
            beside_bytes: room for other files of this process on the same disk, which `max_bytes` does not bound.
        """
        needs = f"{purpose} needs {shown_bytes(needed_bytes)} of spool"
        if self.max_bytes is not None and needed_bytes > self.max_bytes:
            allowed = f"[client] spool_bytes is {self.max_bytes}; allowed: at least {needed_bytes}"
            raise SpoolFull(f"{needs}; {allowed}", needed_bytes=needed_bytes)
        available_bytes = self._blocking("measured", self._free_bytes) + self.used_bytes
        if needed_bytes + beside_bytes > available_bytes:
            beside = f" and {shown_bytes(beside_bytes)} of inner states" if beside_bytes else ""
            lack = f"the disk of {self._folder} has {shown_bytes(available_bytes)}"
            raise SpoolFull(f"{needs}{beside}; {lack}: {self._advice}", needed_bytes=needed_bytes + beside_bytes)

    def drop_pages(self) -> None:
        """Give the pages of mapped files back to the system, which counts them as this process's memory meanwhile.

        They stay in its cache, and come back when they are used.
        """
        for view in list(self._views.values()):
            found = view()
            if found is not None and DROPS_PAGES:
                found.madvise(mmap.MADV_DONTNEED)

    def _free_bytes(self) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        return shutil.disk_usage(self._folder).free

    def _new_file(self) -> int:
        """Return an empty file, open, that only this process can reach."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(buffering=0, dir=self._folder) as file:
            return os.dup(file.fileno())

    def _blocking(self, done: str, work: Callable[[], T]) -> T:
        """Return what blocking work returns; raise its `OSError` as `SpoolFull`, unless spare room helps."""
        try:
            try:
                return work()
            except OSError:
                if not self._spares:
                    raise
                _close_all(self._spares)
                return work()
        except OSError as error:
            reason = error.strerror or str(error)
            raise SpoolFull(
                f"a spool file in {self._folder} cannot be {done}: {reason}; the spool holds {self.used_bytes} bytes: "
                f"{self._advice}"
            ) from error

    def _take(self, key: int, size_bytes: int, *, at_least: bool = False) -> None:
        """Count a file with its new size; not less than what was counted before if it is `at_least`."""
        counted_bytes = self._sizes.get(key, 0)
        size_bytes = max(size_bytes, counted_bytes) if at_least else size_bytes
        total_bytes = self.used_bytes + size_bytes - counted_bytes
        if self.max_bytes is not None and total_bytes > self.max_bytes and self._spares:
            _close_all(self._spares)
            total_bytes = self.used_bytes + size_bytes - counted_bytes
        if self.max_bytes is not None and total_bytes > self.max_bytes:
            raise SpoolFull(f"the spool would hold {total_bytes} bytes; [client] spool_bytes is {self.max_bytes}")
        self._sizes[key] = size_bytes

    def _give(self, key: int) -> int:
        """Count a file no longer; return its size."""
        self._views.pop(key, None)
        return self._sizes.pop(key, 0)

    def _spare(self, size_bytes: int) -> int:
        """Return a file of this size whose place is free; -1 if there is none."""
        for _ in range(len(self._spares)):
            with contextlib.suppress(IndexError):
                found = self._spares.popleft()
                if found[0] == size_bytes:
                    return found[1]
                self._spares.append(found)
        return -1

    def _retire(self, size_bytes: int, descriptor: int) -> None:
        """Let the next file of a size take this one's place, if there is room for it to wait."""
        if size_bytes < MIN_SPARE_BYTES or len(self._spares) >= MAX_SPARES:
            os.close(descriptor)
        else:
            self._spares.append((size_bytes, descriptor))


class SpoolFile:
    """One file of a spool: bytes in memory while they are few, else on disk. One thread at a time changes it.

    Reading parts of it (`Readable`) takes memory for those parts only.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._key = id(self)
        self._held = bytearray()
        self._descriptor = -1
        self._size_bytes = 0
        self._digest = hashlib.sha256()
        self._view: weakref.ref[mmap.mmap] | None = None
        self._end: weakref.finalize[..., SpoolFile] = weakref.finalize(self, spool._give, self._key)

    def __len__(self) -> int:
        return self._size_bytes

    @property
    def size_bytes(self) -> int:
        """Number of bytes that it holds."""
        return self._size_bytes

    @property
    def descriptor(self) -> int | None:
        """The open file, to be read at any place; None while the bytes are in memory."""
        return None if self._descriptor < 0 else self._descriptor

    def sha256(self) -> Sha256:
        """Return the digest of the bytes that were appended."""
        return Sha256(self._digest.hexdigest())

    def append(self, data: Buffer) -> None:
        """Add bytes at the end, and to the digest.

        Raises:
            SpoolFull: they find no room on the disk, or in `max_bytes`; what was appended before stays.
        """
        size_bytes = self._size_bytes + len(data)
        if self._descriptor < 0 and size_bytes <= MAX_IN_MEMORY_BYTES:
            self._held += data
        else:
            self._spool._take(self._key, size_bytes, at_least=True)
            self._make_file()
            self._spool._blocking("written", lambda: write_at(self._descriptor, self._size_bytes, data))
        self._digest.update(data)
        self._size_bytes = size_bytes

    def reserve(self, size_bytes: int) -> None:
        """Take room on the disk for so many bytes in all, which are appended faster then.

        Raises:
            SpoolFull: there is no such room.
        """
        size_bytes = max(size_bytes, self._size_bytes)
        if size_bytes > MAX_IN_MEMORY_BYTES:
            self._spool._take(self._key, size_bytes)
            self._make_file()
            self._spool._blocking("made", lambda: allocate(self._descriptor, size_bytes))

    def clear(self) -> None:
        """Begin again with no bytes."""
        self._held = bytearray()
        self._digest = hashlib.sha256()
        self._size_bytes = 0

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size_bytes)
        if self._descriptor < 0:
            return bytes(self._held[start:stop])
        return self._spool._blocking("read", lambda: os.pread(self._descriptor, stop - start, start))

    def pieces(self, size_bytes: int = READ_BYTES) -> Iterable[bytes]:
        """Yield its bytes, a piece at a time."""
        for start in range(0, self._size_bytes, size_bytes):
            yield self[start : start + size_bytes]

    def to_bytes(self) -> bytes:
        """Return all of its bytes."""
        return self[:]

    def view(self) -> memoryview:
        """Return its bytes, mapped into memory, read-only. The file stays as long as the view is used."""
        if self._descriptor < 0:
            return memoryview(bytes(self._held))
        return memoryview(self._mapped(mmap.ACCESS_READ)).toreadonly()

    def prepared(self, size_bytes: int, *, is_zero: bool = False) -> memoryview:
        """Return room for so many bytes, mapped into memory to be written. The file must be empty before.

        The room is taken on the disk now, so that writing cannot fail later. `hash` is to be called afterwards.

        Args:
            size_bytes: its size.
            is_zero: whether it must hold zeros; otherwise it may hold bytes of an earlier file.

        Raises:
            SpoolFull: there is no such room.
        """
        spare = self._spool._spare(size_bytes) if self._descriptor < 0 and not self._held else -1
        if spare >= 0:
            self._hold(spare, is_prepared=True)
        self._spool._take(self._key, size_bytes)
        if spare < 0:
            self._make_file(is_prepared=True)
            self._spool._blocking("made", lambda: allocate(self._descriptor, size_bytes))
        self._size_bytes = size_bytes
        room = memoryview(self._mapped(mmap.ACCESS_WRITE))
        if is_zero and spare >= 0:
            zeros = bytes(READ_BYTES)
            for start in range(0, size_bytes, READ_BYTES):
                part = room[start : start + READ_BYTES]
                part[:] = zeros[: len(part)]
                self._spool.drop_pages()
        return room

    def hash(self) -> Sha256:
        """Return the digest of the bytes as they are now, read once more. It blocks."""
        self._digest = hashlib.sha256()
        for piece in self.pieces():
            self._digest.update(piece)
        return self.sha256()

    def _make_file(self, *, is_prepared: bool = False) -> None:
        """Move from memory to the disk, unless it is there already."""
        if self._descriptor >= 0:
            return
        self._hold(self._spool._blocking("made", self._spool._new_file), is_prepared=is_prepared)
        self._spool._blocking("written", lambda: write_at(self._descriptor, 0, self._held))
        self._held = bytearray()

    def _hold(self, descriptor: int, *, is_prepared: bool) -> None:
        self._descriptor = descriptor
        self._end.detach()
        self._end = weakref.finalize(self, _end_file, self._spool, self._key, descriptor, is_prepared)

    def _mapped(self, access: int) -> mmap.mmap:
        held = None if self._view is None else self._view()
        if held is None:
            held = self._spool._blocking("mapped", lambda: _Map(self._descriptor, self._size_bytes, access=access))
            held.file = self
            self._view = self._spool._views[self._key] = weakref.ref(held)
        return held


class _Map(mmap.mmap):
    """A mapped file, which stays as long as its bytes are used."""

    file: SpoolFile


def _end_file(spool: Spool, key: int, descriptor: int, is_prepared: bool) -> None:
    """Give a file up."""
    size_bytes = spool._give(key)
    if is_prepared:
        spool._retire(size_bytes, descriptor)
    else:
        os.close(descriptor)


def _close_all(spares: deque[tuple[int, int]]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            os.close(spares.popleft()[1])
