"""The journal of a run, to which one coordinator or several append.

The rule kept here: when `append` or `open_segment` returns, the record or snapshot survives a power failure; when it
raises `StoreBlocked`, the caller goes on as if nothing was kept, and may repeat the same call; when it raises another
`StoreFailed`, the caller assumes nothing and stops accepting messages.

Theory of operation. A run's row in `epochal_runs` says which record is the last one, and holds its hash. Appending is
one transaction of statements that do nothing unless the one before did: it moves the row on from the record that this
coordinator knows as the last, keeps the new record, and asks whether a record of this number and hash is kept. If
another one has appended first, or the database was taken back to an older state, the row is not moved, nothing is kept,
and `StoreConflict` is raised.

Where the answer to a transaction is lost, with the connection or the server, the same transaction is executed again, on
a new connection. Whichever of the two comes first moves the row, and the other finds the record. So it is never kept
twice, also if the first one is committed later still.

After a failover another server answers. Nothing is appended there before the journal was loaded again, which shows
whether it lacks the record that this coordinator knows as the last, and whether it may lack others.

Small blobs come with the record by which the run needs them, in the same transaction. Deleting some locks the run's row
and compares it, so it happens before the next record is kept, or not at all (`recorded_blobs.py`).
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.store.sql.database import (
    BULK_S,
    ROWS_AT_A_TIME,
    STATEMENT_S,
    Database,
    JournalDatabase,
    Row,
    Statement,
)
from epochal.coordinator.store.sql.history import JOURNAL_SIZE, FoundSegment, JournalReader, StoredProof
from epochal.coordinator.store.sql.schema import hash_of_record, hash_of_snapshot, hash_of_value
from epochal.state.errors import StoreBlocked, StoreConflict
from epochal.state.wire import Sha256

PASSING_S = 2.0
"""Maximum time for which a change is repeated while the database does not take it; then the run holds."""
PASSING_PAUSE_S = 0.05

_MOVED = "FROM epochal_runs WHERE run_id = :run AND sequence = :sequence AND head = :head"
_BEGIN = (
    """
    INSERT INTO epochal_runs (run_id, sequence, head, version, segment, opened_at, journal_bytes, changed_s)
    VALUES (:run, :sequence, :head, 0, 0, :sequence, :size, :now) ON CONFLICT DO NOTHING
    """,
    f"""
    INSERT INTO epochal_segments (run_id, number, sequence, previous, snapshot, hash)
    SELECT run_id, 0, :sequence, :previous, :body, :hash {_MOVED} ON CONFLICT DO NOTHING
    """,
)
_OPEN = (
    """
    UPDATE epochal_runs SET segment = segment + 1, opened_at = :sequence, journal_bytes = journal_bytes + :size
    WHERE run_id = :run AND sequence = :sequence AND head = :head AND opened_at < :sequence
    """,
    f"""
    INSERT INTO epochal_segments (run_id, number, sequence, previous, snapshot, hash)
    SELECT run_id, segment, :sequence, :previous, :body, :hash {_MOVED} AND opened_at = :sequence
    ON CONFLICT DO NOTHING
    """,
)
_APPEND = (
    """
    UPDATE epochal_runs SET sequence = :sequence, head = :head, version = :version,
      journal_bytes = journal_bytes + :size, changed_s = :now
    WHERE run_id = :run AND sequence = :sequence - 1 AND head = :previous
    """,
    f"""
    INSERT INTO epochal_records (run_id, sequence, segment, version, body, hash)
    SELECT run_id, sequence, segment, version, :body, :head {_MOVED} ON CONFLICT DO NOTHING
    """,
)
_KEEP_BLOB = f"""
INSERT INTO epochal_blobs (run_id, sha256, size_bytes, body)
SELECT run_id, :sha256, :size_bytes, :blob {_MOVED} ON CONFLICT DO NOTHING RETURNING size_bytes
"""
_KEPT_RECORD = """
SELECT run.journal_bytes FROM epochal_records kept JOIN epochal_runs run ON run.run_id = kept.run_id
WHERE kept.run_id = :run AND kept.sequence = :sequence AND kept.hash = :head
"""
_KEPT_SNAPSHOT = """
SELECT run.journal_bytes FROM epochal_segments kept JOIN epochal_runs run ON run.run_id = kept.run_id
WHERE kept.run_id = :run AND kept.sequence = :sequence AND kept.hash = :hash
"""
_LOCK = "UPDATE epochal_runs SET head = head WHERE run_id = :run"
"""Lets no record be appended before the end of the transaction."""
_DROP_BLOB = f"""
DELETE FROM epochal_blobs WHERE run_id = :run AND sha256 = :sha256 AND EXISTS (SELECT 1 {_MOVED}) RETURNING size_bytes
"""
_IS_LAST = f"SELECT 1 {_MOVED}"
_HASH_OF = "SELECT hash FROM epochal_records WHERE run_id = :run AND sequence = :sequence"
_KEEP_PROOF = """
INSERT INTO epochal_proofs (run_id, segment_count, body, hash) VALUES (:run, :count, :body, :hash)
ON CONFLICT (run_id, segment_count) DO UPDATE SET body = excluded.body, hash = excluded.hash
"""
_DROP_COVERED = (
    "DELETE FROM epochal_records WHERE run_id = :run AND segment < :count",
    "DELETE FROM epochal_segments WHERE run_id = :run AND number < :count",
    "DELETE FROM epochal_proofs WHERE run_id = :run AND segment_count < :count",
)
_COUNT = f"UPDATE epochal_runs SET journal_bytes = {JOURNAL_SIZE} WHERE run_id = :run RETURNING journal_bytes"
_TAIL = """
SELECT record.sequence, record.version, CASE WHEN record.sequence > :after THEN record.body END, record.hash,
  run.journal_bytes, run.sequence - run.opened_at
