"""A spool: temporary files of one process, for bytes that need not be in memory.

Bytes are appended as they arrive, hashed on the way, and then mapped into memory read-only; or a file is mapped to be
written. A file goes when neither its `SpoolFile` nor a view of it is used any more, so that nobody deletes what another
one reads. Its folder is locked by its process and goes with it; folders of processes that ended otherwise are removed
by the next one. The rule kept here: no byte of an earlier process is read, but of `left` files; lack of room is said.
"""

import errno
import fcntl
import hashlib
import itertools
import logging
import mmap
import os
import secrets
import shutil
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from epochal.runtime.files.durable_files import PRIVATE_FOLDER_MODE, PRIVATE_MODE
from epochal.runtime.files.ended_files import EndedFiles
from epochal.runtime.files.file_room import allocate, write_at
from epochal.runtime.files.files_beside import FilesBeside
from epochal.runtime.files.left_files import LOCK_NAME, LeftFiles
from epochal.state.errors import SpoolFull
from epochal.state.model.tensors import Buffer
from epochal.state.wire import Sha256

log = logging.getLogger(__name__)

FOLDER_PREFIX = "epochal-spool-"
MAX_IN_MEMORY_BYTES = 64 * 1024
"""A file up to this size never reaches the disk."""
READ_BYTES = 1024 * 1024
"""A file is hashed in pieces of this size."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_DROPS_PAGES = hasattr(mmap, "MADV_DONTNEED")

T = TypeVar("T")


class Spool:
    """The temporary files of one process. Its folder is made when the first file needs it.

    Args:
        parent: the folder in which this spool makes its own.
        max_bytes: maximum size of its files together; None for what the disk holds.
    """

    def __init__(self, parent: Path, max_bytes: int | None = None) -> None:
        self._parent = parent
        self._max_bytes = max_bytes
        self._folder: Path | None = None
        self._lock = -1
        self._opening = threading.Lock()
        self._numbers = itertools.count()
        self._sizes: dict[int, int] = {}
        """Size of each file; each entry is changed as a whole, by the one thread that writes the file or drops it."""
        self._views: dict[int, weakref.ref[mmap.mmap]] = {}
        self._ended = EndedFiles()
        self.left = LeftFiles()
        self._beside_bytes = 0
        """The most that files beside the spool take, which `max_bytes` bounds too."""

    @property
    def parent(self) -> Path:
        """The folder in which this spool makes its own."""
        return self._parent

    @property
    def folder(self) -> Path:
        """This spool's own folder, made if need be; other files in it go with it. Raise `SpoolFull` if it cannot be."""
        self.open()
        assert self._folder is not None
        return self._folder

    @property
    def used_bytes(self) -> int:
        """Size of all files."""
        return sum(list(self._sizes.values()))

    def file(self) -> "SpoolFile":
        """Return a new, empty file."""
        return SpoolFile(self)

    def left_file(self, content: str, size_bytes: int) -> "SpoolFile | None":
        """Return the file of this size that an earlier process left (`LeftFiles.claim`), or None.

        It blocks. Its bytes are to be compared with digests before they are used. Raises `SpoolFull`.
        """
        path = self._blocking("looked at", lambda: self.left.claim(self.folder, content, size_bytes))
        return None if path is None else SpoolFile(self).continued(path, size_bytes)

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

    def check_room(self, needed_bytes: int, purpose: str, beside: FilesBeside | None = None) -> None:
        """Raise `SpoolFull` unless the spool, and the files beside it, can hold so many bytes in all.

        Args:
            needed_bytes: size of all files of the spool together, of which some may be held already.
            purpose: says what they are.
            beside: other files of the process, which `max_bytes` bounds too, from now on.
        """
        lack, needs, missing_bytes = None, purpose, 0
        if beside is not None:
            self._beside_bytes, needs = beside.needed_bytes, f"{purpose}, with {beside.in_words},"
            missing_bytes, lack = self._blocking("looked at", partial(beside.room, self._folder or self._parent))
        total_bytes = needed_bytes + self._beside_bytes
        needs = f"{needs} needs {total_bytes} bytes of spool"
        if self._max_bytes is not None and total_bytes > self._max_bytes:
            raise SpoolFull(f"{needs}; [client] spool_bytes is {self._max_bytes}", needed_bytes=total_bytes)
        if needed_bytes + missing_bytes > self._available_bytes():
            self.settle()
            if needed_bytes + missing_bytes > (available_bytes := self._available_bytes()):
                lack = f"the disk of {self._parent} has {available_bytes}"
        if lack is not None:
            advice = "make room there, or choose another folder with --spool"
            raise SpoolFull(f"{needs}; {lack}: {advice}", needed_bytes=total_bytes)

    def _available_bytes(self) -> int:
        free_bytes = self._blocking("looked at", lambda: shutil.disk_usage(self._folder or self._parent).free)
        return free_bytes + self.used_bytes + self.left.unclaimed_bytes

    def settle(self) -> None:
        """Wait until the files that have ended so far are removed; bounded."""
        self._ended.settle()

    def drop_pages(self) -> None:
        """Give the pages of mapped files back to the system, which counts them as this process's memory meanwhile.

        They stay in its cache, and come back when they are used.
        """
        for view in list(self._views.values()):
            found = view()
            if found is not None and _DROPS_PAGES:
                found.madvise(mmap.MADV_DONTNEED)

    def open(self) -> None:
        """Make the folder, and remove those of processes that have ended.

        Raises:
            SpoolFull: the folder cannot be made.
        """
        with self._opening:
            if self._folder is None:
                self._folder = self._blocking("made", self._make_folder)
                self._ended.start()

    def close(self) -> None:
        """Remove the folder with its files. Views of them stay valid."""
        with self._opening:
            self._ended.close()
            if self._folder is not None:
                self.left.remove(self._folder)
                os.close(self._lock)
                self._folder = None

    def _make_folder(self) -> Path:
        self._parent.mkdir(parents=True, exist_ok=True)
        stale = list(self._parent.glob(f"{FOLDER_PREFIX}*"))
        while True:  # another process may remove the folder before it is locked
            folder = self._parent / f"{FOLDER_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
            folder.mkdir(PRIVATE_FOLDER_MODE)
            try:
                self._lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, PRIVATE_MODE)
            except FileNotFoundError:
                continue
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if os.fstat(self._lock).st_nlink:
                self.left.take_over(stale, folder)
                return folder
            os.close(self._lock)

    def _new_file(self) -> tuple[int, Path]:
        """Return an empty file, open, and its path."""
        path = self.folder / str(next(self._numbers))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        return self._blocking("made", lambda: os.open(path, flags, PRIVATE_MODE)), path

    def _blocking(self, done: str, work: Callable[[], T]) -> T:
        """Return what blocking work returns; raise its `OSError` as `SpoolFull`.

        If the disk is full it is repeated once, after the files that have ended are removed.
        """
        try:
            try:
                return work()
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self.settle()
                return work()
        except OSError as error:
            reason = error.strerror or str(error)
            raise SpoolFull(
                f"a spool file in {self._parent} cannot be {done}: {reason}; it holds {self.used_bytes} bytes. Make "
                "room there, or choose another folder with --spool"
            ) from error

    def _take(self, key: int, size_bytes: int, *, at_least: bool = False) -> None:
        """Count a file with its new size; not less than what was counted before if it is `at_least`."""
        counted_bytes = self._sizes.get(key, 0)
        size_bytes = max(size_bytes, counted_bytes) if at_least else size_bytes
        added_bytes = size_bytes - counted_bytes
        own_bytes = None if self._max_bytes is None else self._max_bytes - self._beside_bytes
        if own_bytes is not None and self.used_bytes + added_bytes > own_bytes:
            total_bytes = self.used_bytes + added_bytes + self._beside_bytes
            raise SpoolFull(f"the spool would hold {total_bytes} bytes; [client] spool_bytes is {self._max_bytes}")
        self._sizes[key] = size_bytes

    def _give(self, key: int) -> None:
        self._sizes.pop(key, None)
        self._views.pop(key, None)


