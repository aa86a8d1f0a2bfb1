"""The journal of a run in PostgreSQL, to which several coordinators append.

Theory of operation. A run's row in `epochal_runs` says which record is the last one, and holds its SHA-256. Appending
is one statement, and so one transaction: it moves the row on from the record that this coordinator knows as the last,
keeps the new record, and notifies the others. If another one has appended first, or the database was taken back to an
older state, the row is not moved, nothing is kept, and `StoreConflict` is raised.

Where the answer to a transaction is lost, with the connection or the server, the same statement is executed again, on a
new connection. Whichever of the two comes first moves the row, and the other does nothing; a record of this number with
this content is then known as the own one. So it is never kept twice, also if the first one is committed later still.

After a failover another server answers (`server_identity.py`). Nothing is appended there before the journal was loaded
again, which tells whether it lacks the record that this coordinator knows as the last, and whether it may lack others.
The first record that is kept there notes the server, in the same transaction.

Small blobs come with the record by which the run needs them, in the same transaction. Deleting some locks the run's row
and compares it, so it happens before the next record is kept, or not at all (`coordinator/store/recorded_blobs.py`).
"""

import asyncio
import json
from dataclasses import replace
from functools import partial
from typing import Any

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.store.journal import StoredProof, Tail
from epochal.coordinator.store.postgres.blob_statements import BLOBS_PLACE, DROP_BLOBS, with_blobs
from epochal.coordinator.store.postgres.database import BULK_S, Connection, Database
from epochal.coordinator.store.postgres.history import RECORDS_AT_A_TIME, PostgresHistory, head_of
from epochal.coordinator.store.postgres.limits import STATEMENT_S
from epochal.coordinator.store.postgres.names import channel_of
from epochal.coordinator.store.postgres.notes import HISTORY, PostgresNotes
from epochal.coordinator.store.postgres.server_identity import (
    IS_SYNCHRONOUS,
    NOTE,
    ServerIdentity,
    identity_of,
    parse_identity,
)
from epochal.coordinator.store.recorded_blobs import RecordedBytes
from epochal.state.errors import StoreBlocked, StoreConflict

PASSING_S = 2.0
"""Maximum time for which a change is repeated while the database does not take it; then the run holds."""
PASSING_PAUSE_S = 0.05

