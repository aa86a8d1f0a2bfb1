"""A store in memory, for tests and simulations. It passes the same contract tests as the others."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.store.blobs import (
    STREAM_BYTES,
    BlobStore,
    BytesOfBlob,
    OpenBlob,
    blob_not_found,
    check_content,
    check_growth,
    check_room,
    read_again,
)
from epochal.coordinator.store.journal import STORE_RETRY_S, StoredProof, Tail
from epochal.coordinator.store.recorded_blobs import RecordedBlobs, RecordedBytes
from epochal.coordinator.store.replication import LEASE_S, Heartbeats, MeetingResult, Replication
from epochal.coordinator.store.run_blobs import RunBlobs
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.clock import Clock
from epochal.runtime.files.key_file import RAW_KEY_BYTES
from epochal.state.errors import StoreConflict
from epochal.state.wire import Sha256, sha256_hex


class MemoryJournal:
    """The `Journal` protocol over a list of segments, which a simulated restart finds again."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.appended = Broadcast()
        """Notified of each record."""
        self.blobs: dict[Sha256, bytes] = {}
        """Those that came with records."""
        self.blob_bytes = RecordedBytes()
        self.stored_proofs: dict[int, bytes] = {}
        """The body of each proof, by the number of segments that it covers."""
        self.stored_history: bytes | None = None

    @property
    def size_bytes(self) -> int:
        proofs = sum(map(len, self.stored_proofs.values()))
        snapshots = sum(len(segment.snapshot.body) for segment in self.segments)
        return proofs + snapshots + sum(len(record.body) for segment in self.segments for record in segment.records)

    async def load(self) -> Segment | None:
        return self.segments[-1] if self.segments else None

    async def tail(self, after: int) -> Tail | None:
        records = tuple(record for segment in self.segments for record in segment.records if record.sequence > after)
        if records[:1] and records[0].sequence != after + 1:
            return None
        return Tail(records, len(self.segments[-1].records)) if after <= self.sequence else None

    @property
    def sequence(self) -> int:
        """Number of the last record. There must be a segment."""
        last = self.segments[-1]
        return last.records[-1].sequence if last.records else last.snapshot.sequence

    async def append(self, record: JournalRecord) -> None:
        if not self.segments or record.sequence != self.sequence + 1:
            raise StoreConflict(f"record {record.sequence} does not follow the last one")
        last = self.segments[-1]
        self.segments[-1] = Segment(last.number, last.snapshot, (*last.records, record))
        self.blob_bytes.grew(sum(len(data) for sha256, data in record.blobs.items() if sha256 not in self.blobs))
        self.blobs |= record.blobs
        self.appended.notify()

    async def open_segment(self, snapshot: Snapshot) -> None:
        if self.segments and not (self.segments[-1].records and snapshot.sequence == self.sequence):
            raise StoreConflict(f"a snapshot of record {snapshot.sequence} does not follow the last record")
        number = self.segments[-1].number + 1 if self.segments else 0
        self.segments.append(Segment(number, snapshot, ()))

    async def proofs(self) -> tuple[StoredProof, ...]:
        return tuple(StoredProof(count, body) for count, body in sorted(self.stored_proofs.items()))

    async def problems(self) -> tuple[str, ...]:
        """Return nothing: memory does not fail."""
        return ()

    async def newest_segment(self) -> int | None:
        return self.segments[-1].number if self.segments else None

    async def keep_proof(self, proof: StoredProof) -> None:
        self.stored_proofs[proof.segment_count] = proof.body

    async def kept_history(self) -> bytes | None:
        return self.stored_history

    async def keep_history(self, body: bytes) -> None:
        self.stored_history = body

    async def drop_covered(self, segment_count: int) -> None:
        self.segments = [segment for segment in self.segments if segment.number >= segment_count]
        self.stored_proofs = {count: body for count, body in self.stored_proofs.items() if count >= segment_count}

    async def history(self, start: int | None = None) -> AsyncGenerator[Segment, None]:
        first = max(self.stored_proofs, default=0) if start is None else start
        for segment in list(self.segments):
            if segment.number >= first:
                yield segment


