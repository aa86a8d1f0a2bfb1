"""One connection to a PostgreSQL database: opened when it is needed, and again after it broke.

Every statement has a time limit twice: the server ends it, and if the server does not answer, the connection is hung up
here. (To cancel the task that waits for an answer would not end it: psycopg then asks the server to end the statement,
and waits for it.) What goes wrong has two names: `StoreBlocked` for what may pass without a change of program
or data (no connection, no place for one, a read-only server, a full disk, a statement that took too long), and
`StoreFailed` for everything else.
"""

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import psycopg
from psycopg import AsyncClientCursor, AsyncConnection, AsyncCursor

from epochal.coordinator.store.sql.database import GRACE_S, STATEMENT_S, Row, Statement
from epochal.coordinator.store.sql.schema import TABLES, check_schema
from epochal.state.errors import StoreBlocked, StoreFailed

CONNECT_WITHIN_S = 10.0
"""Maximum time to connect, whichever of its addresses the database has."""
DISK_FULL = "53100"
PASSING_CLASSES = ("08", "40", "53", "57")
"""Classes of SQLSTATE that pass: connections, conflicts of transactions, lack of resources, an operator's doing."""
PASSING_STATES = ("25006", "55P03")
"""Others that pass: a server that only reads, and a lock that was not free in time."""
CLOSING_STATES = ("08", "57P")
"""Beginnings of those with which a server closes a connection."""
_LIMIT = "SELECT set_config('statement_timeout', %s, false)"
_SESSION = """
SELECT set_config('lock_timeout', %(limit)s, false),
  set_config('idle_in_transaction_session_timeout', %(limit)s, false),
  CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END
"""
"""Settings of every session: no wait without a limit, and no commit that is confirmed before it is durable."""

Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]


LOCK = 0x45504F4348414C00
"""Number of the advisory lock that is held while tables are made."""
OWN_TABLES = (
    """CREATE UNLOGGED TABLE IF NOT EXISTS epochal_replicas (
        run_id text NOT NULL,
        replica text NOT NULL,
        url text,
        program text,
        rules integer,
        heartbeats bytea NOT NULL,
        seen_at timestamptz NOT NULL,
        PRIMARY KEY (run_id, replica)
    )""",
    """CREATE UNLOGGED TABLE IF NOT EXISTS epochal_leases (
        run_id text NOT NULL PRIMARY KEY,
        holder text NOT NULL,
        ends_at timestamptz NOT NULL
    )""",
    "ALTER TABLE epochal_blobs ALTER COLUMN body SET STORAGE EXTERNAL",
)
"""Tables that only coordinators need which meet, and how blobs are stored, which do not compress."""
_HAS_TABLES = "SELECT to_regclass('epochal_schema') IS NOT NULL"
_SCHEMA = "SELECT max(number) FROM epochal_schema"


