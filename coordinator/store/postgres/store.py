"""The store of a run in PostgreSQL.

Small results lie there too; all other blobs lie in an object store, or in a folder that replicas share.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from epochal.coordinator.store.blobs import BlobReader, BlobStore
from epochal.coordinator.store.postgres.address import DatabaseAddress
from epochal.coordinator.store.postgres.database import BULK_S, CONNECT_WITHIN_S, Connection, Database
from epochal.coordinator.store.postgres.history import PostgresHistory
from epochal.coordinator.store.postgres.journal import PostgresJournal
from epochal.coordinator.store.postgres.migrations import migrate
from epochal.coordinator.store.postgres.names import lock_of
from epochal.coordinator.store.postgres.notes import (
    BLOBS,
    MOVED,
    ORIGIN,
    STATE_FILE,
    PostgresKeys,
    PostgresNotes,
    origin_of,
)
from epochal.coordinator.store.postgres.recorded_blobs import PostgresBlobReader, PostgresRecordedBlobs
from epochal.coordinator.store.postgres.replication import PostgresReplication, is_served, served_at
from epochal.coordinator.store.recorded_blobs import WithRecordedBlobs
from epochal.coordinator.store.replication import Program
from epochal.runtime.clock import Clock
from epochal.state.errors import InvalidInput, StoreBlocked, StoreFailed

log = logging.getLogger(__name__)

MAX_SWEEP_S = 60.0
"""Time after which a copy no longer waits for a sweep to end."""
POLL_S = 0.1
RETRY_S = 0.25
"""Time between two attempts to go on while the database does not keep anything."""

_WRITABLE = "SELECT current_setting('transaction_read_only')"


class _DatabaseClock:
    """A clock that shows the database's time, as of one reading, and goes on by this machine's."""

    def __init__(self, clock: Clock, ahead_s: float) -> None:
        self._clock = clock
        self._ahead_s = ahead_s

    def wall_s(self) -> float:
        return self._clock.monotonic_s() + self._ahead_s

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


class PostgresReader:
    """The `StoreReader` protocol over a run in a database.

    Args:
        address: the database.
        run_id: the run.

    Attributes:
        run_id: the run.
        blobs: the run's; whoever opens the reader sets them.
        recorded_blobs: those of them that lie in the database.
        blobs_folder: the run's folder of blobs, if it has one.
    """

    blobs: BlobReader
    blobs_folder: Path | None = None

    def __init__(self, address: DatabaseAddress, run_id: str) -> None:
        self.name = address.name_of(run_id)
        self._address = address
        self.run_id = run_id
        self._database = Database(address.conninfo, self.name, is_kept=False)
        self.journal = PostgresHistory(self._database, run_id)
        self.recorded_blobs = PostgresBlobReader(self._database, run_id)
        self.notes = PostgresNotes(self._database, run_id)
        self.keys = PostgresKeys(self.notes, self.name)

    @contextlib.asynccontextmanager
    async def copying(self) -> AsyncIterator[None]:
        async with _locked(self._address, self.name, _shared_lock(self.run_id)) as is_locked:
            if not is_locked:
                raise StoreFailed(f"{self.name}: its coordinators have been deleting blobs for {MAX_SWEEP_S:g} s")
            yield

    async def served_at(self) -> str | None:
        return await served_at(self._database, self.run_id)


class PostgresStore:
    """The `Store` protocol over a run in a database. Use `open`."""

    retry_s = RETRY_S

    def __init__(self, address: DatabaseAddress, run_id: str, blobs: BlobStore) -> None:
        self.name = address.name_of(run_id)
        self._run_id = run_id
        self._address = address
        self._connections = [Database(address.writing(), self.name) for _ in range(4)]
        writing, reading, meeting, listening = self._connections
        self._reading = reading
        self.journal = PostgresJournal(writing, reading, run_id)
        self.notes = PostgresNotes(reading, run_id)
        self.keys = PostgresKeys(self.notes, self.name)
        self.replication = PostgresReplication(meeting, listening, run_id)
        self.recorded_blobs = PostgresRecordedBlobs(reading, self.journal, run_id)
        self.take_blobs(blobs)
        self.is_backup = False
        self._is_sweep_put_off = False
        self.blobs_note: bytes | None = None
        """The folder of its blobs, which is noted once a coordinator serves it from there."""
        self._origin = b""
        self._now_s = (0.0, 0.0)

    @classmethod
    async def open(
        cls, address: DatabaseAddress, run_id: str, blobs: BlobStore, program: Program | None = None
    ) -> "PostgresStore":
        """Connect to the database, and bring its tables up to date, unless the run is one of other rules.

        Raises:
            InvalidInput: the tables are newer than this program.
            StoreFailed: it cannot be reached or used.
        """
        store = cls(address, run_id, blobs)
        try:
            rules, store.replication.program = None if program is None else program.rules, program
            await store._reading.run(partial(migrate, name=address.name, run_id=run_id, rules=rules), BULK_S)
            await store._begin()
        except BaseException:
            await store.aclose()
            raise
        return store

    def take_blobs(self, others: BlobStore) -> None:
        """Let this store take all blobs that do not lie in the database."""
        self.blobs: BlobStore = WithRecordedBlobs(self.recorded_blobs, others)

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()

        async def read(connection: Connection) -> tuple[bytes, float, float]:
            origin = await origin_of(connection)
            asked_s = loop.time()
            now = await (await connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8")).fetchone()
            assert now is not None
            return origin, float(now[0]), (asked_s + loop.time()) / 2

        self._origin, database_s, loop_s = await self._reading.run(read)
        await self.recorded_blobs.recount()
        self._now_s = database_s, loop_s
        moved = await self.notes.read(MOVED)
        if moved is not None:
            raise InvalidInput(f"{self.name} is being moved, or was moved, to {moved.decode()}: serve it from there")
        kept = await self.notes.read(ORIGIN)
        self.is_backup = kept not in (None, self._origin)

    def clock(self, system: Clock) -> Clock:
        database_s, loop_s = self._now_s
        elapsed_s = asyncio.get_running_loop().time() - loop_s
        return _DatabaseClock(system, database_s + elapsed_s - system.monotonic_s())

    def note_address(self, url: str) -> None:
        self.replication.url = url

    async def is_served(self) -> bool:
        return await is_served(self._reading, self._run_id)

    async def served_at(self) -> str | None:
        return await served_at(self._reading, self._run_id)

    async def note_served(self) -> None:
        if await self.notes.read(ORIGIN) != self._origin:
            await self.notes.write(ORIGIN, self._origin)
        if self.blobs_note is not None:
            await self.notes.write(BLOBS, self.blobs_note)
        self.is_backup = False

    @contextlib.asynccontextmanager
    async def sweeping(self) -> AsyncIterator[bool]:
        lock = f"SELECT pg_try_advisory_lock({lock_of('sweep', self._run_id)})"
        async with contextlib.AsyncExitStack() as stack:
            try:
                is_locked = await stack.enter_async_context(_locked(self._address, self.name, lock, within_s=0.0))
            except StoreBlocked as blocked:  # the lock needs a connection of its own, and the run goes on without it
                if not self._is_sweep_put_off:
                    log.warning("sweep_put_off", extra={"reason": str(blocked)})
                self._is_sweep_put_off, is_locked = True, False
            else:
                self._is_sweep_put_off = False
            yield is_locked

    @contextlib.asynccontextmanager
    async def copying(self) -> AsyncIterator[None]:
        async with PostgresReader(self._address, self._run_id).copying():
            yield

    async def save_state_file(self, text: str) -> None:
        await self.notes.write(STATE_FILE, text.encode())

    async def check_room(self, size_bytes: int) -> None:
        del size_bytes  # nobody can ask a database how much room it has

        async def check(connection: Connection) -> bool:
            row = await (await connection.execute(_WRITABLE)).fetchone()
            return row is not None and row[0] == "off"

        if not await self._reading.run(check):
            raise StoreBlocked(f"{self.name} is read-only at the moment", is_full=False)
        await self.blobs.check_answers()

    async def aclose(self) -> None:
        await self.replication.leave()
        for database in self._connections:
            await database.aclose()


def _shared_lock(run_id: str) -> str:
    return f"SELECT pg_try_advisory_lock_shared({lock_of('sweep', run_id)})"


@contextlib.asynccontextmanager
async def _locked(address: DatabaseAddress, name: str, lock: str, within_s: float = MAX_SWEEP_S) -> AsyncIterator[bool]:
    """Hold an advisory lock with a connection of its own, and yield whether it was free within the time.

    The lock ends with the connection, however the process ends.
    """
    database = Database(address.locking(), name)
    try:

        async def take(connection: Connection) -> bool:
            row = await (await connection.execute(lock)).fetchone()
            return row is not None and bool(row[0])

        is_taken = await database.run(take)
        for _ in range(0 if is_taken else round(within_s / POLL_S)):
            await asyncio.sleep(POLL_S)
            if is_taken := await database.run(take):
                break
        yield is_taken
    finally:
        async with asyncio.timeout(CONNECT_WITHIN_S):
            await database.aclose()
