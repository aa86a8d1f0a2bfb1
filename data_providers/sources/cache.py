"""Keeps the blocks of a source on the disk, so that a second pass (or a second client) need not fetch them again.

Files are kept in aligned blocks, each a file of its own: the SHA-256 of every `CHUNK_BYTES`, then the block. Several
processes share a folder safely:

- a block is written under the folder's lock to one name, `incoming`, and renamed when it is complete, so that a killed
  process leaves at most this file, which is never read and which the next writer overwrites;
- a block is read without a lock, and its bytes are used only if the hashes of their chunks are right; otherwise it is
  deleted and fetched again. Only the chunks that are needed are read and hashed;
- the total size is counted under the lock in `total`; at the limit the least recently used blocks are deleted.

A block is named after the file's place, size, version and distinction, so that a changed file has other blocks. Within
a process, a block that is being fetched is not fetched again: whoever needs it too waits for it.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_providers.sources.protocol import ByteSource, SourceFile, Wanted, read_many
from state.errors import InvalidInput

BLOCK_BYTES = 256 * 1024
"""A miss fetches whole blocks: at most the sample's own bytes and two blocks."""
CHUNK_BYTES = 16 * 1024
"""What one hash covers: a read of less hashes this much."""
DEFAULT_CACHE_BYTES = 16 * 1024**3
MIN_CACHE_BYTES = 64 * BLOCK_BYTES
MAX_STRETCH_BLOCKS = 16
"""Maximum number of missing neighbouring blocks that are fetched as one range (4 MiB)."""
EVICT_TO_PERCENT = 90
USED_AGAIN_S = 60.0
"""A block's time of last use is not renewed before it is this old."""
_FORMAT = "2"
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
        block = bytearray(size_bytes)
        return bytes(block) if self.read_into(key, size_bytes, 0, memoryview(block)) else None

    def read_into(self, key: str, size_bytes: int, start: int, into: memoryview) -> bool:
        """Fill `into` with the block's bytes from `start` on and return True, or return False if they are not held.

        Args:
            key: of the block.
            size_bytes: of the whole block.
            start: the first byte's place in the block.
            into: where the bytes go; it may hold wrong ones if False is returned.
        """
        first, last = start // CHUNK_BYTES, -(-(start + len(into)) // CHUNK_BYTES)
        begin, end = first * CHUNK_BYTES, min(last * CHUNK_BYTES, size_bytes)
        head_bytes = _chunk_count(size_bytes) * _DIGEST_BYTES
        path = self._path(key)
        body = into if (begin, end) == (start, start + len(into)) else memoryview(bytearray(end - begin))
        try:
            held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            found = os.fstat(held)
            digests = os.pread(held, (last - first) * _DIGEST_BYTES, first * _DIGEST_BYTES)
            is_whole = found.st_size == head_bytes + size_bytes
            if is_whole and os.preadv(held, [body], head_bytes + begin) == len(body) and _digests_of(body) == digests:
                if time.time() - found.st_mtime > USED_AGAIN_S:
                    os.utime(held)
                if body is not into:
                    into[:] = body[start - begin : start - begin + len(into)]
                return True
        except OSError:
            return False
        finally:
            os.close(held)
        with contextlib.suppress(OSError):
            path.unlink()
        return False

    def put(self, key: str, block: bytes | memoryview) -> None:
        """Keep a block, as `put_all`."""
        self.put_all([(key, block)])

    def put_all(self, blocks: Iterable[tuple[str, bytes | memoryview]]) -> None:
        """Keep blocks by their keys. Errors of the disk are ignored: they cost only the caching."""
        hashed = [(key, block, _digests_of(memoryview(block))) for key, block in blocks]
        with contextlib.suppress(OSError), self._locked():
            new = [(self._path(key), block, digests) for key, block, digests in hashed if not self._path(key).exists()]
            size_bytes = sum(len(digests) + len(block) for _, block, digests in new)
            counted = (self._folder / _TOTAL).read_bytes()
            total = (int(counted) if counted.isdigit() else self._max_bytes) + size_bytes
            if total > self._max_bytes:
                total = self._make_room(size_bytes) + size_bytes
            self._write_total(total)
            incoming = self._folder / _INCOMING
            for path, block, digests in new:
                with incoming.open("wb") as file:
                    file.write(digests)
                    file.write(block)
                path.parent.mkdir(exist_ok=True)
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
        """Write the total over the old one. (A file that is cut first may be written to the disk at once.)"""
        counter = os.open(self._folder / _TOTAL, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.pwrite(counter, b"%020d" % max(total, 0), 0)
        finally:
            os.close(counter)


class _Piece(NamedTuple):
    """A part of one block that is wanted: from `start` in the block on, as much as `into` holds."""

    file: SourceFile
    number: int
    start: int
    into: memoryview


_BlockOf = tuple[str, int]
"""A block: the file's name, and the block's number."""


class CachedSource:
    """A `BatchedSource` that reads another one through a cache, and closes it."""

    def __init__(self, source: ByteSource, cache: BlockCache) -> None:
        self.location = source.location
        self.files = source.files
        self.fetched_bytes = 0
        """Number of bytes that were fetched from the source so far."""
        self._source = source
        self._cache = cache
        self._by_name = {file.name: file for file in source.files}
        self._coming: dict[_BlockOf, asyncio.Future[None]] = {}

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes, as `ByteSource.read_into`."""
        await self.read_many_into((Wanted(name, start, into),))

    async def read_many_into(self, wanted: Sequence[Wanted]) -> None:
        """Fill every destination, as `BatchedSource.read_many_into`; what is not held is fetched together."""
        pieces = [piece for one in wanted for piece in self._pieces(one)]
        while pieces:
            pieces = await asyncio.to_thread(self._not_held, pieces)
            mine = [piece for piece in pieces if _block_of(piece) not in self._coming]
            pieces = [piece for piece in pieces if _block_of(piece) in self._coming]
            others = {self._coming[_block_of(piece)] for piece in pieces}
            await self._fetch(mine)
            if others:
                await asyncio.wait(others)

    async def aclose(self) -> None:
        await self._source.aclose()

    def _pieces(self, wanted: Wanted) -> Iterator[_Piece]:
        """Yield the parts of a range, one for each block."""
        at, stop = wanted.start, wanted.start + len(wanted.into)
        while at < stop:
            number = at // BLOCK_BYTES
            end = min(stop, (number + 1) * BLOCK_BYTES)
            into = wanted.into[at - wanted.start : end - wanted.start]
            yield _Piece(self._by_name[wanted.name], number, at - number * BLOCK_BYTES, into)
            at = end

    def _not_held(self, pieces: Sequence[_Piece]) -> list[_Piece]:
        """Fill the pieces whose blocks are held, and return the others."""
        return [
            piece
            for piece in pieces
            if not self._cache.read_into(
                _key(piece.file, piece.number), _block_bytes(piece.file, piece.number), piece.start, piece.into
            )
        ]

    async def _fetch(self, pieces: Sequence[_Piece]) -> None:
        """Fetch the blocks of these pieces, fill the pieces, and keep the blocks."""
        if not pieces:
            return
        stretches = _stretches({_block_of(piece): piece.file for piece in pieces})
        coming = asyncio.get_running_loop().create_future()
        blocks = [(file.name, number) for file, numbers in stretches for number in numbers]
        self._coming.update(dict.fromkeys(blocks, coming))
        try:
            wanted = [_stretch_of(file, numbers) for file, numbers in stretches]
            await read_many(self._source, wanted)
            self.fetched_bytes += sum(len(one.into) for one in wanted)
            found: dict[_BlockOf, memoryview] = {}
            for (file, numbers), one in zip(stretches, wanted, strict=True):
                for number in numbers:
                    at = (number - numbers.start) * BLOCK_BYTES
                    found[file.name, number] = one.into[at : at + _block_bytes(file, number)]
            for piece in pieces:
                piece.into[:] = found[_block_of(piece)][piece.start : piece.start + len(piece.into)]
            keyed = [(_key(self._by_name[name], number), block) for (name, number), block in found.items()]
            await asyncio.to_thread(self._cache.put_all, keyed)
        finally:
            for block in blocks:
                del self._coming[block]
            coming.set_result(None)


def _block_of(piece: _Piece) -> _BlockOf:
    return piece.file.name, piece.number


def _stretches(blocks: dict[_BlockOf, SourceFile]) -> list[tuple[SourceFile, range]]:
    """Return blocks as stretches of neighbours, each of at most `MAX_STRETCH_BLOCKS`."""
    found: list[tuple[SourceFile, range]] = []
    for (name, number), file in sorted(blocks.items(), key=lambda block: block[0]):
        if found:
            last_file, last = found[-1]
            if last_file.name == name and last.stop == number and len(last) < MAX_STRETCH_BLOCKS:
                found[-1] = file, range(last.start, number + 1)
                continue
        found.append((file, range(number, number + 1)))
    return found


def _stretch_of(file: SourceFile, numbers: range) -> Wanted:
    """Return the bytes of neighbouring blocks, with a place for them."""
    begin, end = numbers.start * BLOCK_BYTES, min(numbers.stop * BLOCK_BYTES, file.size_bytes)
    return Wanted(file.name, begin, np.empty(end - begin, np.uint8).data)


def _chunk_count(size_bytes: int) -> int:
    return -(-size_bytes // CHUNK_BYTES)


def _digests_of(body: memoryview) -> bytes:
    """Return the SHA-256 of each chunk, one after the other."""
    chunks = range(0, len(body), CHUNK_BYTES)
    return b"".join(hashlib.sha256(body[at : at + CHUNK_BYTES]).digest() for at in chunks)


def _block_bytes(file: SourceFile, number: int) -> int:
    return min(BLOCK_BYTES, file.size_bytes - number * BLOCK_BYTES)


def _key(file: SourceFile, number: int) -> str:
    parts = (file.place, str(file.size_bytes), file.version, file.distinction, _FORMAT, str(BLOCK_BYTES), str(number))
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()
