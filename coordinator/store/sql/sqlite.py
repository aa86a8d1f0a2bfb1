"""One connection to an SQLite database, in a thread of its own: WAL, and every commit synced (`synchronous=FULL`).

A transaction that fails is undone as a whole. What goes wrong has two names: `StoreBlocked` for what may pass (a full
disk, a lock), and `StoreFailed` for everything else; after one of these nothing more is written, because the content of
the disk is unknown until it is read again, after a restart.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from epochal.coordinator.machine.journal_records import JournalRecord
from epochal.coordinator.store.failures import store_failure
from epochal.coordinator.store.sql.database import STATEMENT_S, Database, Row, Statement
from epochal.coordinator.store.sql.schema import TABLES, check_schema
from epochal.coordinator.store.sql.write_ahead_log import damage_in
from epochal.runtime.files.durable_files import REAL_DISK, open_private, sync_folder
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.errors import StoreBlocked, StoreFailed

FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""Errors of a write that found no room; those of a quota, or of a limit of a file's size, count as a write's. A log
beyond 16 MiB needs a larger file of shared memory."""
PASSING = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN})
WAL_BYTES = 64 * 1024 * 1024
"""Size to which the write-ahead log is cut once its content is in the database."""
MAX_TOLD = 20
"""Maximum number of damaged pages that are named."""
_SETTINGS = ("journal_mode=WAL", "synchronous=FULL", f"journal_size_limit={WAL_BYTES}", "cell_size_check=ON")

T = TypeVar("T")


class SqliteDatabase:
    """The `JournalDatabase` protocol over a file.

    Args:
        path: the file.
        name: of the store, for messages.
        writes: whether this connection may write; then the file is created if it is missing. A connection that only
            reads is closed after each use.
    """

    def __init__(self, path: Path, name: str, *, writes: bool) -> None:
        self.name = name
        self._path = path
        self._writes = writes
        self._connection: sqlite3.Connection | None = None
        self._worker = WorkerThread("journal")
        self._lock = threading.Lock()
        """Held while the connection is used: one that only reads has no thread of its own."""
        self._failed: str | None = None
        self._is_closed = False

    async def transact(
        self, *statements: Statement, limit_s: float = STATEMENT_S, is_repeatable: bool = True
    ) -> list[list[Row]]:
        del limit_s, is_repeatable  # there is no server that does not answer
        return await self._run(partial(self._transact, statements))

    def _transact(self, statements: Sequence[Statement]) -> list[list[Row]]:
        connection = self._connected()
        is_reading = all(statement.sql.lstrip().startswith(("SELECT", "PRAGMA")) for statement in statements)
        try:
            connection.execute("BEGIN" if is_reading else "BEGIN IMMEDIATE")
            rows = [connection.execute(statement.sql, statement.values).fetchall() for statement in statements]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        return rows

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._writes and not self._path.exists():
                open_private(self._path).close()
                sync_folder(self._path.parent)
            self._connection = connect(self._path, writes=self._writes)
        return self._connection

    async def _run(self, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise StoreFailed(f"{self.name} is closed")
        if self._writes:
            return await self._worker.run(partial(self._guarded, work))
        return await asyncio.to_thread(self._guarded, work)

    def _guarded(self, work: Callable[[], T]) -> T:
        if self._failed is not None:
            raise StoreFailed(self._failed)
        try:
            with self._lock:
                try:
                    return work()
                finally:
                    if not self._writes:
                        self._close()
        except (sqlite3.Error, OSError) as error:
            failure = failure_of(self.name, error)
            if self._writes and not isinstance(failure, StoreBlocked):
                self._failed = failure.message
            raise failure from error

    async def make_tables(self) -> None:
        if await self.schema() is None:
            await self.transact(*map(Statement, TABLES))
        check_schema(await self.schema(), self.name)

    async def schema(self) -> int | None:
        found = "SELECT count(*) FROM sqlite_master WHERE name = 'epochal_schema'"
        if (await self.transact(Statement(found)))[0] == [(0,)]:
            return None
        ((row,),) = await self.transact(Statement("SELECT max(number) FROM epochal_schema"))
        return None if row[0] is None else int(row[0])

    async def problems(self) -> tuple[str, ...]:
        checking = Statement(f"PRAGMA integrity_check({MAX_TOLD})")
        checked, tables = await self.transact(checking, Statement("SELECT name, sql FROM sqlite_master"))
        known = {sql.replace("IF NOT EXISTS ", "") for sql in TABLES} | {None}
        texts = [text for (text,) in checked if text != "ok"]
        texts += [f"the table {name} is damaged" for name, sql in tables if sql not in known]
        found = tuple(f"{self._path.name}: {text}" for text in texts)
        damage = await self._run(self._damage_in_log)
        return found if damage is None else (*found, damage)

    def _damage_in_log(self) -> str | None:
        """Return what is damaged in the write-ahead log; None if that cannot be told while somebody writes it."""
        log = log_of(self._path)
        damage = damage_in(log)
        return damage if damage is not None and damage == damage_in(log) else None

    async def copy_to(self, path: Path) -> None:
        """Copy the database as it is now into a new file, while others write to it; the copy is one file, durable."""
        await self._run(partial(self._copy_to, path))

    def _copy_to(self, path: Path) -> None:
        open_private(path).close()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as copy:
            self._connected().backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")
        with path.open("rb") as file:
            REAL_DISK.sync(file.fileno())

    async def compact_to(self, path: Path) -> None:
        """Write what the database holds into a new file, and nothing that was deleted from it."""
        await self._run(lambda: self._connected().execute("VACUUM INTO ?", (str(path),)))

    async def follow(self, _: Database) -> bool:
        """Return False: what was committed is there."""
        return False

    def beside(self, _: JournalRecord) -> Sequence[Statement]:
        """Return nothing: no other process reads news."""
        return ()

    def note_rows(self, _: Sequence[Sequence[Row]]) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._worker.run(self._close)
            await self._worker.aclose()

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def log_of(path: Path) -> Path:
    """Return the write-ahead log of a database file."""
    return path.with_name(f"{path.name}-wal")


def connect(path: Path, *, writes: bool) -> sqlite3.Connection:
    """Return a connection to a database file, which may be used in any thread, by one at a time."""
    uri = f"file:{quote(str(path))}?mode={'rw' if writes else 'ro'}"
    connection = sqlite3.connect(uri, STATEMENT_S, isolation_level=None, check_same_thread=False, uri=True)
    for setting in _SETTINGS if writes else ():
        connection.execute(f"PRAGMA {setting}")
    return connection


def failure_of(name: str, error: sqlite3.Error | OSError) -> StoreFailed:
    """Return what an error of the database means: `StoreBlocked` if the same may succeed later."""
    if isinstance(error, OSError):
        return store_failure(name, error)
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    message = f"{name}: {error}"
    if code & 0xFF == sqlite3.SQLITE_CORRUPT or code == sqlite3.SQLITE_NOTADB:
        return StoreFailed(f"{message}: a page of the database is damaged; restore a backup")
    if code in FULL or code & 0xFF == sqlite3.SQLITE_FULL:
        return StoreBlocked(f"{name}: there is no room on the disk ({error})", is_full=True)
    if code & 0xFF in PASSING:
        return StoreBlocked(message, is_full=False)
    return StoreFailed(message)