_BEGIN = """
WITH begun AS (
  INSERT INTO epochal_runs (run_id, sequence, head, version, segment, is_opening, journal_bytes)
  VALUES (%(run)s, %(sequence)s, %(head)s, 0, 0, true, %(size)s) ON CONFLICT DO NOTHING RETURNING run_id, journal_bytes
), kept AS (
  INSERT INTO epochal_segments (run_id, number, sequence, snapshot)
  SELECT run_id, 0, %(sequence)s, %(body)s FROM begun
)
SELECT journal_bytes FROM begun
"""
_APPEND = f"""
WITH moved AS (
  UPDATE epochal_runs SET sequence = %(sequence)s, head = %(head)s, version = %(version)s, is_opening = false,
    journal_bytes = journal_bytes + %(size)s, changed_at = clock_timestamp()
  WHERE run_id = %(run)s AND sequence = %(sequence)s - 1 AND head = %(before)s
  RETURNING run_id, segment, journal_bytes
), kept AS (
  INSERT INTO epochal_records (run_id, sequence, segment, version, body)
  SELECT run_id, %(sequence)s, segment, %(version)s, %(body)s FROM moved
)
SELECT journal_bytes, {IS_SYNCHRONOUS}, pg_notify(%(channel)s, %(news)s) FROM moved
"""
_APPEND_AND_NOTE = _APPEND.replace(
    "SELECT journal_bytes,",
    """, noted AS (
  INSERT INTO epochal_notes (run_id, name, value) SELECT run_id, %(note)s, %(server)s FROM moved
  ON CONFLICT (run_id, name) DO UPDATE SET value = excluded.value, noted_at = clock_timestamp()
)
SELECT journal_bytes,""",
)
_OPEN = """
WITH moved AS (
  UPDATE epochal_runs SET segment = segment + 1, is_opening = true, journal_bytes = journal_bytes + %(size)s
  WHERE run_id = %(run)s AND sequence = %(sequence)s AND head = %(before)s AND NOT is_opening
  RETURNING run_id, segment, journal_bytes
), kept AS (
  INSERT INTO epochal_segments (run_id, number, sequence, snapshot)
  SELECT run_id, segment, %(sequence)s, %(body)s FROM moved
)
SELECT journal_bytes FROM moved
"""
_KEPT_RECORD = """
SELECT run.journal_bytes FROM epochal_records record JOIN epochal_runs run USING (run_id)
WHERE run_id = %(run)s AND record.sequence = %(sequence)s AND record.body = %(body)s
"""
_KEPT_SNAPSHOT = """
SELECT run.journal_bytes FROM epochal_segments opened JOIN epochal_runs run USING (run_id)
WHERE run_id = %(run)s AND opened.sequence = %(sequence)s AND opened.snapshot = %(body)s
"""
_BODY_OF_RECORD = "SELECT body FROM epochal_records WHERE run_id = %(run)s AND sequence = %(sequence)s"
_KEEP_PROOF = """
WITH before AS (
  SELECT octet_length(body) AS size FROM epochal_proofs WHERE run_id = %(run)s AND segment_count = %(count)s
), kept AS (
  INSERT INTO epochal_proofs (run_id, segment_count, body) VALUES (%(run)s, %(count)s, %(body)s)
  ON CONFLICT (run_id, segment_count) DO UPDATE SET body = excluded.body
)
UPDATE epochal_runs SET journal_bytes = journal_bytes + %(size)s - coalesce((SELECT size FROM before), 0)
WHERE run_id = %(run)s RETURNING journal_bytes
"""
_DROP_COVERED = """
WITH records AS (
  DELETE FROM epochal_records WHERE run_id = %(run)s AND segment < %(count)s RETURNING octet_length(body) AS size
), segments AS (
  DELETE FROM epochal_segments WHERE run_id = %(run)s AND number < %(count)s RETURNING octet_length(snapshot) AS size
), proofs AS (
  DELETE FROM epochal_proofs WHERE run_id = %(run)s AND segment_count < %(count)s RETURNING octet_length(body) AS size
), sizes AS (
  SELECT size FROM records UNION ALL SELECT size FROM segments UNION ALL SELECT size FROM proofs
)
UPDATE epochal_runs SET journal_bytes = journal_bytes - coalesce((SELECT sum(size) FROM sizes), 0)
WHERE run_id = %(run)s RETURNING journal_bytes
"""
_TAIL = """
SELECT record.sequence, record.version,
  CASE WHEN record.sequence > %(after)s THEN record.body WHEN run.sequence = %(after)s THEN run.head
    ELSE sha256(record.body) END,
  run.journal_bytes, run.sequence - newest.sequence
FROM epochal_runs run
JOIN epochal_segments newest ON newest.run_id = run.run_id AND newest.number = run.segment
LEFT JOIN epochal_records record ON record.run_id = run.run_id AND record.sequence >= %(after)s
WHERE run.run_id = %(run)s ORDER BY record.sequence LIMIT %(most)s
"""
"""Returns the SHA-256 of the record that is known in place of its body, which may be a megabyte: requests ask often."""


