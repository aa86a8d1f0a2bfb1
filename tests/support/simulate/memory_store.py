"""The store of a run in memory: the real journal and notes over an SQLite database without a file or a thread.

Several coordinators may share one, each with a store of its own over the same `MemoryDatabase`.
"""

import asyncio
import contextlib
import copy
import sqlite3
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Self

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.store.blobs import (
    STREAM_BYTES,
    BytesOfBlob,
    OpenBlob,
    blob_not_found,
    check_content,
    check_growth,
    check_room,
    read_again,
)
from epochal.coordinator.store.files.folder import STORE_RETRY_S
from epochal.coordinator.store.replication import LEASE_S, Heartbeats, MeetingResult
from epochal.coordinator.store.run_blobs import RunBlobs
from epochal.coordinator.store.sql.database import Row, Statement
from epochal.coordinator.store.sql.journal import Journal
from epochal.coordinator.store.sql.notes import KEY, Notes
from epochal.coordinator.store.sql.recorded_blobs import RecordedBlobs
from epochal.coordinator.store.sql.schema import TABLES, hash_of_record, hash_of_snapshot
from epochal.coordinator.store.sql.sqlite import SqliteDatabase
from epochal.coordinator.store.store import Place, Store, StoreReader
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.clock import Clock
from epochal.runtime.worker_thread import InlineWorker
from epochal.state.wire import Sha256, sha256_hex

RUN = "run"
_FIRST_KEPT = bytes(32)
"""Stands for the hash that the first segment of a compacted journal follows."""


class MemoryDatabase(SqliteDatabase):
    """A database in memory, with the one run that all who share it serve.

    Attributes:
        appended: notified of each record.
    """

    def __init__(self) -> None:
        super().__init__(Path(":memory:"), "memory", writes=True)
        self._worker = InlineWorker()  # type: ignore[assignment]
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.appended = Broadcast()
        self._transact([Statement(sql) for sql in TABLES])

    def _transact(self, statements: Sequence[Statement]) -> list[list[Row]]:
        rows = super()._transact(statements)
        if any("INTO epochal_records" in statement.sql for statement in statements):
            self.appended.notify()
        return rows

    def rows(self, sql: str, **values: object) -> list[Row]:
        """Return the rows of one statement, now."""
        return super()._transact([Statement(sql, {"run": RUN, **values})])[0]

    @property
    def sequence(self) -> int:
        """Number of the last record; 0 before there is one."""
        return next((int(row[0]) for row in self.rows("SELECT sequence FROM epochal_runs")), 0)

    @property
    def segments(self) -> list[Segment]:
        """The journal's segments. Setting them writes the journal anew."""
        records: dict[int, list[JournalRecord]] = {}
        for segment, *record in self.rows(
            "SELECT segment, sequence, body, version FROM epochal_records ORDER BY sequence"
        ):
            records.setdefault(segment, []).append(JournalRecord(*record))
        found = self.rows("SELECT number, sequence, snapshot FROM epochal_segments ORDER BY number")
        return [
            Segment(number, Snapshot(sequence, body), tuple(records.get(number, ())))
            for number, sequence, body in found
        ]

    @segments.setter
    def segments(self, segments: list[Segment]) -> None:
        for table in ("runs", "segments", "records"):
            self.rows(f"DELETE FROM epochal_{table}")
        head = _FIRST_KEPT if segments[0].number else b""
        for segment in segments:
            at, body = segment.snapshot.sequence, segment.snapshot.body
            values = {"number": segment.number, "at": at, "previous": head, "body": body}
            own = hash_of_snapshot(head, at, body)
            self.rows(
                "INSERT INTO epochal_segments VALUES (:run, :number, :at, :previous, :body, :hash)", **values, hash=own
            )
            head = head or own
            for record in segment.records:
                head = hash_of_record(head, record.sequence, record.version, record.body)
                kept = {"at": record.sequence, "version": record.version, "body": record.body, "hash": head}
                self.rows(
                    "INSERT INTO epochal_records VALUES (:run, :at, :number, :version, :body, :hash)",
                    number=segment.number,
                    **kept,
                )
        last = segments[-1]
        sequence = last.records[-1].sequence if last.records else last.snapshot.sequence
        version = last.records[-1].version if last.records else 0
        self.rows(
            "INSERT INTO epochal_runs VALUES (:run, :sequence, :head, :version, :number, :at, 0, 0)",
            sequence=sequence,
            head=head,
            version=version,
            number=last.number,
            at=last.snapshot.sequence,
        )

    @property
    def blobs(self) -> dict[Sha256, bytes]:
        """The blobs that came with records."""
        found = self.rows("SELECT sha256, body FROM epochal_blobs")
        return {Sha256(digest.hex()): body for digest, body in found}

    def keep_blob(self, blob: bytes) -> None:
        """Keep a blob, now, as if it had come with a record."""
        values = {"digest": bytes.fromhex(sha256_hex(blob)), "size": len(blob), "body": blob}
        self.rows("INSERT INTO epochal_blobs VALUES (:run, :digest, :size, :body)", **values)

    def keep_note(self, name: str, value: bytes) -> None:
        """Keep a note, now."""
        self._transact([Notes(self, RUN).writing(name, value)])

    async def aclose(self) -> None:
        """Do nothing: others share it."""


