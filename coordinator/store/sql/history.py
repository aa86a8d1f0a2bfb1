"""The journal of a run as it is read: numbered records, cut into segments that each begin with a snapshot of the run.

A statement reads a bounded number of records.
Each snapshot and record is compared with its hash, which includes the hash of the one before.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.store.sql.database import BULK_S, ROWS_AT_A_TIME, Database, Row, Statement
from epochal.coordinator.store.sql.notes import Notes
from epochal.coordinator.store.sql.schema import hash_of_record, hash_of_snapshot, hash_of_value
from epochal.state.errors import StoreFailed

_PROOFS = "SELECT segment_count, body, hash FROM epochal_proofs WHERE run_id = :run ORDER BY segment_count"
_NEWEST = "SELECT max(number) FROM epochal_segments WHERE run_id = :run"
_FIRST = """
SELECT coalesce((SELECT max(segment_count) FROM epochal_proofs WHERE run_id = :run),
  (SELECT min(number) FROM epochal_segments WHERE run_id = :run))
"""
_PLACE = """
SELECT own.number, own.sequence, own.previous, own.snapshot, own.hash, following.sequence, following.previous,
  run.sequence, run.segment, run.head, run.opened_at, run.journal_bytes
FROM epochal_runs run
LEFT JOIN epochal_segments own ON own.run_id = run.run_id AND own.number = coalesce(:number, run.segment)
LEFT JOIN epochal_segments following ON following.run_id = run.run_id AND following.number = own.number + 1
WHERE run.run_id = :run
"""
_RECORDS = """
SELECT sequence, version, body, hash, segment FROM epochal_records
WHERE run_id = :run AND sequence > :after AND sequence <= :last ORDER BY sequence LIMIT :most
"""
JOURNAL_SIZE = """
coalesce((SELECT sum(length(body)) FROM epochal_records WHERE run_id = :run), 0)
+ coalesce((SELECT sum(length(snapshot)) FROM epochal_segments WHERE run_id = :run), 0)
+ coalesce((SELECT sum(length(body)) FROM epochal_proofs WHERE run_id = :run), 0)
"""
"""Expression for the size of all that a journal holds."""
_COUNTED = f"SELECT journal_bytes, version, {JOURNAL_SIZE} FROM epochal_runs WHERE run_id = :run"


@dataclass(frozen=True, slots=True)
class StoredProof:
    """A proof that is kept in the place of the first segments, once they are deleted
    (`coordinator/proof/journal_proof.py`).

    Attributes:
        segment_count: number of segments that it covers: the journal goes on with the segment of this number.
        body: the proof as JSON.
    """

    segment_count: int
    body: bytes


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A segment as it was read.

    Attributes:
        segment: with all of its records so far.
        is_newest: whether it was the journal's newest.
        head: hash that the next record follows.
        journal_bytes: size of the journal.
    """

    segment: Segment
    is_newest: bool
    head: bytes
    journal_bytes: int


