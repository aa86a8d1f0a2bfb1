"""Reads a source through a cache on the disk, so that a second pass (or client) need not fetch its blocks again.

The rules kept here: a block of the cache is named after its file's place, size, version and distinction, so that a
changed file has other blocks; within a process, a block that is being fetched is not fetched again: a second reader
waits for it.
"""

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from epochal.data_providers.sources.byte_source import ByteSource, SourceFile, Wanted, read_many, stretches
from epochal.data_providers.sources.cache import BLOCK_BYTES, FORMAT, BlockCache

MAX_STRETCH_BLOCKS = 16
"""Maximum number of neighbouring blocks that are fetched as one range (4 MiB)."""


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
        self._names = {file.name: _name_of(file) for file in source.files}

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes, as `ByteSource.read_into`."""
        await self.read_many_into((Wanted(name, start, into),))

    async def read_many_into(self, wanted: Sequence[Wanted]) -> None:
        """Fill every destination, as `BatchedSource.read_many_into`; what is not held is fetched together."""
        pieces = [piece for one in wanted for piece in self._pieces(one)]
        while pieces:
            mine = [piece for piece in pieces if _block_of(piece) not in self._coming]
            pieces = [piece for piece in pieces if _block_of(piece) in self._coming]
            others = {self._coming[_block_of(piece)] for piece in pieces}
            with self._claimed({_block_of(piece) for piece in mine}):
                await self._fetch(await asyncio.to_thread(self._not_held, mine))
            if others:
                await asyncio.wait(others)

    @contextmanager
    def _claimed(self, blocks: set[_BlockOf]) -> Iterator[None]:
        """Let others wait for these blocks until the context ends."""
        coming = asyncio.get_running_loop().create_future()
        self._coming.update(dict.fromkeys(blocks, coming))
        try:
            yield
        finally:
            for block in blocks:
                del self._coming[block]
            coming.set_result(None)

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
                self._key(*_block_of(piece)), _block_bytes(piece.file, piece.number), piece.start, piece.into
            )
        ]

    def _key(self, name: str, number: int) -> str:
        key = self._names[name].copy()
        key.update(str(number).encode())
        return key.hexdigest()

    async def _fetch(self, pieces: Sequence[_Piece]) -> None:
        """Fetch the blocks of these pieces, fill the pieces, and keep the blocks."""
        if not pieces:
            return
        blocks: dict[str, set[int]] = {}
        for piece in pieces:
            blocks.setdefault(piece.file.name, set()).add(piece.number)
        wanted: list[tuple[range, Wanted]] = []
        for name, numbers in blocks.items():
            file = self._by_name[name]
            for stretch in stretches(numbers, MAX_STRETCH_BLOCKS):
                body = np.empty(_bytes_of(file, stretch), np.uint8).data
                wanted.append((stretch, Wanted(name, stretch.start * BLOCK_BYTES, body)))
        await read_many(self._source, [one for _, one in wanted])
        self.fetched_bytes += sum(len(one.into) for _, one in wanted)
        found: dict[_BlockOf, memoryview] = {}
        for stretch, one in wanted:
            for number in stretch:
                at = number * BLOCK_BYTES - one.start
                found[one.name, number] = one.into[at : at + BLOCK_BYTES]
        for piece in pieces:
            piece.into[:] = found[_block_of(piece)][piece.start : piece.start + len(piece.into)]
        await asyncio.to_thread(self._keep, found)

    def _keep(self, found: dict[_BlockOf, memoryview]) -> None:
        for (name, number), data in found.items():
            self._cache.put(self._key(name, number), data)


def _block_of(piece: _Piece) -> _BlockOf:
    return piece.file.name, piece.number


def _bytes_of(file: SourceFile, numbers: range) -> int:
    """Return the size of neighbouring blocks."""
    return min(numbers.stop * BLOCK_BYTES, file.size_bytes) - numbers.start * BLOCK_BYTES


def _block_bytes(file: SourceFile, number: int) -> int:
    return min(BLOCK_BYTES, file.size_bytes - number * BLOCK_BYTES)


def _name_of(file: SourceFile) -> "hashlib._Hash":
    """Return the hash that names the file's blocks, before a block's number."""
    parts = (file.place, str(file.size_bytes), file.version, file.distinction, FORMAT, str(BLOCK_BYTES), "")
    return hashlib.sha256("\x00".join(parts).encode())
