"""Keeps the blocks of a source on the disk, so that a second pass (or a second client) need not fetch them again.

Files are kept in aligned blocks, each a file of its own: 32 bytes of SHA-256, then the block. Several processes share a
folder safely:

- a block is written under the folder's lock to one name, `incoming`, and renamed when it is complete, so that a killed
  process leaves at most this file, which is never read and which the next writer overwrites;
- a block is read without a lock, and used only if its hash is right; otherwise it is deleted and fetched again;
- the total size is counted under the lock in `total`; at the limit the least recently used blocks are deleted.

A block is named after the file's place, size, version and distinction, so that a changed file has other blocks.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from data_providers.sources.protocol import MAX_CONCURRENT_READS, ByteSource, SourceFile, run_bounded
from state.errors import InvalidInput

BLOCK_BYTES = 256 * 1024
"""A miss fetches whole blocks: at most the sample's own bytes and two blocks."""
DEFAULT_CACHE_BYTES = 16 * 1024**3
MIN_CACHE_BYTES = 64 * BLOCK_BYTES
MAX_STRETCH_BLOCKS = 16
"""Maximum number of missing neighbouring blocks that are fetched as one range (4 MiB)."""
EVICT_TO_PERCENT = 90
_DIGEST_BYTES = 32
_INCOMING, _LOCK, _TOTAL = "incoming", "lock", "total"


class BlockCache:
    """A folder of blocks with a limit in bytes, shared by any number of processes. Its methods block.

    Raises:
        InvalidInput: the folder cannot be used, or the limit is below `MIN_CACHE_BYTES`; the user's fault.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        if max_bytes < MIN_CACHE_BYTES:
            raise InvalidInput(f"a data cache of {max_bytes} bytes; allowed: {MIN_CACHE_BYTES} or more")
        self.folder = self._folder = folder
        self.max_bytes = self._max_bytes = max_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._write_total(sum(size for size, _, _ in self._entries()))
        except OSError as error:
            raise InvalidInput(f"data cache {folder}: {error.strerror or error}", path=str(folder)) from error

    def get(self, key: str, size_bytes: int) -> bytes | None:
        """Return the block, or None if it is not held."""
        path = self._path(key)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        block = data[_DIGEST_BYTES:]
        if len(block) != size_bytes or hashlib.sha256(block).digest() != data[:_DIGEST_BYTES]:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return block

    def put(self, key: str, block: bytes | memoryview) -> None:
        """Keep a block. Errors of the disk are ignored: they cost only the caching."""
        path = self._path(key)
        with contextlib.suppress(OSError), self._locked():
            if path.exists():
                return
            size_bytes = _DIGEST_BYTES + len(block)
            counted = (self._folder / _TOTAL).read_bytes()
            total = (int(counted) if counted.isdigit() else self._max_bytes) + size_bytes
            if total > self._max_bytes:
                total = self._make_room(size_bytes) + size_bytes
            incoming = self._folder / _INCOMING
            with incoming.open("wb") as file:
                file.write(hashlib.sha256(block).digest())
                file.write(block)
            path.parent.mkdir(exist_ok=True)
            self._write_total(total)
            incoming.replace(path)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key

    def _entries(self) -> Iterator[tuple[int, float, Path]]:
        """Yield size, time of last use, and path of every block."""
        for path in self._folder.glob("??/*"):
            with contextlib.suppress(OSError):  # another process has just evicted it
                found = path.stat()
                yield found.st_size, found.st_mtime, path

    def _make_room(self, needed_bytes: int) -> int:
        """Delete the least recently used blocks, and return the size of those that are left."""
        entries = sorted(self._entries(), key=lambda entry: entry[1])
        total = sum(size for size, _, _ in entries)
        goal = self._max_bytes * EVICT_TO_PERCENT // 100 - needed_bytes
        for size, _, path in entries:
            if total <= goal:
                break
            path.unlink(missing_ok=True)
            total -= size
        return total

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self._folder / _LOCK).open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write_total(self, total: int) -> None:
        (self._folder / _TOTAL).write_bytes(b"%d" % total)


class CachedSource:
    """A `ByteSource` that reads another one through a cache, and closes it."""

    def __init__(self, source: ByteSource, cache: BlockCache) -> None:
        self.location = source.location
        self.files = source.files
        self.fetched_bytes = 0
        """Number of bytes that were fetched from the source so far."""
        self._source = source
        self._cache = cache
        self._by_name = {file.name: file for file in source.files}

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes, as `ByteSource.read_into`."""
        file, stop = self._by_name[name], start + len(into)
        first, last = start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)
        body = memoryview(bytearray(max(0, min(last * BLOCK_BYTES, file.size_bytes) - first * BLOCK_BYTES)))
        missing = await asyncio.to_thread(self._fill, file, first, last, body)

        async def fetch(blocks: range) -> None:
            begin, end = blocks.start * BLOCK_BYTES, min(blocks.stop * BLOCK_BYTES, file.size_bytes)
            found = body[begin - first * BLOCK_BYTES : end - first * BLOCK_BYTES]
            await self._source.read_into(name, begin, found)
            self.fetched_bytes += len(found)
            await asyncio.to_thread(self._keep, file, blocks, found)

        await run_bounded(fetch, missing, MAX_CONCURRENT_READS)
        into[:] = body[start - first * BLOCK_BYTES : stop - first * BLOCK_BYTES]

    async def aclose(self) -> None:
        await self._source.aclose()

    def _fill(self, file: SourceFile, first: int, last: int, body: memoryview) -> list[range]:
        """Copy the blocks that are held into `body`, and return the numbers of the others, neighbours together."""
        missing: list[range] = []
        for number in range(first, last):
            block = self._cache.get(_key(file, number), _block_bytes(file, number))
            if block is not None:
                at = (number - first) * BLOCK_BYTES
                body[at : at + len(block)] = block
            elif missing and missing[-1].stop == number and len(missing[-1]) < MAX_STRETCH_BLOCKS:
                missing[-1] = range(missing[-1].start, number + 1)
            else:
                missing.append(range(number, number + 1))
        return missing

    def _keep(self, file: SourceFile, blocks: range, found: memoryview) -> None:
        for number in blocks:
            at = (number - blocks.start) * BLOCK_BYTES
            self._cache.put(_key(file, number), found[at : at + _block_bytes(file, number)])


def _block_bytes(file: SourceFile, number: int) -> int:
    return min(BLOCK_BYTES, file.size_bytes - number * BLOCK_BYTES)


def _key(file: SourceFile, number: int) -> str:
    parts = (file.place, str(file.size_bytes), file.version, file.distinction, str(BLOCK_BYTES), str(number))
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()