class JournalReader:
    """A journal that is only read; meanwhile a coordinator may append to it.

    Reading raises `StoreFailed` if a record is damaged or missing, which it names, or the database cannot be read.
    """

    def __init__(self, database: Database, run_id: str) -> None:
        self._database = database
        self._run_id = run_id
        self._notes = Notes(database, run_id)

    async def _rows(self, sql: str, **values: object) -> list[Row]:
        (rows,) = await self._database.transact(Statement(sql, {"run": self._run_id, **values}), limit_s=BULK_S)
        return rows

    async def proofs(self) -> tuple[StoredProof, ...]:
        """Return the kept proofs, the one of the fewest segments first: one, or more while the journal is compacted."""
        found = []
        for count, body, kept in await self._rows(_PROOFS):
            if hash_of_value(f"proof {count}", bytes(body)) != bytes(kept):
                raise self._damaged(f"the proof of {count} segments")
            found.append(StoredProof(count, bytes(body)))
        return tuple(found)

    async def newest_segment(self) -> int | None:
        """Return the number of the newest segment; None if there is none."""
        newest = (await self._rows(_NEWEST))[0][0]
        return None if newest is None else int(newest)

    async def history(self, start: int | None = None) -> AsyncGenerator[Segment, None]:
        """Yield all segments from `start` on, oldest first.

        Args:
            start: number of the first; None for the one that follows the newest proof, or the run's first.
        """
        number = (await self._rows(_FIRST))[0][0] if start is None else start
        if number is None:
            await self._found(None)  # a run whose segments are all missing is an error
        while number is not None:
            found = await self._found(number)
            if found is None:
                if number == start:  # nothing has been kept since
                    return
                raise self._lacks(f"segment {number}")
            yield found.segment
            number = None if found.is_newest else number + 1

    async def problems(self) -> tuple[str, ...]:
        """Return what is wrong with rows that nobody reads in replaying a journal, and with the database's pages."""
        found = list(await self._database.problems())
        for name in await self._notes.names():
            try:
                await self._notes.read(name)
            except StoreFailed as failure:
                found.append(failure.message)
        for kept, version, counted in await self._rows(_COUNTED):
            newest = await self._found(None)
            if kept != counted:
                found.append(f"{self._database.name}: the journal has {counted} bytes, not {kept}")
            if newest is not None and newest.segment.records and newest.segment.records[-1].version != version:
                found.append(f"{self._database.name}: the run's row names another version than its last record")
        return tuple(found)

    async def _found(self, number: int | None) -> FoundSegment | None:
        """Return a segment, the newest by default, or None. Raise `StoreFailed` if a record is missing or another."""
        rows = await self._rows(_PLACE, number=number)
        if not rows:
            return None
        found, opened_at, previous, snapshot, kept, followed_at, followed, last, newest, head, newest_at, size = rows[0]
        if found is None:
            if number is None:
                raise self._lacks(f"segment {newest}")
            return None
        at = hash_of_snapshot(bytes(previous), opened_at, bytes(snapshot))
        if at != bytes(kept):
            raise self._damaged(f"the snapshot of segment {found}")
        is_newest = found == newest
        if followed_at is None and not is_newest:
            raise self._lacks(f"segment {found + 1}")
        end = last if is_newest else followed_at
        chained = bytes(previous) or at
        records, chained = await self._records_of(found, opened_at, end, chained)
        wanted = head if is_newest else followed
        if chained != bytes(wanted) or (is_newest and newest_at != opened_at):
            raise self._damaged(f"the row that follows record {end}")
        segment = Segment(found, Snapshot(opened_at, bytes(snapshot)), tuple(records))
        return FoundSegment(segment, is_newest, chained, size)

    async def _records_of(
        self, number: int, opened_at: int, end: int, chained: bytes
    ) -> tuple[list[JournalRecord], bytes]:
        """Return the records of a segment, and the hash of the last one."""
        records: list[JournalRecord] = []
        while opened_at + len(records) < end:
            after = opened_at + len(records)
            page: list[tuple[Any, ...]] = await self._rows(_RECORDS, after=after, last=end, most=ROWS_AT_A_TIME)
            if [row[0] for row in page] != list(range(after + 1, after + 1 + len(page))) or not page:
                raise self._lacks(f"record {after + 1}")
            for sequence, version, body, kept, segment in page:
                chained = hash_of_record(chained, sequence, version, bytes(body))
                if chained != bytes(kept) or segment != number:
                    raise self._damaged(f"record {sequence}")
                records.append(JournalRecord(sequence, bytes(body), version))
        return records, chained

    def _lacks(self, what: str) -> StoreFailed:
        return StoreFailed(f"{self._database.name} lacks {what} of the journal of {self._run_id}")

    def _damaged(self, what: str) -> StoreFailed:
        return StoreFailed(
            f"{self._database.name}: {what} of {self._run_id} is damaged: it is not the one that was kept"
        )