class MemoryJournal(Journal):
    """The journal of one coordinator over a database in memory, or that of tests that look into it."""

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        self.database = database or MemoryDatabase()
        super().__init__(self.database, self.database, RUN)

    def reopened(self) -> Self:
        """Return the journal as another coordinator has it, or the next process: nothing of it is known."""
        found = copy.copy(self)
        Journal.__init__(found, self.database, self.database, RUN)
        return found

    @property
    def segments(self) -> list[Segment]:
        """All of its segments. Setting them writes the journal anew."""
        return self.database.segments

    @segments.setter
    def segments(self, segments: list[Segment]) -> None:
        self.database.segments = segments


class MemoryBlobs:
    """The `BlobStore` protocol over a dictionary, bounded by `max_total_bytes`."""

    def __init__(self, max_total_bytes: int) -> None:
        self._max_total_bytes = max_total_bytes
        self._blobs: dict[Sha256, bytes] = {}
        self.total_bytes = 0

    async def receive(self, sha256: Sha256, size_bytes: int, body: AsyncIterator[bytes], spare_bytes: int = 0) -> None:
        if sha256 in self._blobs:
            await read_again(body, size_bytes)
        else:
            await self._receive(sha256, size_bytes, body, spare_bytes)

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


class MemoryPlace:
    """The `Place` protocol of a run that nobody outside the process reads."""

    retry_s = STORE_RETRY_S

    def __init__(self) -> None:
        self._copies = 0
        self.state_files: list[str] = []

    @property
    def scratch(self) -> Path:
        return Path(tempfile.gettempdir())

    def clock(self, system: Clock) -> Clock:
        return system

    async def origin(self) -> None: ...

    async def is_served(self) -> bool:
        return False

    async def served_at(self) -> None: ...

    def note_address(self, url: str) -> None: ...

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
        self.state_files.append(text)

    async def check_room(self, size_bytes: int) -> None: ...

    async def aclose(self) -> None: ...


class MemoryStore(Store):
    """The store of one coordinator in memory.

    Args:
        max_blob_bytes: maximum size of all blobs together.
        journal: of this coordinator alone, over a database that others may share; None for a new one.
        private_key: the coordinator's; None before there is one.
        files: blobs that do not come with records; None for new ones.
    """

    journal: MemoryJournal
    place: MemoryPlace

    def __init__(
        self,
        max_blob_bytes: int,
        journal: MemoryJournal | None = None,
        private_key: bytes | None = None,
        files: MemoryBlobs | None = None,
    ) -> None:
        journal = journal or MemoryJournal()
        database = journal.database
        super().__init__((database, database), RUN, MemoryPlace(), "memory")
        self.journal = journal
        self.recorded_blobs = RecordedBlobs(database, journal, RUN)
        journal.blob_bytes.recounted(sum(map(len, database.blobs.values())))
        files = files or MemoryBlobs(max_blob_bytes)
        self.blobs = RunBlobs(self.recorded_blobs, files)
        if private_key is not None:
            database.keep_note(KEY, private_key)
        self._files = files

    @property
    def reader(self) -> StoreReader:
        """What reads it, for an audit."""
        return reader_of(self.journal.database, self._files, self.place)


def reader_of(database: MemoryDatabase, files: MemoryBlobs, place: Place | None = None) -> StoreReader:
    """Return what reads the run in a database in memory, with its other blobs."""
    return StoreReader(database, RUN, place or MemoryPlace(), "memory", files)


class MemoryMeetings:
    """The place where the coordinators of one run in memory meet."""

    def __init__(self) -> None:
        self.present: dict[object, tuple[float, Heartbeats]] = {}
        """When each coordinator was there, on the event loop's clock, and what it left."""
        self.lease: tuple[object, float] | None = None
        """The coordinator that ticks, and until when."""


class MemoryReplication:
    """The `Replication` protocol of one coordinator over meetings in memory, and a database that all share."""

    def __init__(self, meetings: MemoryMeetings, database: MemoryDatabase) -> None:
        self._meetings = meetings
        self._database = database

    async def news(self) -> AsyncGenerator[int | None, None]:
        while True:
            appended = self._database.appended.next
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
        return MeetingResult(meetings.lease[0] is self, self._database.sequence, others)

    async def leave(self) -> None:
        self._meetings.present.pop(self, None)
        if self._meetings.lease is not None and self._meetings.lease[0] is self:
            self._meetings.lease = None
