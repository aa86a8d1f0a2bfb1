"""Compressed files of a source, unpacked when they are needed into a spool, and read from there.

The rules kept here: a file is unpacked once, however many calls need it; its content never exceeds the size that an
index announces, or the spool's; the hashes that an index gives are compared before a byte of it is used. Only the first
bytes of a file are read without unpacking it whole, to find out its layout.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, NamedTuple, cast

from epochal.data_providers.protocol import CorruptData
from epochal.data_providers.sources.byte_source import ByteSource, SourceFile
from epochal.data_providers.sources.compression import Unpacked
from epochal.data_providers.sources.derived_files import DataSpool, SpooledFile, SpoolSink
from epochal.data_providers.sources.index_hashes import IndexHashes
from epochal.data_providers.sources.range_file import RangeFile, SourceThreads
from epochal.state.reader_limits import ALWAYS_UNPACKED_BYTES, MAX_EXPANSION

MAX_CONCURRENT_UNPACKS = 4
MAX_PREFIX_BYTES = 1024**2
"""Maximum number of first bytes that are read from a file that is not unpacked yet."""
_PART_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A compressed file of a source.

    Attributes:
        name: of the unpacked file.
        packed: the compressed one.
        compression: from `compression_of` or `known_compression`.
        size_bytes: of the unpacked file; None if nobody says it.
        packed_hashes, hashes: hexadecimal hashes by algorithm, of the packed and of the unpacked file.
    """

    name: str
    packed: SourceFile
    compression: str
    size_bytes: int | None = None
    packed_hashes: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)


def spool_key(file: SourceFile, made: str) -> str:
    """Return the name in a spool of what is made of a file; another version of the file has another one."""
    parts = (made, file.place, file.name, str(file.size_bytes), file.version, file.distinction)
    return hashlib.sha256("\x00".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


class Unpacker:
    """Unpacks files of a source, which it does not close, into a spool, which it closes."""

    def __init__(self, source: ByteSource, spool: DataSpool) -> None:
        self.spool = spool
        self._source = source
        self._reader = SourceThreads(MAX_CONCURRENT_UNPACKS)
        self._locks: dict[str, asyncio.Lock] = {}

    async def whole(self, file: PackedFile) -> SpooledFile:
        """Return the unpacked file.

        Raises:
            CorruptData: it is damaged, or contradicts its size or its hashes; the fault of the data's owner.
            Rejected: it is larger than the spool may be.
            InvalidInput: a package that its compression needs is not installed.
            SourceUnavailable: the source, or this machine's disk, does not answer; retry.
        """
        key = spool_key(file.packed, f"unpacked/v1/{file.compression}")
        async with self._locks.setdefault(key, asyncio.Lock()):
            held = await self._reader.run(lambda: self.spool.get(key))
            if held is not None and file.size_bytes in (None, held.size_bytes):
                return held
            place = file.packed.place
            hashes = _Hashes(IndexHashes(file.packed_hashes, place), IndexHashes(file.hashes, f"{place}, unpacked,"))
            ranges = RangeFile(self._source, file.packed, in_order=True, hashes=[hashes.packed])
            return await self._reader.run(
                lambda: self.spool.put(key, file.packed.place, lambda sink: _unpack(ranges, file, hashes, sink))
            )

    async def prefix(self, file: PackedFile, size_bytes: int) -> bytes:
        """Return the first bytes of the unpacked file, fewer if it is shorter. Raises what `whole` raises."""
        ranges = RangeFile(self._source, file.packed)

        def first() -> bytes:
            reader = Unpacked(cast("BinaryIO", ranges), file.compression, file.packed.place)
            found = bytearray()
            try:
                while len(found) < size_bytes and (part := reader.read(size_bytes - len(found))):
                    found += part
            finally:
                reader.close()
            return bytes(found)

        return await self._reader.run(first)

    def close(self) -> None:
        """Let nothing more be unpacked, and drop the spool's files."""
        self._reader.close()
        self.spool.close()


def _unpack(ranges: RangeFile, file: PackedFile, hashes: "_Hashes", sink: SpoolSink) -> None:
    most_bytes = max(ALWAYS_UNPACKED_BYTES, MAX_EXPANSION * file.packed.size_bytes)
    place = file.packed.place
    reader = Unpacked(cast("BinaryIO", ranges), file.compression, place)
    try:
        while part := reader.read(_PART_BYTES):
            if file.size_bytes is not None and sink.size_bytes + len(part) > file.size_bytes:
                raise CorruptData(f"{place} unpacks to more than the {file.size_bytes} bytes of its index", place=place)
            if file.size_bytes is None and sink.size_bytes + len(part) > most_bytes:
                ratio = f"{MAX_EXPANSION} times its {file.packed.size_bytes} bytes"
                raise CorruptData(
                    f"{place} unpacks to more than {ratio}; unpack it yourself if that is meant", place=place
                )
            sink.write(part)
            hashes.unpacked.update(part)
        while ranges.read(_PART_BYTES):  # what follows the compressed data belongs to the hash
            continue
    finally:
        reader.close()
    if file.size_bytes not in (None, sink.size_bytes):
        raise CorruptData(f"{place} unpacks to {sink.size_bytes} bytes; its index says {file.size_bytes}", place=place)
    hashes.packed.compare()
    hashes.unpacked.compare()


class _Hashes(NamedTuple):
    """The hashes of one file, of its packed bytes and of what they hold."""

    packed: IndexHashes
    unpacked: IndexHashes


class UnpackedSource:
    """A `ByteSource` that shows compressed files of another one as they are unpacked. It closes the other one.

    Args:
        source: the other one.
        packed: the compressed files; each has a `size_bytes`. The packed ones are not shown.
        spool: where they are unpacked; closed too.
    """

    def __init__(self, source: ByteSource, packed: Sequence[PackedFile], spool: DataSpool) -> None:
        self.location = source.location
        self._source = source
        self._packed = {file.name: file for file in packed}
        self._unpacker = Unpacker(source, spool)
        hidden = {file.packed.name for file in packed} | set(self._packed)
        self.files: Sequence[SourceFile] = [
            *(file for file in source.files if file.name not in hidden),
            *(replace(file.packed, name=file.name, size_bytes=file.size_bytes or 0) for file in packed),
        ]
        self._held: set[str] = set()

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into`, as `ByteSource.read_into`. Also raises what `Unpacker.whole` raises."""
        file = self._packed.get(name)
        if file is None:
            await self._source.read_into(name, start, into)
        elif name not in self._held and start + len(into) <= MAX_PREFIX_BYTES < (file.size_bytes or 0):
            found = await self._unpacker.prefix(file, start + len(into))
            if len(found) != start + len(into):
                raise CorruptData(
                    f"{file.packed.place} unpacks to {len(found)} bytes; its index says {file.size_bytes}"
                )
            into[:] = memoryview(found)[start:]
        else:
            held = await self._unpacker.whole(file)
            self._held.add(name)
            await asyncio.to_thread(held.read_into, start, into)

    async def aclose(self) -> None:
        self._unpacker.close()
        await self._source.aclose()
