"""Files that are read by byte ranges, wherever they are: what formats, caches and providers are built on.

A source knows its files and brings exactly the bytes that it is asked for, retrying by itself within bounds. Sources
wrap each other: `VerifiedSource` checks hashes, `CachedSource` keeps what came on the disk.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from state.errors import DataError

MAX_CONCURRENT_READS = 8
"""Ranges of one request that are read side by side."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source.

    Attributes:
        name: unique within the source, `/` between folders; what files are sorted by.
        size_bytes: of the whole file.
        place: where exactly the file is, for messages and as a cache's key: a URL without credentials, say.
        version: what changes when the content does (an ETag, say); "" when the source cannot tell.
        distinction: what tells the file from others with the same place, where `version` does not.
    """

    name: str
    size_bytes: int
    place: str
    version: str = ""
    distinction: str = ""


class ByteSource(Protocol):
    """Files that can be read by byte ranges. Calls may overlap; an error leaves the source usable."""

    @property
    def location(self) -> str:
        """The place of the files, for messages."""
        ...

    @property
    def files(self) -> Sequence[SourceFile]:
        """Every file, in no particular order."""
        ...

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` (writable bytes) with the file's bytes from offset `start` on.

        Raises:
            SourceUnavailable: no answer within the source's own retries; retry later.
            CorruptData: the file changed after it was listed; do not retry.
            Rejected: the source refuses.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. A second call does nothing."""
        ...


async def read(source: ByteSource, name: str, start: int, stop: int) -> bytes:
    """The bytes `[start, stop)` of a file. Raises what `ByteSource.read_into` does."""
    data = bytearray(stop - start)
    await source.read_into(name, start, memoryview(data))
    return bytes(data)


async def run_bounded(job: Callable[[T], Awaitable[None]], items: Sequence[T], limit: int) -> None:
    """Runs the job on every item, at most `limit` at a time; the first data error ends all and is raised."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            await job(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(limit, len(items))):
                group.create_task(work())
    except BaseExceptionGroup as failed:
        data_errors, others = failed.split(DataError)
        if others is not None or data_errors is None:
            raise
        raise data_errors.exceptions[0] from None
