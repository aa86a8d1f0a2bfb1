"""A run and its blobs in memory: for simulations, and for whoever wants a run that leaves nothing behind.

Both pass the same contract suites as the run directory and need no threads. Nothing here survives the process;
`MemoryStore.segments` is what a simulated restart would find.
"""

import asyncio
from collections.abc import AsyncIterator

from coordinator.store.blob_rules import STREAM_BYTES, blob_not_found, check_content, check_growth, check_room
from coordinator.store.protocol import JournalRecord, Segment, Snapshot
from state.errors import StoreConflict
from state.wire import Sha256, sha256_hex


class MemoryStore:
    """The `Store` protocol over a list of segments."""

    def __init__(self, segments: list[Segment] | None = None) -> None:
        self._segments = list(segments or [])
        self._appended = asyncio.Event()
        self.state_file = ""

    def segments(self) -> list[Segment]:
        """What a restart of the same run would find."""
        return list(self._segments)

    async def load(self) -> Segment | None:
        return self._segments[-1] if self._segments else None

    @property
    def _sequence(self) -> int:
        if not self._segments:
            return 0
        last = self._segments[-1]
        return last.records[-1].sequence if last.records else last.snapshot.sequence

    async def append(self, record: JournalRecord) -> None:
        if not self._segments or record.sequence != self._sequence + 1:
            raise StoreConflict(f"record {record.sequence} does not follow record {self._sequence}")
        last = self._segments[-1]
        self._segments[-1] = Segment(last.number, last.snapshot, (*last.records, record), 0)
        self._tell()

    async def open_segment(self, snapshot: Snapshot) -> None:
        if snapshot.sequence != self._sequence:
            raise StoreConflict(f"a snapshot of {snapshot.sequence} does not follow record {self._sequence}")
        self._segments.append(Segment(len(self._segments), snapshot, (), 0))
        self._tell()

    def _tell(self) -> None:
        self._appended.set()
        self._appended = asyncio.Event()

    async def save_state_file(self, text: str) -> None:
        self.state_file = text

    async def history(self) -> AsyncIterator[Segment]:
        for segment in list(self._segments):
            yield segment

    async def watch(self, after: int) -> int:
        while self._sequence <= after:
            await self._appended.wait()
        return self._sequence

    @property
    def journal_bytes(self) -> int:
        return sum(
            len(segment.snapshot.body) + sum(len(record.body) for record in segment.records)
            for segment in self._segments
        )

    async def aclose(self) -> None:
        self._tell()


class MemoryBlobs:
    """The `BlobStore` protocol over a dictionary, bounded by `max_total_bytes`."""

    def __init__(self, max_total_bytes: int) -> None:
        self._max_total_bytes = max_total_bytes
        self._blobs: dict[Sha256, bytes] = {}
        self._total_bytes = 0

    @property
    def total_bytes(self) -> int:
        return self._total_bytes

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        held = bytearray()
        async for piece in body:
            held += piece
            check_growth(len(held), size_bytes)
        check_content(sha256, size_bytes, len(held), sha256_hex(held))
        if sha256 in self._blobs:
            return
        check_room(self._total_bytes + len(held) + spare_bytes, self._max_total_bytes)
        self._blobs[sha256] = bytes(held)
        self._total_bytes += len(held)

    async def contains(self, sha256: Sha256) -> bool:
        return sha256 in self._blobs

    async def size(self, sha256: Sha256) -> int | None:
        return len(self._blobs[sha256]) if sha256 in self._blobs else None

    async def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        data = await self.read(sha256)
        for offset in range(start, stop, STREAM_BYTES):
            yield data[offset : min(offset + STREAM_BYTES, stop)]

    async def read(self, sha256: Sha256) -> bytes:
        if sha256 not in self._blobs:
            raise blob_not_found(sha256)
        return self._blobs[sha256]

    async def delete(self, sha256: Sha256) -> None:
        self._total_bytes -= len(self._blobs.pop(sha256, b""))

    async def held(self) -> frozenset[Sha256]:
        return frozenset(self._blobs)
