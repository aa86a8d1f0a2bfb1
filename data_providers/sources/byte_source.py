"""The protocol of sources: files that are read by byte ranges. Formats, caches and providers are built on it.

A source lists its files and returns exactly the requested bytes, with retries within bounds. Sources wrap each other:
`VerifiedSource` checks hashes, `CachedSource` keeps the bytes on the disk.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from epochal.data_providers.encoding import TokenEncoding
from epochal.state.errors import DataError

MAX_CONCURRENT_READS = 8
"""Maximum number of ranges of one request that are read concurrently."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source.

    Attributes:
        name: unique within the source, with `/` between folders; files are sorted by it.
        size_bytes: of the whole file.
        place: the file's path or URL without credentials, for messages and as a cache's key.
        version: a value that changes with the content (an ETag, for example); "" if the source has none.
        distinction: distinguishes the file from others with the same place, if `version` does not.
        content: names the file's content, as a manifest does; "" if none lists it.
        encoding: how the file's tokens were made, if a manifest says it.
    """

    name: str
    size_bytes: int
    place: str
    version: str = ""
    distinction: str = ""
    content: str = ""
    encoding: TokenEncoding | None = None


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
            Rejected: the source refuses the request.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. A second call does nothing."""
        ...


@asynccontextmanager
async def closed_on_failure(source: ByteSource) -> AsyncIterator[None]:
    """Close the source if the context ends with an exception, a cancellation included; else its new owner does."""
    try:
        yield
    except BaseException:
        await source.aclose()
        raise


class Wanted(NamedTuple):
    """Bytes of a file to be read: as many as `into` (writable bytes) holds, from offset `start` on."""

    name: str
    start: int
    into: memoryview


@runtime_checkable
class BatchedSource(Protocol):
    """A `ByteSource` to which many ranges at a time cost less than each by itself."""

    async def read_many_into(self, wanted: Sequence[Wanted]) -> None:
        """Fill every destination. Raises what `ByteSource.read_into` raises, if one cannot be filled."""
        ...


async def read_many(source: ByteSource, wanted: Sequence[Wanted]) -> None:
    """Fill every destination, together if the source is a `BatchedSource`. Raises as `ByteSource.read_into`."""
    if len(wanted) > 1 and isinstance(source, BatchedSource):
        await source.read_many_into(wanted)
        return

    async def read_one(one: Wanted) -> None:
        await source.read_into(one.name, one.start, one.into)

    await run_bounded(read_one, wanted, MAX_CONCURRENT_READS)


def stretches(blocks: Iterable[int], most: int) -> list[range]:
    """Return the numbers of a file's blocks as stretches of neighbours, each of at most `most` blocks."""
    found: list[range] = []
    for number in sorted(blocks):
        if found and found[-1].stop == number and len(found[-1]) < most:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


async def read(source: ByteSource, name: str, start: int, stop: int) -> bytes:
    """Return the bytes `[start, stop)` of a file. Raises what `ByteSource.read_into` raises."""
    data = bytearray(stop - start)
    await source.read_into(name, start, memoryview(data))
    return bytes(data)


async def run_bounded(job: Callable[[T], Awaitable[None]], items: Sequence[T], limit: int) -> None:
    """Run the job on every item, at most `limit` at a time. The first data error cancels the rest and is raised."""
    if len(items) == 1:
        await job(items[0])
        return
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
