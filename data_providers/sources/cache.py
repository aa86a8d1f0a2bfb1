"""A folder of blocks of files, which several processes share.

Files are kept in aligned blocks; `REGION_BLOCKS` neighbours share one file of the cache, a *region*, because making a
file costs more than hashing a block. A region has a head, with the SHA-256 of every `CHUNK_BYTES` of its blocks and the
*slot* of each block; then the slots, in the order in which the blocks came. Several processes share a folder safely:

- a block is appended under the folder's lock: its bytes, then its hashes, last its slot. What a killed process leaves
  has no slot: it is never read, and takes room until the region is deleted;
- a block is read without a lock, and its bytes are used only if the hashes of their chunks are right; otherwise its
  slot is given up, and it is fetched again. Only the chunks that are needed are read and hashed;
- the total size is counted under the lock in `total`; at the limit the least recently used regions are deleted.
"""

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from epochal.state.errors import InvalidInput

BLOCK_BYTES = 256 * 1024
"""A miss fetches whole blocks: at most the sample's own bytes and two blocks."""
CHUNK_BYTES = 16 * 1024
"""Length of what one hash covers: a read of less hashes this much."""
REGION_BLOCKS = 16
"""Number of neighbouring blocks that share a file of the cache; as many are fetched as one range at most (4 MiB)."""
DEFAULT_CACHE_BYTES = 16 * 1024**3
MIN_CACHE_BYTES = 64 * BLOCK_BYTES
EVICT_TO_PERCENT = 90
USED_AGAIN_S = 60.0
"""A region's time of last use is not renewed before it is this old."""
MAX_SLOTS = 255
"""Maximum number of slots of a region: a slot's number is one byte, of which 0 means none."""
FORMAT = "3"
"""Version of the layout; a part of every key."""
_DIGEST_BYTES = 32
_BLOCK_DIGESTS_BYTES = BLOCK_BYTES // CHUNK_BYTES * _DIGEST_BYTES
_SLOTS_AT = REGION_BLOCKS * _BLOCK_DIGESTS_BYTES
_HEAD_BYTES = _SLOTS_AT + REGION_BLOCKS
_BODY_AT = 3 * 4096
_LOCK, _TOTAL = "lock", "total"


class CacheBlock(NamedTuple):
    """A block to be kept: the key of its region, its number in it, and its bytes."""

    key: str
    number: int
    data: memoryview


class _Hashed(NamedTuple):
    number: int
    data: memoryview
    digests: bytes


