"""Taking a whole run into a database, in one transaction, and removing one that lies elsewhere now."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from epochal.coordinator.machine.journal_records import Segment
from epochal.coordinator.store.journal import StoredProof
from epochal.coordinator.store.postgres.address import DatabaseAddress
from epochal.coordinator.store.postgres.database import BULK_S, Connection, Database
from epochal.coordinator.store.postgres.history import RECORDS_AT_A_TIME, head_of
from epochal.coordinator.store.postgres.migrations import migrate
from epochal.coordinator.store.postgres.notes import MOVED, ORIGIN, PostgresNotes, origin_of
from epochal.coordinator.store.postgres.replication import is_served
from epochal.coordinator.store.replication import LEASE_S
from epochal.state.errors import InvalidInput, StoreFailed

_BEGIN = """
INSERT INTO epochal_runs (run_id, sequence, head, version, segment, is_opening, journal_bytes)
VALUES (%s, 0, ''::bytea, 0, 0, true, 0) ON CONFLICT DO NOTHING RETURNING run_id
"""
_SEGMENT = "INSERT INTO epochal_segments (run_id, number, sequence, snapshot) VALUES (%s, %s, %s, %s)"
_RECORD = "INSERT INTO epochal_records (run_id, sequence, segment, version, body) VALUES (%s, %s, %s, %s, %s)"
_PROOF = "INSERT INTO epochal_proofs (run_id, segment_count, body) VALUES (%s, %s, %s)"
_NOTE = """
INSERT INTO epochal_notes (run_id, name, value) VALUES (%s, %s, %s)
ON CONFLICT (run_id, name) DO UPDATE SET value = excluded.value
"""
_END = """
UPDATE epochal_runs SET sequence = %s, head = %s, version = %s, segment = %s, is_opening = %s, journal_bytes = %s
WHERE run_id = %s
"""
_MARK = """
INSERT INTO epochal_notes (run_id, name, value) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING RETURNING run_id
"""
_REMOVE = tuple(
    f"DELETE FROM {table} WHERE run_id = %s" for table in ("epochal_runs", "epochal_notes", "epochal_blobs")
)


class RunImport:
    """A run that is being taken into a database; nobody sees it before the end."""

    def __init__(self, connection: Connection, run_id: str) -> None:
        self._connection = connection
        self._run_id = run_id
        self._last: Segment | None = None
        self._head = b""
        self._is_ended = False
        self._bytes = 0

    @property
    def is_ended(self) -> bool:
        """Whether `end` was called."""
        return self._is_ended

    async def keep_segment(self, segment: Segment) -> None:
        """Keep a segment of the journal; the newest comes last."""
        snapshot = segment.snapshot
        run, number = self._run_id, segment.number
        await self._connection.execute(_SEGMENT, (run, number, snapshot.sequence, snapshot.body))
        rows = [(run, record.sequence, number, record.version, record.body) for record in segment.records]
        async with self._connection.cursor() as cursor:
            for start in range(0, len(rows), RECORDS_AT_A_TIME):
                await cursor.executemany(_RECORD, rows[start : start + RECORDS_AT_A_TIME])
        self._bytes += len(snapshot.body) + sum(len(record.body) for record in segment.records)
        self._last = segment
        if segment.records:
            self._head = head_of(segment.records[-1].body)
        elif not self._head:
            self._head = head_of(snapshot.body)

    async def keep_proof(self, proof: StoredProof) -> None:
        """Keep what stands for the journal's first segments."""
        await self._connection.execute(_PROOF, (self._run_id, proof.segment_count, proof.body))
        self._bytes += len(proof.body)

    async def keep_notes(self, notes: Mapping[str, bytes]) -> None:
        """Keep the run's notes."""
        for name, value in notes.items():
            await self._connection.execute(_NOTE, (self._run_id, name, value))

    async def end(self, version: int) -> None:
        """Say which record is the last one, and which version of the run document was published after it."""
        if self._last is None:
            raise StoreFailed("there is no journal to move")
        records, snapshot = self._last.records, self._last.snapshot
        sequence = records[-1].sequence if records else snapshot.sequence
        self._is_ended = True
        await self.keep_notes({ORIGIN: await origin_of(self._connection)})
        values = (sequence, self._head, version, self._last.number, not records, self._bytes, self._run_id)
        await self._connection.execute(_END, values)


@contextlib.asynccontextmanager
async def importing(address: DatabaseAddress, run_id: str) -> AsyncIterator[RunImport]:
    """Yield what takes a run; it is there, whole, once the context is left without an error, else nothing is.

    Raises:
        InvalidInput: the database holds such a run already, or tables that are newer than this program.
        StoreFailed: it cannot be used.
    """
    database = Database(address.writing(), address.name)

    async def prepare(connection: Connection) -> None:
        await migrate(connection, address.name)

    try:
        await database.run(prepare, BULK_S)
        async with database.alone() as connection, connection.transaction():
            begun = await (await connection.execute(_BEGIN, (run_id,))).fetchone()
            if begun is None:
                raise InvalidInput(f"{address.name} holds a run {run_id!r} already; allowed: a database without it")
            taken = RunImport(connection, run_id)
            yield taken
            assert taken.is_ended, "whoever takes a run says where it ends"
    finally:
        await database.aclose()


@contextlib.asynccontextmanager
async def marked_as_moved(address: DatabaseAddress, run_id: str, to: str) -> AsyncIterator[None]:
    """Mark a run as moved, so that no coordinator serves it; take the mark back if the context is left with an error.

    A mark to the same place that a move before has left stays then: the run may be there.

    Raises:
        InvalidInput: a move to another place has marked it.
        StoreFailed: a coordinator serves it, or the database cannot be used.
    """
    database = Database(address.writing(), address.name)
    notes = PostgresNotes(database, run_id)

    async def check() -> None:
        if await is_served(database, run_id):
            raise StoreFailed(f"{address.name_of(run_id)} is served by a coordinator; stop all of them first")

    async def mark(connection: Connection) -> bool:
        return await (await connection.execute(_MARK, (run_id, MOVED, to.encode()))).fetchone() is not None

    try:
        await check()
        is_own = await database.run(mark)
        marked = to.encode() if is_own else await notes.read(MOVED)
        if marked not in (None, to.encode()):
            raise InvalidInput(
                f"{address.name_of(run_id)} is being moved to {marked.decode()}, or was until the move was killed: "
                "repeat that move"
            )
        try:
            await asyncio.sleep(LEASE_S)  # one may have started just before the mark was there
            await check()
            yield
        except BaseException:
            if is_own:
                await notes.delete(MOVED)
            raise
    finally:
        await database.aclose()


async def remove(address: DatabaseAddress, run_id: str) -> None:
    """Remove a run with its journal and its notes. Raise `StoreFailed` if the database cannot be used."""
    database = Database(address.writing(), address.name)

    async def delete(connection: Connection) -> None:
        async with connection.transaction():
            for statement in _REMOVE:
                await connection.execute(statement.encode(), (run_id,))

    try:
        await database.run(delete, BULK_S)
    finally:
        await database.aclose()
