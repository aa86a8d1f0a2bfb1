"""Small blobs in packs: those that arrive together are written as one, and made durable by one sync.

```
blobs/packs/00000000-9f3c….pack     entry, entry, …; an entry is a blob's SHA-256 (32 bytes), its length (4 bytes,
                                    big-endian) and its bytes
```

A pack is appended to by one process, which holds a lock on it, and only until the next sweep, so that blobs that are
needed for about as long share a pack. It is deleted as a whole once none of its blobs is needed; until then it takes
all of its room. A start never goes on with an earlier process's pack. What a crash has left of the last write, of which
nobody was told, is ignored.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from epochal.coordinator.store.directory.arriving import in_thread
from epochal.coordinator.store.directory.byte_counts import ByteCounts
from epochal.runtime.files.durable_files import (
    PRIVATE_FOLDER_MODE,
    PRIVATE_MODE,
    Disk,
    make_folder,
    open_private,
    sync_folder,
)
from epochal.state.errors import StoreBlocked, StoreFailed
from epochal.state.wire import Sha256

PACKS_FOLDER = "packs"
MAX_PACKED_BYTES = 64 * 1024
"""Maximum size of a blob in a pack."""
MAX_PACK_BYTES = 16 * 1024 * 1024
"""Size from which on another pack is begun."""
MAX_WRITE_BYTES = 4 * 1024 * 1024
"""Maximum size of what is written at once, unless one blob is larger."""
_ALL_KNOWN = 1 << 62
_DIGEST_BYTES, _LENGTH_BYTES = 32, 4
HEAD_BYTES = _DIGEST_BYTES + _LENGTH_BYTES


@dataclass(frozen=True, slots=True)
class PackedPlace:
    """Where a blob lies: its pack, the offset of its first byte, and its size."""

    path: Path
    offset: int
    size_bytes: int


@dataclass(slots=True)
class _Pack:
    """A pack that is known: how much of it was looked at, and which of its blobs are held."""

    path: Path
    known_bytes: int = 0
    counted_bytes: int = 0
    held: set[Sha256] = field(default_factory=set)


@dataclass(slots=True)
class _Waiting:
    """A blob that waits to be written, and whoever waits for it."""

    sha256: Sha256
    data: bytes
    kept: asyncio.Future[None]


class PackedBlobs:
    """The packs of a folder of blobs. Only the event loop calls it, apart from `read`.

    Args:
        folder: of the blobs.
        disk: writes and syncs.
        counts: of the bytes of all blobs.
    """

    def __init__(self, folder: Path, disk: Disk, counts: ByteCounts) -> None:
        self._folder = folder / PACKS_FOLDER
        self._disk = disk
        self._counts = counts
        self._packs: dict[Path, _Pack] = {}
        self._places: dict[Sha256, PackedPlace] = {}
        self._waiting: deque[_Waiting] = deque()
        self._arriving: dict[Sha256, asyncio.Future[None]] = {}
        self._writing: asyncio.Task[None] | None = None
        self._lock: weakref.finalize[..., PackedBlobs] | None = None
        """Closes the file of the pack that is appended to, which is locked until then."""
        self._path = self._folder
        self._end = 0
        self._number = 0

    @property
    def counted_bytes(self) -> int:
        """Size of all blobs in packs that are there still, also of those that are not held any more."""
        return sum(pack.counted_bytes for pack in self._packs.values())

    async def look(self) -> None:
        """Take note of the blobs in packs that other processes wrote, and of packs that they deleted."""
        known = {path: pack.known_bytes for path, pack in self._packs.items()}
        if self._lock is not None:
            known[self._path] = _ALL_KNOWN
        for path, entries, end in await in_thread(_new_entries, self._folder, known):
            self._note(path, entries, end)
        gone = await in_thread(_missing, [path for path in self._packs if path != self._path])
        for path in gone:
            self._forget(self._packs[path])

    def find(self, sha256: Sha256) -> PackedPlace | None:
        """Return where a blob lies; None if it is in no pack that is known."""
        return self._places.get(sha256)

    def held(self) -> frozenset[Sha256]:
        """Return the digests of all blobs in packs that are known."""
        return frozenset(self._places)

    async def keep(self, sha256: Sha256, data: bytes) -> None:
        """Keep a blob durably, together with others that arrive meanwhile.

        Args:
            sha256: the digest of its bytes, computed by the caller.
            data: at most `MAX_PACKED_BYTES`.

        Raises:
            StoreFailed: it is not kept, or may not be.
        """
        if sha256 in self._places:
            return
        kept = self._arriving.get(sha256)
        if kept is None:
            kept = self._arriving[sha256] = asyncio.get_running_loop().create_future()
            kept.add_done_callback(_seen)
            self._waiting.append(_Waiting(sha256, data, kept))
            if self._writing is None:
                self._writing = asyncio.get_running_loop().create_task(self._write_all())
        await asyncio.shield(kept)

    async def delete(self, sha256: Sha256) -> None:
        """Hold a blob no longer. Its bytes are deleted with its pack."""
        place = self._places.pop(sha256, None)
        if place is not None:
            self._packs[place.path].held.discard(sha256)
            await self._drop_if_dead(place.path)

    async def begin_another(self) -> None:
        """Append the next blobs to a new pack, and delete the present one if none of its blobs is held."""
        while self._writing is not None:
            await asyncio.wait({self._writing})
        if self._close():
            await self._drop_if_dead(self._path)

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                group: list[_Waiting] = []
                group_bytes = 0
                while self._waiting and (not group or group_bytes + len(self._waiting[0].data) <= MAX_WRITE_BYTES):
                    group.append(self._waiting.popleft())
                    group_bytes += HEAD_BYTES + len(group[-1].data)
                await self._write(group, group_bytes)
        finally:
            self._writing = None

    async def _write(self, group: list[_Waiting], group_bytes: int) -> None:
        """Write a group and tell whoever waits for one of its blobs."""
        problem: BaseException | None = None
        try:
            await in_thread(self._append, [(waiting.sha256, waiting.data) for waiting in group])
            self._placed(group)
        except BaseException as error:
            problem = error
            if isinstance(error, StoreBlocked):
                error.needed_bytes = group_bytes
            elif isinstance(error, StoreFailed):
                self._close()  # what is in it after a failed sync is unknown
            if not isinstance(error, StoreFailed):
                raise
        finally:
            for waiting in group:
                del self._arriving[waiting.sha256]
                if waiting.kept.done():
                    continue
                if problem is None:
                    waiting.kept.set_result(None)
                else:
                    waiting.kept.set_exception(
                        problem if isinstance(problem, StoreFailed) else StoreFailed("the coordinator stops")
                    )

    def _append(self, blobs: list[tuple[Sha256, bytes]]) -> None:
        """Write and sync these blobs behind the others of the present pack; in a thread, and perhaps repeated."""
        if self._lock is None:
            self._open()
        heads = (bytes.fromhex(sha256) + len(data).to_bytes(_LENGTH_BYTES, "big") for sha256, data in blobs)
        pieces = b"".join(part for head, (_, data) in zip(heads, blobs, strict=True) for part in (head, data))
        with open_private(self._path) as file:
            file.seek(self._end)
            try:
                self._disk.write(file, pieces)
                self._disk.sync_data(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    file.truncate(self._end)
                raise

    def _open(self) -> None:
        make_folder(self._folder, self._disk, PRIVATE_FOLDER_MODE)
        path = self._folder / f"{self._number:08d}-{secrets.token_hex(8)}.pack"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            sync_folder(self._folder, self._disk)
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        self._path, self._end = path, 0
        self._lock = weakref.finalize(self, os.close, descriptor)
        self._number += 1

    def _placed(self, group: list[_Waiting]) -> None:
        entries = []
        for waiting in group:
            entries.append((waiting.sha256, self._end + HEAD_BYTES, len(waiting.data)))
            self._end += HEAD_BYTES + len(waiting.data)
        self._note(self._path, entries, self._end)
        if self._end >= MAX_PACK_BYTES:
            self._close()

    def _close(self) -> bool:
        """Append to the present pack no longer; return whether there was one."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock()
        return lock is not None

    def _note(self, path: Path, entries: list[tuple[Sha256, int, int]], end: int) -> None:
        pack = self._packs.setdefault(path, _Pack(path))
        self._number = max(self._number, _number_of(path) + 1)
        pack.known_bytes = max(pack.known_bytes, end)
        for sha256, offset, size_bytes in entries:
            before = self._places.get(sha256)
            if before is not None:
                self._packs[before.path].held.discard(sha256)
            self._places[sha256] = PackedPlace(path, offset, size_bytes)
            pack.held.add(sha256)
            pack.counted_bytes += size_bytes
            self._counts.named(None, size_bytes)

    def _forget(self, pack: _Pack) -> None:
        del self._packs[pack.path]
        for sha256 in pack.held:
            del self._places[sha256]
        self._counts.deleted(pack.counted_bytes)

    async def _drop_if_dead(self, path: Path) -> None:
        """Delete a pack of which no blob is held, unless somebody appends to it."""
        pack = self._packs.get(path)
        if pack is None or pack.held or (self._lock is not None and path == self._path):
            return
        if await in_thread(_removed, path, pack.known_bytes) and self._packs.get(path) is pack:
            self._forget(pack)


