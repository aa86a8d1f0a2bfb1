"""Compressed files of a source, unpacked when they are needed into files without a name, and read from there.

The rules kept here: a file is unpacked once, however many calls need it; its content never exceeds `MAX_EXPANSION`
times its size, or the spool's limit. At that limit the least recently used files are dropped, and unpacked again when
they are needed.
"""

import io
import os
import time
from collections import OrderedDict
from typing import BinaryIO

from epochal.data_providers.protocol import CorruptData, Rejected, SourceUnavailable
from epochal.data_providers.sources.byte_source import ByteSource, SourceFile
from epochal.data_providers.sources.compression import Unpacked, compression_of
from epochal.data_providers.sources.range_file import SourceThreads, opened_in_order
from epochal.runtime.files.spool import Spool, SpoolFile
from epochal.runtime.keyed_locks import KeyedLocks
from epochal.state.errors import SpoolFull
from epochal.state.reader_limits import ALWAYS_UNPACKED_BYTES, MAX_EXPANSION

DEFAULT_UNPACKED_BYTES = 64 * 1024**3
MAX_CONCURRENT_UNPACKS = 4
MAX_READ_S, LOOK_S = 2.0, 0.002
"""Maximum time for which calls that read a dropped file are waited for, and between two looks whether it has gone."""
_PART_BYTES = 1024**2


class Unpacker:
    """Unpacks files of a source, which it does not close.

    Args:
        source: holds the compressed files.
        spool: takes what they unpack to.
    """

    def __init__(self, source: ByteSource, spool: Spool) -> None:
        self._source = source
        self._spool = spool
        self._reader = SourceThreads(MAX_CONCURRENT_UNPACKS)
        self._unpacking: KeyedLocks[str] = KeyedLocks()
        self._held: OrderedDict[str, SpoolFile] = OrderedDict()

    async def whole(self, file: SourceFile) -> SpoolFile:
        """Return the unpacked file.

        Raises:
            CorruptData: it is damaged, or unpacks to more than is allowed; the fault of the data's owner.
            Rejected: it is larger than the spool may be.
            InvalidInput: a package that its compression needs is not installed.
            SourceUnavailable: the source, or this machine's disk, does not answer; retry.
        """
        async with self._unpacking.of(file.name):
            if file.name not in self._held:
                packed = opened_in_order(self._source, file)
                self._held[file.name] = await self._reader.run(lambda: self._unpack(packed, file))
            self._held.move_to_end(file.name)
            return self._held[file.name]

    def close(self) -> None:
        """Begin nothing further, and drop what was unpacked."""
        self._reader.close()
        self._held.clear()

    def _unpack(self, packed: io.BufferedReader, file: SourceFile) -> SpoolFile:
        most_bytes = max(ALWAYS_UNPACKED_BYTES, MAX_EXPANSION * file.size_bytes)
        content = self._spool.file()
        reader = Unpacked(packed, compression_of(file.name) or "", file.place)
        try:
            while part := reader.read(_PART_BYTES):
                if content.size_bytes + len(part) > most_bytes:
                    ratio = f"{MAX_EXPANSION} times its {file.size_bytes} bytes"
                    raise CorruptData(
                        f"{file.place} unpacks to more than {ratio}; unpack it yourself if that is meant",
                        place=file.place,
                    )
                self._append(content, part, file.place)
        finally:
            reader.close()
        return content

    def _append(self, content: SpoolFile, part: bytes, place: str) -> None:
        """Add a part, and drop other files while there is no room for it."""
        most_bytes = self._spool.max_bytes
        if most_bytes is not None and content.size_bytes + len(part) > most_bytes:
            raise Rejected(
                f"{place} unpacks to more than {most_bytes} bytes, the limit for unpacked files; unpack it yourself, "
                "or give the client a larger --cache with --cache-bytes",
                place=place,
            )
        end_s = time.monotonic() + MAX_READ_S
        while True:
            try:
                content.append(part)
                return
            except SpoolFull as error:
                try:
                    self._held.popitem(last=False)
                except KeyError:  # what was dropped has its room until the last call has read it
                    if time.monotonic() > end_s:
                        raise SourceUnavailable(f"{place} cannot be unpacked: {error.message}", place=place) from error
                    time.sleep(LOOK_S)


def opened(content: SpoolFile) -> BinaryIO:
    """Return an unpacked file, open for reading from its beginning on."""
    if content.descriptor is None:
        return io.BytesIO(content.to_bytes())
    file = open(os.dup(content.descriptor), "rb")  # noqa: SIM115 - the caller closes it
    file.seek(0)
    return file
