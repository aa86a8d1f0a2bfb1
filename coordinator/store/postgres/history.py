"""The journal of a run in PostgreSQL as it is read: whole segments, a bounded number of records in each statement."""

import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from typing import Any

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.store.journal import StoredProof
from epochal.coordinator.store.postgres.database import BULK_S, Connection, Database
from epochal.coordinator.store.postgres.notes import HISTORY, PostgresNotes
from epochal.state.errors import StoreFailed

RECORDS_AT_A_TIME = 500
"""Maximum number of records that one statement reads."""

_PLACE = """
SELECT own.sequence, own.snapshot, following.sequence, run.sequence, run.segment, run.head, run.journal_bytes
FROM epochal_runs run
JOIN epochal_segments own ON own.run_id = run.run_id AND own.number = coalesce(%(number)s, run.segment)
LEFT JOIN epochal_segments following ON following.run_id = run.run_id AND following.number = own.number + 1
WHERE run.run_id = %(run)s
"""
_RECORDS = """
SELECT sequence, version, body FROM epochal_records
WHERE run_id = %(run)s AND sequence > %(after)s AND sequence <= %(last)s ORDER BY sequence LIMIT %(most)s
"""


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A segment as it was read.

    Attributes:
        segment: with all of its records so far.
        is_newest: whether it was the journal's newest.
        head: SHA-256 of the journal's last record, or of its first snapshot if there is none.
        journal_bytes: size of the journal.
    """

    segment: Segment
    is_newest: bool
    head: bytes
    journal_bytes: int


def head_of(body: bytes) -> bytes:
    """Return the SHA-256 by which the next record knows that it follows this one."""
    return hashlib.sha256(body).digest()


class PostgresHistory:
    """The `JournalReader` protocol over a database, in which coordinators may write meanwhile."""

    torn_bytes = 0
    damaged_bytes = 0

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self._run_id = run_id

    async def proofs(self) -> tuple[StoredProof, ...]:
        async def read(connection: Connection) -> tuple[StoredProof, ...]:
            sql = "SELECT segment_count, body FROM epochal_proofs WHERE run_id = %s ORDER BY segment_count"
            rows = await (await connection.execute(sql, (self._run_id,))).fetchall()
            return tuple(StoredProof(count, body) for count, body in rows)

        return await self._database.run(read, BULK_S)

    async def kept_history(self) -> bytes | None:
        return await PostgresNotes(self._database, self._run_id).read(HISTORY)

    async def newest_segment(self) -> int | None:
        async def read(connection: Connection) -> int | None:
            sql = "SELECT max(number) FROM epochal_segments WHERE run_id = %s"
            row = await (await connection.execute(sql, (self._run_id,))).fetchone()
            return None if row is None else row[0]

        return await self._database.run(read)

    async def history(self, start: int | None = None) -> AsyncGenerator[Segment, None]:
        number = await self._first_number() if start is None else start
        while number is not None:
            found = await self._found(number)
            if found is None:
                if number == start:  # nothing has been kept since
                    return
                raise StoreFailed(f"{self._database.name} lacks segment {number} of the journal of {self._run_id}")
            yield found.segment
            number = None if found.is_newest else number + 1

    async def _first_number(self) -> int | None:
        """Return the number of the journal's first segment: of the one that follows the newest proof, if there is one.

        Segments before it may be there still, while they are deleted.
        """

        async def read(connection: Connection) -> int | None:
            sql = (
                "SELECT coalesce((SELECT max(segment_count) FROM epochal_proofs WHERE run_id = %(run)s), "
                "(SELECT min(number) FROM epochal_segments WHERE run_id = %(run)s))"
            )
            row = await (await connection.execute(sql, {"run": self._run_id})).fetchone()
            return None if row is None else row[0]

        return await self._database.run(read)

    async def _found(self, number: int | None) -> FoundSegment | None:
        """Return a segment, the newest by default, or None if there is none.

        Raises:
            StoreFailed: it lacks a record, or its last one is not the one that was kept.
        """
        row = await self._database.run(partial(self._place, number), BULK_S)
        if row is None:
            return None
        opened_at, snapshot, followed_at, last, newest, head, journal_bytes = row
        number, is_newest = newest if number is None else number, newest == number or number is None
        end = last if followed_at is None else followed_at
        records: list[JournalRecord] = []
        while opened_at + len(records) < end:
            after = opened_at + len(records)
            page = await self._database.run(partial(self._records, after, end), BULK_S)
            if [record.sequence for record in page] != list(range(after + 1, after + 1 + len(page))) or not page:
                raise StoreFailed(f"{self._database.name} lacks record {after + 1} of the journal of {self._run_id}")
            records += page
        if is_newest and records and head_of(records[-1].body) != head:
            raise StoreFailed(f"{self._database.name}: record {end} of {self._run_id} is not the one that was kept")
        segment = Segment(number, Snapshot(opened_at, snapshot), tuple(records))
        return FoundSegment(segment, is_newest, head, journal_bytes)

    async def _place(self, number: int | None, connection: Connection) -> tuple[Any, ...] | None:
        found = await connection.execute(_PLACE, {"number": number, "run": self._run_id})
        return await found.fetchone()

    async def _records(self, after: int, last: int, connection: Connection) -> list[JournalRecord]:
        wanted = {"run": self._run_id, "after": after, "last": last, "most": RECORDS_AT_A_TIME}
        rows = await (await connection.execute(_RECORDS, wanted)).fetchall()
        return [JournalRecord(sequence, body, version) for sequence, version, body in rows]