def read_packed(place: PackedPlace) -> bytes:
    """Return a blob's bytes. Raise `FileNotFoundError` if its pack was deleted, `StoreFailed` if it is shorter."""
    with place.path.open("rb") as file:
        file.seek(place.offset)
        data = file.read(place.size_bytes)
    if len(data) < place.size_bytes:
        raise StoreFailed(f"{place.path} is shorter than {place.offset + place.size_bytes} bytes")
    return data


def _number_of(path: Path) -> int:
    number = path.name.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() else 0


def _new_entries(folder: Path, known: dict[Path, int]) -> list[tuple[Path, list[tuple[Sha256, int, int]], int]]:
    """Return, for each pack that has grown, its entries beyond the known bytes, and where they end."""
    found = []
    for path in sorted(folder.glob("*.pack")):
        start = known.get(path, 0)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size > start:
                    entries = list(_entries(file, start))
                    end = entries[-1][1] + entries[-1][2] if entries else start
                    found.append((path, entries, end))
        except FileNotFoundError:
            continue
    return found


def _entries(file: BinaryIO, start: int) -> Iterator[tuple[Sha256, int, int]]:
    """Yield digest, offset and size of each whole blob from `start` on, up to the first that is not what it says."""
    file.seek(start)
    offset = start
    while len(head := file.read(HEAD_BYTES)) == HEAD_BYTES:
        size_bytes = int.from_bytes(head[_DIGEST_BYTES:], "big")
        if size_bytes > MAX_PACKED_BYTES:
            return
        data = file.read(size_bytes)
        if len(data) < size_bytes or hashlib.sha256(data).digest() != head[:_DIGEST_BYTES]:
            return
        offset += HEAD_BYTES
        yield Sha256(head[:_DIGEST_BYTES].hex()), offset, size_bytes
        offset += size_bytes


def _missing(paths: list[Path]) -> list[Path]:
    return [path for path in paths if not path.exists()]


def _removed(path: Path, known_bytes: int) -> bool:
    """Delete a pack, unless somebody appends to it or has done so; return whether it is gone."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if next(_entries(file, known_bytes), None) is not None:
                return False
            path.unlink()
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def _seen(kept: asyncio.Future[None]) -> None:
    """Take note of a failure that nobody waits for any more."""
    if not kept.cancelled():
        kept.exception()