class PostgresDatabase:
    """The `Database` protocol over a connection to PostgreSQL.

    Args:
        conninfo: what libpq connects with.
        name: the database in messages.
        is_kept: whether the connection stays open until `aclose`; else it is closed after each use.
    """

    def __init__(self, conninfo: str, name: str, *, is_kept: bool = True) -> None:
        self.name = name
        self._conninfo = conninfo
        self._is_kept = is_kept
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def transact(
        self,
        *statements: Statement,
        limit_s: float = STATEMENT_S,
        is_repeatable: bool = True,
        within_s: float | None = None,
    ) -> list[list[Row]]:
        """Execute statements in one transaction, as `Database.transact` says.

        Repeatable ones are executed again where the connection had broken since the last use, as after a restart of the
        server.

        Args:
            statements: in order.
            limit_s: maximum time of each statement, and nearly that of all.
            is_repeatable: as `Database.transact`.
            within_s: maximum time of all if it is shorter; `GRACE_S` more than `limit_s` by default.

        Raises:
            StoreBlocked: it did not succeed now. Whether anything was committed is unknown.
            StoreFailed: it never will.
        """
        is_old, within_s = self._connection is not None, within_s or limit_s + GRACE_S
        try:
            return await self._transact(statements, limit_s, within_s)
        except StoreBlocked as blocked:
            if not (is_old and is_repeatable and _is_loss(blocked.__cause__)):
                raise
        return await self._transact(statements, limit_s, within_s)

    async def _transact(self, statements: Sequence[Statement], limit_s: float, within_s: float) -> list[list[Row]]:
        async with self._lock, self._failures():
            connection = await self._connected()
            with limited(connection, within_s):
                await self._check_server(connection)
                if limit_s == STATEMENT_S:
                    return await executed(connection, statements)
                await connection.execute(_LIMIT, (_limit(limit_s),))
                found = await executed(connection, statements)
                await connection.execute(_LIMIT, (_limit(STATEMENT_S),))
                return found

    async def _check_server(self, connection: Connection) -> None:
        """Do nothing: any server that answers will do."""

    async def make_tables(self) -> None:
        if await self.schema() is None:
            lock = Statement("SELECT pg_advisory_xact_lock(:lock)", {"lock": LOCK})
            await self.transact(lock, *map(Statement, TABLES), *map(Statement, OWN_TABLES))
        check_schema(await self.schema(), self.name)

    async def schema(self) -> int | None:
        ((row,),) = await self.transact(Statement(_HAS_TABLES))
        if not row[0]:
            return None
        ((row,),) = await self.transact(Statement(_SCHEMA))
        return None if row[0] is None else int(row[0])

    async def problems(self) -> tuple[str, ...]:
        """Return nothing: the server checks its pages (`data_checksums`)."""
        return ()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[Connection]:
        """Yield the connection, which nobody else uses meanwhile. Raises as `run`; time limits are the caller's."""
        async with self._lock, self._failures():
            yield await self._connected()

    async def aclose(self) -> None:
        """Close the connection for good. May be called again."""
        self._is_closed = True
        await self._drop()

    @contextlib.asynccontextmanager
    async def _failures(self) -> AsyncIterator[None]:
        """Map what goes wrong, and drop the connection then: what is left of a session is not relied on."""
        try:
            yield
        except psycopg.Error as error:
            await self._drop()
            raise failure_of(self.name, error) from error
        except TimeoutError as error:
            await self._drop()
            raise StoreBlocked(f"{self.name} does not answer in time", is_full=False) from error
        except OSError as error:
            await self._drop()
            raise StoreBlocked(f"{self.name}: {error.strerror or error}", is_full=False) from error
        except BaseException:
            await self._drop()
            raise
        if not self._is_kept:
            await self._drop()

    async def _connected(self) -> Connection:
        if self._is_closed:
            raise StoreFailed(f"{self.name} is closed")
        if self._connection is None or self._connection.closed:
            await self._drop()
            async with asyncio.timeout(CONNECT_WITHIN_S):
                connection = await AsyncConnection.connect(self._conninfo, autocommit=True)
            self._connection = connection
            with limited(connection, STATEMENT_S):
                await connection.execute(_LIMIT, (_limit(STATEMENT_S),))
                await connection.execute(_SESSION, {"limit": _limit(STATEMENT_S)})
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def executed(connection: Connection, statements: Sequence[Statement]) -> list[list[Row]]:
    """Execute statements in one transaction. Several are sent as one query, which the server takes as a whole."""
    if len(statements) == 1:
        sql, values = _named(statements[0].sql).encode(), statements[0].values or None
        cursor = await connection.execute(sql, values, binary=True)
        return [await _rows(cursor)]
    merging = AsyncClientCursor(connection)
    query = ";".join(merging.mogrify(_named(one.sql).encode(), one.values) for one in statements)
    await merging.execute(query.encode())
    found = [await _rows(merging)]
    while merging.nextset():
        found.append(await _rows(merging))
    return found


async def _rows(cursor: AsyncCursor[Row]) -> list[Row]:
    return [] if cursor.description is None else await cursor.fetchall()


@lru_cache(maxsize=128)
def _named(sql: str) -> str:
    """Return SQL whose parameters psycopg knows: `%(name)s` for `:name`."""
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql)


@contextlib.contextmanager
def limited(connection: Connection, within_s: float) -> Iterator[None]:
    """Hang up if the context is not left in time. Raise `TimeoutError` then."""
    has_hung_up = False

    def hang_up() -> None:
        nonlocal has_hung_up
        has_hung_up = True
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer gets an error

    timer = asyncio.get_running_loop().call_later(within_s, hang_up)
    try:
        yield
    except psycopg.OperationalError as error:
        if has_hung_up:
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()


def failure_of(name: str, error: psycopg.Error) -> StoreFailed:
    """Return what an error of the database means: `StoreBlocked` if the same may succeed later."""
    state, reason = error.sqlstate, " ".join(str(error).split())
    message = f"{name}: {reason}"
    if state is None and isinstance(error, psycopg.OperationalError):
        return StoreBlocked(message, is_full=False)
    if state is not None and (state.startswith(PASSING_CLASSES) or state in PASSING_STATES):
        return StoreBlocked(message, is_full=state == DISK_FULL)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        message += (
            ". Whoever reads runs needs SELECT on the tables epochal_…; a coordinator's role owns them, or may create "
            "them (USAGE and CREATE on the schema)"
        )
    return StoreFailed(message)


def _is_loss(cause: BaseException | None) -> bool:
    """Return whether a connection was lost, or a server that ended has closed it."""
    if not isinstance(cause, psycopg.OperationalError):
        return False
    return cause.sqlstate is None or cause.sqlstate.startswith(CLOSING_STATES)


def _limit(seconds: float) -> str:
    return str(round(1000 * seconds))
