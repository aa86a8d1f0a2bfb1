"""Compressed files of a source, unpacked when they are needed into a spool, and read from there.

The rules kept here: a file is unpacked once, however many calls need it; its content never exceeds `MAX_EXPANSION`
times its size, or the spool's.
"""

import asyncio
import hashlib
from dataclasses import dataclass
from typing import BinaryIO, cast

from epochal.data_providers.protocol import CorruptData
from epochal.data_providers.sources.byte_source import ByteSource, SourceFile
from epochal.data_providers.sources.compression import Unpacked
from epochal.data_providers.sources.derived_files import DataSpool, SpooledFile, SpoolSink
from epochal.data_providers.sources.range_file import RangeFile, SourceThreads
from epochal.state.reader_limits import ALWAYS_UNPACKED_BYTES, MAX_EXPANSION

MAX_CONCURRENT_UNPACKS = 4
_PART_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A compressed file of a source.

    Attributes:
        packed: as it is in the source.
        compression: from `compression_of`.
    """

    packed: SourceFile
    compression: str


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
            CorruptData: it is damaged, or unpacks to more than is allowed; the fault of the data's owner.
            Rejected: it is larger than the spool may be.
            InvalidInput: a package that its compression needs is not installed.
            SourceUnavailable: the source, or this machine's disk, does not answer; retry.
        """
        key = spool_key(file.packed, f"unpacked/v1/{file.compression}")
        async with self._locks.setdefault(key, asyncio.Lock()):
            held = await self._reader.run(lambda: self.spool.get(key))
            if held is not None:
                return held
            ranges = RangeFile(self._source, file.packed, in_order=True)
            return await self._reader.run(
                lambda: self.spool.put(key, file.packed.place, lambda sink: _unpack(ranges, file, sink))
            )

    def close(self) -> None:
        """Let nothing more be unpacked, and drop the spool's files."""
        self._reader.close()
        self.spool.close()


def _unpack(ranges: RangeFile, file: PackedFile, sink: SpoolSink) -> None:
    most_bytes = max(ALWAYS_UNPACKED_BYTES, MAX_EXPANSION * file.packed.size_bytes)
    place = file.packed.place
    reader = Unpacked(cast("BinaryIO", ranges), file.compression, place)
    try:
        while part := reader.read(_PART_BYTES):
            if sink.size_bytes + len(part) > most_bytes:
                ratio = f"{MAX_EXPANSION} times its {file.packed.size_bytes} bytes"
                raise CorruptData(
                    f"{place} unpacks to more than {ratio}; unpack it yourself if that is meant", place=place
                )
            sink.write(part)
    finally:
        reader.close()