class MemoryBlobs:
    """The `BlobStore` protocol over a dictionary, bounded by `max_total_bytes`."""

    def __init__(self, max_total_bytes: int) -> None:
        self._max_total_bytes = max_total_bytes
        self._blobs: dict[Sha256, bytes] = {}
        self.total_bytes = 0

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        if sha256 not in self._blobs:
            await self._receive(sha256, size_bytes, body, spare_bytes)
            return
        await read_again(body, size_bytes)

    async def add(self, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> Sha256:
        return await self._receive(None, size_bytes, body, spare_bytes)

    async def _receive(
        self, wanted: Sha256 | None, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int
    ) -> Sha256:
        held = bytearray()
        async for piece in body:
            held += piece
            check_growth(len(held), size_bytes)
        sha256 = sha256_hex(held)
        check_content(wanted, size_bytes, len(held), sha256)
        if sha256 not in self._blobs:
            check_room(self.total_bytes + len(held) + spare_bytes, self._max_total_bytes)
            self._blobs[sha256] = bytes(held)
            self.total_bytes += len(held)
        return sha256

    async def size(self, sha256: Sha256) -> int | None:
        return len(self._blobs[sha256]) if sha256 in self._blobs else None

    async def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        data = self._held(sha256)
        for offset in range(start, stop, STREAM_BYTES):
            yield data[offset : min(offset + STREAM_BYTES, stop)]

    @contextlib.asynccontextmanager
    async def opened(self, sha256: Sha256) -> AsyncIterator[OpenBlob]:
        yield BytesOfBlob(self._held(sha256))

    def _held(self, sha256: Sha256) -> bytes:
        if sha256 not in self._blobs:
            raise blob_not_found(sha256)
        return self._blobs[sha256]

    async def delete(self, sha256: Sha256) -> None:
        self.total_bytes -= len(self._blobs.pop(sha256, b""))

    async def held(self) -> frozenset[Sha256]:
        return frozenset(self._blobs)

    async def recount(self) -> None:
        """Do nothing: nobody else adds or deletes blobs."""


class MemoryRecordedBlobs:
    """The `RecordedBlobs` protocol over a journal in memory."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    @property
    def total_bytes(self) -> int:
        return self._journal.blob_bytes.total

    def arriving(self, size_bytes: int) -> contextlib.AbstractContextManager[None]:
        return self._journal.blob_bytes.arriving(size_bytes)

    async def size(self, sha256: Sha256) -> int | None:
        return len(self._journal.blobs[sha256]) if sha256 in self._journal.blobs else None

    async def read(self, digests: Collection[Sha256]) -> Mapping[Sha256, bytes]:
        return {sha256: self._journal.blobs[sha256] for sha256 in digests if sha256 in self._journal.blobs}

    async def stream(self, sha256: Sha256, start: int, stop: int) -> AsyncIterator[bytes]:
        yield self._held(sha256)[start:stop]

    @contextlib.asynccontextmanager
    async def opened(self, sha256: Sha256) -> AsyncIterator[OpenBlob]:
        yield BytesOfBlob(self._held(sha256))

    def _held(self, sha256: Sha256) -> bytes:
        if sha256 not in self._journal.blobs:
            raise blob_not_found(sha256)
        return self._journal.blobs[sha256]

    async def held(self) -> frozenset[Sha256]:
        return frozenset(self._journal.blobs)

    async def drop(self, digests: Collection[Sha256], known: int) -> None:
        if known != self._journal.sequence:
            raise StoreConflict(f"record {known} is not the last one")
        for sha256 in digests:
            self._journal.blob_bytes.grew(-len(self._journal.blobs.pop(sha256, b"")))

    async def recount(self) -> None:
        """Do nothing: all coordinators count together."""


class MemoryKeys:
    """The `CoordinatorKeys` protocol over two attributes."""

    def __init__(self, private_key: bytes | None = None) -> None:
        self._private_key = private_key
        self._admin_token_sha256: bytes | None = None

    async def private_key(self) -> bytes | None:
        return self._private_key

    async def create_private_key(self) -> bytes:
        return self._private_key or await self.replace_private_key()

    async def replace_private_key(self) -> bytes:
        self._private_key = os.urandom(RAW_KEY_BYTES)
        return self._private_key

    async def admin_token_sha256(self) -> bytes | None:
        return self._admin_token_sha256

    async def create_admin_token_sha256(self, digest: bytes) -> bytes:
        self._admin_token_sha256 = self._admin_token_sha256 or digest
        return self._admin_token_sha256

    async def keep_admin_token_sha256(self, digest: bytes) -> None:
        self._admin_token_sha256 = digest


class MemoryMeetings:
    """The place where the coordinators of one run in memory meet."""

    def __init__(self) -> None:
        self.present: dict[object, tuple[float, Heartbeats]] = {}
        """When each coordinator was there, on the event loop's clock, and what it left."""
        self.lease: tuple[object, float] | None = None
        """The coordinator that ticks, and until when."""


class MemoryReplication:
    """The `Replication` protocol of one coordinator over meetings in memory, and a journal that all share."""

    def __init__(self, meetings: MemoryMeetings, journal: MemoryJournal) -> None:
        self._meetings = meetings
        self._journal = journal

    async def news(self) -> AsyncGenerator[int | None, None]:
        while True:
            appended = self._journal.appended.next
            yield None
            await appended.wait()

    async def meet(self, mine: Heartbeats) -> MeetingResult:
        now_s, meetings = asyncio.get_running_loop().time(), self._meetings
        meetings.present[self] = now_s, mine
        if meetings.lease is None or meetings.lease[0] is self or meetings.lease[1] < now_s:
            meetings.lease = self, now_s + LEASE_S
        others = tuple(
            left for other, (at_s, left) in meetings.present.items() if other is not self and at_s > now_s - LEASE_S
        )
        sequence = self._journal.sequence if self._journal.segments else 0
        return MeetingResult(meetings.lease[0] is self, sequence, others)

    async def leave(self) -> None:
        self._meetings.present.pop(self, None)
        if self._meetings.lease is not None and self._meetings.lease[0] is self:
            self._meetings.lease = None


class MemoryStore:
    """The `Store` protocol in memory. Several may share one journal, as coordinators share a database.

    Args:
        max_blob_bytes: maximum size of all blobs together.
        private_key: the coordinator's; None before there is one.
    """

    name = "memory"

    def __init__(
        self, max_blob_bytes: int, journal: MemoryJournal | None = None, private_key: bytes | None = None
    ) -> None:
        self.journal = journal or MemoryJournal()
        self.take_blobs(MemoryRecordedBlobs(self.journal), MemoryBlobs(max_blob_bytes))
        self.keys = MemoryKeys(private_key)
        self._copies = 0

    def take_blobs(self, recorded: RecordedBlobs, others: BlobStore) -> None:
        """Keep small blobs with the records of the journal, and all others there."""
        self.recorded_blobs: RecordedBlobs = recorded
        self.blobs = RunBlobs(recorded, others)

    is_backup = False
    replication: Replication | None = None
    retry_s = STORE_RETRY_S

    def clock(self, system: Clock) -> Clock:
        """Return the given one."""
        return system

    def note_address(self, url: str) -> None:
        """Do nothing: who reads the store is in the coordinator's process."""

    async def served_at(self) -> str | None:
        """Return None: nobody outside its process reads the store."""
        return None

    async def is_served(self) -> bool:
        """Return False: the lock keeps out all others."""
        return False

    async def note_served(self) -> None:
        """Do nothing: it is no backup."""

    @contextlib.asynccontextmanager
    async def sweeping(self) -> AsyncIterator[bool]:
        yield not self._copies

    @contextlib.asynccontextmanager
    async def copying(self) -> AsyncIterator[None]:
        self._copies += 1
        try:
            yield
        finally:
            self._copies -= 1

    async def save_state_file(self, text: str) -> None:
        """Do nothing: nobody would read it."""

    async def check_room(self, size_bytes: int) -> None:
        """Do nothing: memory that is full ends the process."""

    async def aclose(self) -> None:
        """Do nothing: there is no lock."""