class PostgresJournal(PostgresHistory):
    """The `Journal` protocol over a database.

    Args:
        writing: the connection that appends; nothing else waits for it.
        reading: another one, for reading histories.
        run_id: the run.

    Attributes:
        blob_bytes: counts the blobs that come with records.
    """

    def __init__(self, writing: Database, reading: Database, run_id: str) -> None:
        super().__init__(reading, run_id)
        self._writing = writing
        self.blob_bytes = RecordedBytes()
        self._head: bytes | None = None
        """SHA-256 of the last record that is known, or of the first snapshot; None before anything is."""
        self._sequence = 0
        self._journal_bytes = 0
        self._server: ServerIdentity | None = None
        """The server of which the journal was read; None before, or if it does not tell."""
        self._is_note_due = True
        """Whether the next record notes the server."""
        self._asked: tuple[int, ServerIdentity | None] = (0, None)
        """The number of the connection that was asked last for its server, and the answer."""

    @property
    def size_bytes(self) -> int:
        return self._journal_bytes

    async def load(self, *, is_restored: bool = False) -> Segment | None:
        del is_restored  # a database's backup is whole
        server, reading = await self._writing.run(self._server_of), await self._database.run(identity_of)
        if server is not None and reading is not None and not server.is_same(reading):
            raise StoreBlocked(
                f"{self._database.name}: two servers answer, on timelines {server.timeline} and {reading.timeline} of "
                "their cluster; one of them must end",
                is_full=False,
            )
        found = await self._found(None)
        noted = parse_identity(await PostgresNotes(self._database, self._run_id).read(NOTE))
        self._server, self._is_note_due = server, noted != server
        if found is None:
            return None
        segment = replace(
            found.segment,
            may_lack_last=noted is not None and server is not None and not server.has_all_of(noted),
            lacks_known=self._head is not None and not await self._holds_known(found.segment),
        )
        self._sequence = segment.records[-1].sequence if segment.records else segment.snapshot.sequence
        self._head, self._journal_bytes = found.head, found.journal_bytes
        return segment

    async def _holds_known(self, newest: Segment) -> bool:
        """Return whether the journal holds the last known record. A record that was compacted is taken for held."""
        opened_at = newest.snapshot.sequence
        if self._sequence > opened_at:
            later = newest.records[self._sequence - opened_at - 1 : self._sequence - opened_at]
            return bool(later) and head_of(later[0].body) == self._head
        if newest.number == 0:
            return head_of(newest.snapshot.body) == self._head
        wanted = {"run": self._run_id, "sequence": self._sequence}

        async def read(connection: Connection) -> bytes | None:
            row = await (await connection.execute(_BODY_OF_RECORD, wanted)).fetchone()
            return None if row is None else bytes(row[0])

        body = await self._database.run(read)
        return body is None or head_of(body) == self._head

    async def _server_of(self, connection: Connection) -> ServerIdentity | None:
        """Return the server to which the connection leads, which appends; each connection is asked once."""
        if self._asked[0] != self._writing.connection_count:
            self._asked = (self._writing.connection_count, await identity_of(connection))
        return self._asked[1]

    async def _is_as_read(self, connection: Connection) -> bool:
        """Return whether the connection leads to the server of which the journal was read.

        Raises:
            StoreBlocked: it leads to one whose place another has taken.
        """
        found, known = await self._server_of(connection), self._server
        if found is None or known is None:
            self._server = found if known is None else known
            return True
        if found.was_replaced_by(known):
            raise StoreBlocked(
                f"{self._database.name}: a former primary answers (timeline {found.timeline}); the run was kept on "
                f"timeline {known.timeline} since",
                is_full=False,
            )
        return found.is_same(known)

    async def tail(self, after: int) -> Tail | None:
        if self._head is None or after != self._sequence:
            return None
        found: list[JournalRecord] = []
        while True:
            read = await self._writing.run(partial(self._page, self._sequence))
            if read is None:
                return None
            page, in_segment = read
            if self._sequence:  # the first snapshot is no record
                if not page or page[0].sequence != self._sequence or page[0].body != self._head:
                    return None
                page = page[1:]
            if page and page[0].sequence != self._sequence + 1:
                return None
            if not page:
                return Tail(tuple(found), in_segment)
            self._sequence, self._head = page[-1].sequence, head_of(page[-1].body)
            found += page

    async def _page(self, after: int, connection: Connection) -> tuple[list[JournalRecord], int] | None:
        """Return some records from this one on, and the number of records in the newest segment; see `_TAIL`.

        It is None if another server has taken over.
        """
        if not await self._is_as_read(connection):
            return None
        wanted = {"run": self._run_id, "after": after, "most": RECORDS_AT_A_TIME}
        rows = await (await connection.execute(_TAIL, wanted)).fetchall()
        if not rows:
            return [], 0
        *_, self._journal_bytes, in_segment = rows[-1]
        return [JournalRecord(row[0], row[2], row[1]) for row in rows if row[0] is not None], in_segment

    async def append(self, record: JournalRecord) -> None:
        if self._head is None or record.sequence != self._sequence + 1:
            raise StoreConflict(f"record {record.sequence} does not follow record {self._sequence}")
        head = head_of(record.body)
        news = json.dumps({"run": self._run_id, "version": record.version, "sequence": record.sequence})
        values = {
            **self._values(record.sequence, record.body),
            "head": head,
            "before": self._head,
            "version": record.version,
            "channel": channel_of(self._run_id),
            "news": news,
            "note": NOTE,
        }
        if record.blobs:
            values["digests"] = [bytes.fromhex(sha256) for sha256 in record.blobs]
            values["bodies"] = list(record.blobs.values())
        if not await self._kept(_APPEND, _KEPT_RECORD, values):
            raise StoreConflict(f"record {record.sequence}: another coordinator has appended first")
        self._sequence, self._head = record.sequence, head

    async def open_segment(self, snapshot: Snapshot) -> None:
        values = self._values(snapshot.sequence, snapshot.body)
        if self._head is None:
            head = head_of(snapshot.body)
            if not await self._kept(_BEGIN, _KEPT_SNAPSHOT, {**values, "head": head}):
                raise StoreConflict(f"a snapshot of record {snapshot.sequence}: another coordinator has begun the run")
            self._sequence, self._head = snapshot.sequence, head
        elif snapshot.sequence != self._sequence or not await self._kept(
            _OPEN, _KEPT_SNAPSHOT, {**values, "before": self._head}
        ):
            raise StoreConflict(f"a snapshot of record {snapshot.sequence} does not follow a new last record")

    def _values(self, sequence: int, body: bytes) -> dict[str, object]:
        return {"run": self._run_id, "sequence": sequence, "body": body, "size": len(body)}

    async def _kept(self, change: str, look: str, values: dict[str, object]) -> bool:
        """Execute a change that may be executed again; return whether it was made, by this attempt or an earlier one.

        Raises:
            StoreBlocked: the database did not take it for `PASSING_S`. If a transaction's answer is missing, it may
                have been made nevertheless: then the next change does not follow, and finds it.
            StoreFailed: the database refuses it.
        """
        is_in_doubt = False

        async def attempt(connection: Connection) -> tuple[Any, ...] | None:
            if not await self._is_as_read(connection):
                raise StoreConflict(f"{self._database.name}: another server has taken over")
            row = await (await connection.execute(*self._change_of(change, values))).fetchone()
            if row is None and is_in_doubt:
                row = await (await connection.execute(look, values)).fetchone()
            return row

        until_s = asyncio.get_running_loop().time() + PASSING_S
        while True:
            try:
                row = await self._writing.run(attempt, is_repeatable=False)
            except StoreBlocked as blocked:
                is_in_doubt = True
                if blocked.is_full or asyncio.get_running_loop().time() >= until_s:
                    raise
            else:
                if row is not None:
                    self._note_kept(row)
                return row is not None
            await asyncio.sleep(PASSING_PAUSE_S)

    def _change_of(self, change: str, values: dict[str, object]) -> tuple[str, dict[str, object]]:
        """Return the statement to execute, which notes the server if that is due, and its values."""
        if change is not _APPEND:
            return change, values
        if self._is_note_due and self._server is not None:
            change, values = _APPEND_AND_NOTE, values | {"server": self._server.encoded()}
        return with_blobs(change) if "bodies" in values else change, values

    def _note_kept(self, row: tuple[Any, ...]) -> None:
        """Take over what a change has returned: the journal's size, and of a record whether its commit was synchronous.

        Where that has changed since the server was noted, the next record notes it. Of one with blobs, also their size.
        """
        self._journal_bytes = int(row[0])
        if len(row) > 1 and self._server is not None:
            self._is_note_due = bool(row[1]) != self._server.is_synchronous
            self._server = replace(self._server, is_synchronous=bool(row[1]))
        if len(row) > BLOBS_PLACE:
            self.blob_bytes.grew(row[BLOBS_PLACE])

    async def drop_blobs(self, digests: list[bytes], known: int) -> None:
        """Delete blobs by their digests, as `RecordedBlobs.drop` does."""
        if known != self._sequence:
            raise StoreConflict(f"record {known} is not the last one that was read")
        values = {"run": self._run_id, "sequence": self._sequence, "head": self._head, "digests": digests}

        async def drop(connection: Connection) -> tuple[Any, ...] | None:
            if not await self._is_as_read(connection):
                return None
            return await (await connection.execute(DROP_BLOBS, values)).fetchone()

        row = await self._writing.run(drop)
        if row is None:
            raise StoreConflict(f"record {self._sequence} is not the last one")
        self.blob_bytes.grew(-row[0])

    async def keep_proof(self, proof: StoredProof) -> None:
        values = {"run": self._run_id, "count": proof.segment_count, "body": proof.body, "size": len(proof.body)}
        await self._change(_KEEP_PROOF, values, STATEMENT_S)

    async def keep_history(self, body: bytes) -> None:
        await PostgresNotes(self._database, self._run_id).write(HISTORY, body)

    async def drop_covered(self, segment_count: int) -> None:
        await self._change(_DROP_COVERED, {"run": self._run_id, "count": segment_count}, BULK_S)

    async def _change(self, sql: str, values: dict[str, object], limit_s: float) -> None:
        async def change(connection: Connection) -> None:
            row = await (await connection.execute(sql, values)).fetchone()
            if row is not None:
                self._journal_bytes = int(row[0])

        await self._database.run(change, limit_s)