class SpoolFile:
    """One file of a spool: bytes in memory while they are few, else on disk. One thread at a time changes it.

    Reading parts of it (`Readable`) takes memory for those parts only.
    """

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._key = id(self)
        self._held = bytearray()
        self._descriptor = -1
        self.path: Path | None = None
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
        data = self._spool._blocking("read", lambda: os.pread(self._descriptor, stop - start, start))
        if len(data) < stop - start:
            raise SpoolFull(f"a spool file in {self._spool.parent} was cut short by somebody else")
        return data

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

    def prepared(self, size_bytes: int) -> memoryview:
        """Return room for so many bytes, mapped into memory to be written. The file must be empty before.

        The room is taken on the disk now, so that writing cannot fail later. `hash` is to be called afterwards.

        Raises:
            SpoolFull: there is no such room.
        """
        self._spool._take(self._key, size_bytes)
        self._make_file()
        self._spool._blocking("made", lambda: allocate(self._descriptor, size_bytes))
        self._size_bytes = size_bytes
        return memoryview(self._mapped(mmap.ACCESS_WRITE))

    def continued(self, path: Path, size_bytes: int) -> "SpoolFile":
        """Return this file, empty so far, with the bytes of one in the folder, which keeps its name as well."""
        self._spool._take(self._key, size_bytes)
        own = self._spool.folder / str(next(self._spool._numbers))
        self._spool._blocking("taken over", lambda: os.link(path, own))
        self._own(self._spool._blocking("opened", lambda: os.open(own, os.O_RDWR)), own)
        self._size_bytes = size_bytes
        return self

    def hash(self) -> Sha256:
        """Return the digest of the bytes as they are now, read once more. It blocks."""
        self._digest = hashlib.sha256()
        for piece in self.pieces():
            self._digest.update(piece)
        return self.sha256()

    def _make_file(self) -> None:
        """Move from memory to the disk, unless it is there already."""
        if self._descriptor >= 0:
            return
        self._own(*self._spool._new_file())
        self._spool._blocking("written", lambda: write_at(self._descriptor, 0, self._held))
        self._held = bytearray()

    def _own(self, descriptor: int, path: Path) -> None:
        self._descriptor, self.path = descriptor, path
        self._end.detach()
        self._end = weakref.finalize(self, _end_file, self._spool, self._key, descriptor, path)

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


def _end_file(spool: Spool, key: int, descriptor: int, path: Path) -> None:
    """Give a file up; it returns at once."""
    spool._give(key)
    spool._ended.end(descriptor, path)