FROM epochal_runs run LEFT JOIN epochal_records record ON record.run_id = run.run_id AND record.sequence >= :after
WHERE run.run_id = :run ORDER BY record.sequence LIMIT :most
"""
"""Returns no body of the record that is known, which may be a megabyte: requests ask often."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The records that were appended after a known one.

    Attributes:
        records: all of them, in order.
        segment_records: number of records in the newest segment.
    """

    records: tuple[JournalRecord, ...]
    segment_records: int


class RecordedBytes:
    """Counts the sizes of blobs that are kept with records."""

    def __init__(self) -> None:
        self._kept = 0
        self._arriving = 0

    @property
    def total(self) -> int:
        """Bytes that are kept, and that arrive."""
        return self._kept + self._arriving

    def grew(self, by: int) -> None:
        """Note that so many bytes more are kept; less, if it is negative."""
        self._kept += by

    def recounted(self, kept: int) -> None:
        """Note how many bytes are kept."""
        self._kept = kept

    @contextlib.contextmanager
    def arriving(self, size_bytes: int) -> Iterator[None]:
        """Count bytes that arrive until the context is left."""
        self._arriving += size_bytes
        try:
            yield
        finally:
            self._arriving -= size_bytes


class Journal(JournalReader):
    """A journal that a coordinator appends to.

    Writing raises `StoreConflict`, and keeps nothing, if another coordinator has written meanwhile or the sequence does
    not follow. It raises `StoreBlocked` if the disk is full, a database does not answer, or the like. It raises
    `StoreFailed` if the data may not have been kept (failing fsync), and ever after.

    Args:
        writing: the connection that appends; nothing else waits for it.
        other: another one, for reading histories and for notes.
        run_id: the run.

    Attributes:
        blob_bytes: counts the blobs that come with records.
    """

    def __init__(self, writing: JournalDatabase, other: Database, run_id: str) -> None:
        super().__init__(other, run_id)
        self._writing = writing
        self.blob_bytes = RecordedBytes()
        self._head: bytes | None = None
        """Hash of the last record that is known, or of the first snapshot; None before anything is."""
        self._sequence = 0
        self._journal_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Size of all segments."""
        return self._journal_bytes

    async def load(self) -> Segment | None:
        """Return the newest segment, or None if the run was never started. It says whether the journal went back."""
        may_lack_last = await self._writing.follow(self._database)
        found = await self._found(None)
        if found is None:
            return None
        segment = replace(found.segment, may_lack_last=may_lack_last, lacks_known=not await self._holds_known(found))
        self._sequence = segment.records[-1].sequence if segment.records else segment.snapshot.sequence
        self._head, self._journal_bytes = found.head, found.journal_bytes
        return segment

    async def _holds_known(self, newest: FoundSegment) -> bool:
        """Return whether the journal holds the last known record. A record that was compacted is taken for held."""
        segment = newest.segment
        if self._head is None:
            return True
        if self._sequence > segment.snapshot.sequence + len(segment.records):
            return False
        if self._sequence == segment.snapshot.sequence and segment.number == 0:
            return hash_of_snapshot(b"", self._sequence, segment.snapshot.body) == self._head
        rows = await self._rows(_HASH_OF, sequence=self._sequence)
        return not rows or bytes(rows[0][0]) == self._head

    async def tail(self, after: int) -> Tail | None:
        """Return what was appended after the record that this object read or appended last.

        Args:
            after: number of that record; 0 for the first snapshot.

        Returns:
            None if the journal does not go on from that record: it was taken back to an older state, or compacted. Then
            `load` must follow.
        """
        if self._head is None or after != self._sequence:
            return None
        found: list[JournalRecord] = []
        while True:
            wanted = {"run": self._run_id, "after": self._sequence, "most": ROWS_AT_A_TIME}
            try:
                (rows,) = await self._writing.transact(Statement(_TAIL, wanted))
            except StoreConflict:  # another server has taken over
                return None
            page = [row for row in rows if row[0] is not None]
            if self._sequence:  # the first snapshot is no record
                if not page or page[0][0] != self._sequence or bytes(page[0][3]) != self._head:
                    return None
                page = page[1:]
            for sequence, version, body, kept, _, _ in page:
                chained = hash_of_record(self._head, sequence, version, bytes(body))
                if sequence != self._sequence + 1 or chained != bytes(kept):
                    return None
                self._sequence, self._head = sequence, chained
                found.append(JournalRecord(sequence, bytes(body), version))
            if not page:
                self._journal_bytes, in_segment = rows[-1][4:] if rows else (0, 0)
                return Tail(tuple(found), in_segment)

    async def append(self, record: JournalRecord) -> None:
        """Keep one record durably; it must directly follow the last one."""
        if self._head is None or record.sequence != self._sequence + 1:
            raise StoreConflict(f"record {record.sequence} does not follow record {self._sequence}")
        head = hash_of_record(self._head, record.sequence, record.version, record.body)
        values = {
            **self._values(record.sequence, record.body),
            "previous": self._head,
            "head": head,
            "version": record.version,
        }
        blobs = [_blob_values(sha256, blob) for sha256, blob in record.blobs.items()]
        rows = await self._kept(
            *(Statement(sql, values) for sql in _APPEND),
            *(Statement(_KEEP_BLOB, values | blob) for blob in blobs),
            *self._writing.beside(record),
            Statement(_KEPT_RECORD, values),
        )
        if not rows[-1]:
            raise StoreConflict(f"record {record.sequence}: another coordinator has appended first")
        self._sequence, self._head, self._journal_bytes = record.sequence, head, int(rows[-1][0][0])
        first = len(_APPEND)
        self.blob_bytes.grew(sum(size for new in rows[first : first + len(blobs)] for (size,) in new))
        self._writing.note_rows(rows[first + len(blobs) : -1])

    async def open_segment(self, snapshot: Snapshot) -> None:
        """Start a segment with a snapshot of the run after the last record, of which there must be a new one."""
        previous = self._head or b""
        own = hash_of_snapshot(previous, snapshot.sequence, snapshot.body)
        values = self._values(snapshot.sequence, snapshot.body)
        values |= {"previous": previous, "hash": own, "head": previous or own}
        follows = self._head is None or snapshot.sequence == self._sequence
        change = _BEGIN if self._head is None else _OPEN
        if follows:
            rows = await self._kept(*(Statement(sql, values) for sql in (*change, _KEPT_SNAPSHOT)))
        if not follows or not rows[-1]:
            raise StoreConflict(f"a snapshot of record {snapshot.sequence} does not follow a new last record")
        self._sequence, self._head, self._journal_bytes = snapshot.sequence, previous or own, int(rows[-1][0][0])

    def _values(self, sequence: int, body: bytes) -> dict[str, object]:
        return {"run": self._run_id, "sequence": sequence, "body": body, "size": len(body), "now": time.time()}

    async def _kept(self, *statements: Statement) -> Sequence[Sequence[Row]]:
        """Execute a change that may be executed again; return the rows of its statements.

        Raises:
            StoreBlocked: the database did not take it for `PASSING_S`. If a transaction's answer is missing, it may
                have been made nevertheless: then the next change does not follow, and finds it.
            StoreConflict: another server has taken over.
            StoreFailed: the database refuses it.
        """
        until_s = asyncio.get_running_loop().time() + PASSING_S
        while True:
            try:
                return await self._writing.transact(*statements, is_repeatable=False)
            except StoreBlocked as blocked:
                if blocked.is_full or asyncio.get_running_loop().time() >= until_s:
                    raise
            await asyncio.sleep(PASSING_PAUSE_S)

    async def drop_blobs(self, digests: Sequence[Sha256], known: int) -> None:
        """Delete blobs by their digests, as `RecordedBlobs.drop` does."""
        values = {"run": self._run_id, "sequence": known, "head": self._head}
        rows: list[list[Row]] = [[]]
        if known == self._sequence:
            rows = await self._writing.transact(
                Statement(_LOCK, values),
                *(Statement(_DROP_BLOB, values | {"sha256": bytes.fromhex(sha256)}) for sha256 in digests),
                Statement(_IS_LAST, values),
            )
        if not rows[-1]:
            raise StoreConflict(f"record {known} is not the last one")
        self.blob_bytes.grew(-sum(size for dropped in rows[1:-1] for (size,) in dropped))

    async def keep_proof(self, proof: StoredProof) -> None:
        """Keep a proof durably. Raise `StoreFailed` if it is not kept; the journal goes on as it was."""
        kept = hash_of_value(f"proof {proof.segment_count}", proof.body)
        values = {"run": self._run_id, "count": proof.segment_count, "body": proof.body, "hash": kept}
        await self._change(values, STATEMENT_S, _KEEP_PROOF)

    async def drop_covered(self, segment_count: int) -> None:
        """Delete this many segments, from the first, and the proofs of fewer. May be called again after a failure.

        Raises:
            StoreFailed: they are not deleted; the journal goes on as it was.
        """
        await self._change({"run": self._run_id, "count": segment_count}, BULK_S, *_DROP_COVERED)

    async def _change(self, values: dict[str, object], limit_s: float, *sql: str) -> None:
        changing = (Statement(statement, values) for statement in (_LOCK, *sql, _COUNT))
        rows = await self._database.transact(*changing, limit_s=limit_s)
        if rows[-1]:
            self._journal_bytes = int(rows[-1][0][0])


def _blob_values(sha256: Sha256, blob: bytes) -> dict[str, object]:
    return {"sha256": bytes.fromhex(sha256), "size_bytes": len(blob), "blob": blob}
