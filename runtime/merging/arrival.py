"""The beginning of a file that is still arriving: as far as its bytes were verified, they may be used."""

from collections.abc import AsyncIterator

from epochal.runtime.broadcast import Broadcast
from epochal.runtime.files.spool import READ_BYTES, SpoolFile


class Arrival:
    """How much of one file is there. One task notes what arrives, others wait for it, all on the event loop."""

    def __init__(self) -> None:
        self._file: SpoolFile | None = None
        self._count = 0
        self._size_bytes = 0
        self._changed = Broadcast()

    def advance(self, file: SpoolFile, verified_bytes: int, size_bytes: int) -> None:
        """Note that the first bytes of the file are there.

        Args:
            file: the same each time.
            verified_bytes: number of its first bytes that are there, no less than before.
            size_bytes: size that it will have; the same each time.
        """
        self._file, self._count, self._size_bytes = file, verified_bytes, size_bytes
        self._changed.notify()

    async def first(self, count: int) -> SpoolFile:
        """Return the file as soon as its first `count` bytes are there, or all if it has fewer."""
        while self._file is None or self._count < min(count, self._size_bytes):
            await self._changed.wait()
        return self._file

    async def size(self) -> int:
        """Return the size that the file will have, as soon as that is known."""
        await self.first(0)
        return self._size_bytes

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the file's bytes as they come."""
        place, size_bytes = 0, await self.size()
        while place < size_bytes:
            file = await self.first(place + 1)
            piece = file[place : min(place + READ_BYTES, self._count)]
            place += len(piece)
            yield piece