class BlockCache:
    """A folder of blocks with a limit in bytes, shared by any number of processes. Its methods block.

    Raises:
        InvalidInput: the folder cannot be used, or the limit is below `MIN_CACHE_BYTES`; the user's fault.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        if max_bytes < MIN_CACHE_BYTES:
            raise InvalidInput(f"a data cache of {max_bytes} bytes; allowed: {MIN_CACHE_BYTES} or more")
        self.folder = folder
        self.max_bytes = max_bytes
        self._root = str(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self._locked(), self._counter() as counter:
                _set_total(counter, sum(size for _, size, _ in self._entries()))
        except OSError as error:
            raise InvalidInput(f"data cache {folder}: {error.strerror or error}", path=str(folder)) from error

    def read_into(self, key: str, size_bytes: int, wanted: Sequence[tuple[int, memoryview]]) -> list[int]:
        """Fill the destinations with bytes of a region, and return the positions in `wanted` of those not held.

        Args:
            key: of the region.
            size_bytes: of the whole region, all of its blocks.
            wanted: places in the region, and where the bytes from there on go; each is in one block. A destination that
                is not filled may hold wrong bytes.
        """
        path = self._path(key)
        try:
            held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return list(range(len(wanted)))
        missing: list[int] = []
        damaged: list[int] = []
        try:
            head = os.pread(held, _HEAD_BYTES, 0)
            for position, (start, into) in enumerate(wanted):
                number = start // BLOCK_BYTES
                if len(head) < _HEAD_BYTES or not head[_SLOTS_AT + number]:
                    missing.append(position)
                elif not _read_block(held, head, size_bytes, start, into):
                    missing.append(position)
                    damaged.append(number)
            if time.time() - os.fstat(held).st_mtime > USED_AGAIN_S and len(missing) < len(wanted):
                os.utime(held)
        except OSError:
            return list(range(len(wanted)))
        finally:
            os.close(held)
        if damaged:
            _give_up(path, damaged)
        return missing

    def put_all(self, blocks: Iterable[CacheBlock]) -> None:
        """Keep blocks; those of a region together. Errors of the disk are ignored: they cost only the caching."""
        batch: list[tuple[str, list[_Hashed]]] = []
        count = 0
        with contextlib.suppress(OSError):
            for key, own in groupby(blocks, key=lambda block: block.key):
                hashed = [_Hashed(block.number, block.data, _digests_of(block.data)) for block in own]
                if count + len(hashed) > REGION_BLOCKS:
                    self._put(batch)
                    batch, count = [], 0
                batch.append((key, hashed))
                count += len(hashed)
            self._put(batch)

    def _put(self, batch: Sequence[tuple[str, Sequence[_Hashed]]]) -> None:
        """Append blocks to their regions, at most `REGION_BLOCKS` in all."""
        needed = sum(_BODY_AT + len(hashed) * BLOCK_BYTES for _, hashed in batch)
        with self._locked(), self._counter() as counter:
            text = os.pread(counter, 20, 0)
            total = int(text) if text.isdigit() else self.max_bytes
            if total + needed > self.max_bytes:
                total = self._make_room(needed)
            _set_total(counter, total + needed)  # for now: a process that is killed has counted what it wrote
            for key, hashed in batch:
                total += self._append(key, hashed, self.max_bytes - total)
            _set_total(counter, total)

    def _append(self, key: str, blocks: Sequence[_Hashed], most_bytes: int) -> int:
        """Append the blocks that a region does not hold, and return by how much it grew: at most `most_bytes`."""
        path = self._path(key)
        try:
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            os.mkdir(os.path.dirname(path))
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(held).st_size
            head = os.pread(held, _HEAD_BYTES, 0).ljust(_HEAD_BYTES, b"\0")
            new = [block for block in blocks if not head[_SLOTS_AT + block.number]]
            slot = max(-(-(size - _BODY_AT) // BLOCK_BYTES), 0)
            at, new_bytes = _BODY_AT + slot * BLOCK_BYTES, sum(len(block.data) for block in new)
            grown = at + new_bytes - size
            if slot + len(new) > MAX_SLOTS:
                os.unlink(path)
                return -size
            if not new or grown > most_bytes:
                return 0
            if os.pwritev(held, [block.data for block in new], at) == new_bytes:
                for block in new:
                    os.pwrite(held, block.digests, block.number * _BLOCK_DIGESTS_BYTES)
                for slot_number, block in enumerate(new, start=slot + 1):
                    os.pwrite(held, bytes([slot_number]), _SLOTS_AT + block.number)
            return grown
        finally:
            os.close(held)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key[:2]}/{key}"

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """Yield time of last use, size, and path of every region."""
        with os.scandir(self._root) as folders:
            names = [folder.path for folder in folders if len(folder.name) == 2 and folder.is_dir()]
        for name in names:
            with os.scandir(name) as files:
                for file in files:
                    with contextlib.suppress(FileNotFoundError):  # another process has just deleted it
                        found = file.stat()
                        yield found.st_mtime, found.st_size, file.path

    def _make_room(self, needed_bytes: int) -> int:
        """Delete the least recently used regions, and return the size of those that are left."""
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        goal = self.max_bytes * EVICT_TO_PERCENT // 100 - needed_bytes
        for _, size, path in entries:
            if total <= goal:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        return total

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        held = os.open(f"{self._root}/{_LOCK}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    @contextlib.contextmanager
    def _counter(self) -> Iterator[int]:
        """Yield the open file of the total, which is written over: a file that is cut may be written out at once."""
        held = os.open(f"{self._root}/{_TOTAL}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            yield held
        finally:
            os.close(held)


def _set_total(counter: int, total: int) -> None:
    os.pwrite(counter, b"%020d" % max(total, 0), 0)


def _give_up(path: str, numbers: Sequence[int]) -> None:
    """Note that a region no longer holds these blocks."""
    with contextlib.suppress(OSError):
        held = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for number in numbers:
                os.pwrite(held, b"\0", _SLOTS_AT + number)
        finally:
            os.close(held)


def _read_block(held: int, head: bytes, size_bytes: int, start: int, into: memoryview) -> bool:
    """Fill `into` with bytes of one block of an open region, and return whether their hashes are right."""
    block = start // BLOCK_BYTES
    first, last = start // CHUNK_BYTES, -(-(start + len(into)) // CHUNK_BYTES)
    begin, end = first * CHUNK_BYTES, min(last * CHUNK_BYTES, size_bytes)
    is_whole = (begin, end) == (start, start + len(into))
    body = into if is_whole else memoryview(bytearray(end - begin))
    at = _BODY_AT + (head[_SLOTS_AT + block] - 1) * BLOCK_BYTES + begin - block * BLOCK_BYTES
    if os.preadv(held, [body], at) != len(body):
        return False
    if _digests_of(body) != head[first * _DIGEST_BYTES : last * _DIGEST_BYTES]:
        return False
    if not is_whole:
        into[:] = body[start - begin : start - begin + len(into)]
    return True


def _digests_of(body: memoryview) -> bytes:
    """Return the SHA-256 of each chunk, one after the other."""
    chunks = range(0, len(body), CHUNK_BYTES)
    return b"".join(hashlib.sha256(body[at : at + CHUNK_BYTES]).digest() for at in chunks)
