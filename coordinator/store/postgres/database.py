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
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection

from epochal.coordinator.store.postgres.limits import GRACE_S, STATEMENT_S
from epochal.state.errors import StoreBlocked, StoreFailed

BULK_S = 30.0
"""Maximum time of a statement that reads or deletes a part of a history."""
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
"""What every session sets: no wait without a limit, and no commit that is told before it is durable."""

Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]
T = TypeVar("T")


class Database:
    """One connection, used by one caller at a time.

    Args:
        conninfo: what libpq connects with.
        name: the database in messages.
        is_kept: whether the connection stays open until `aclose`; else it is closed after each use.

    Attributes:
        connection_count: number of connections so far; another one may lead to another server.
    """

    def __init__(self, conninfo: str, name: str, *, is_kept: bool = True) -> None:
        self.name = name
        self._conninfo = conninfo
        self._is_kept = is_kept
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False
        self.connection_count = 0

    async def run(
        self,
        work: Callable[[Connection], Awaitable[T]],
        limit_s: float = STATEMENT_S,
        *,
        is_repeatable: bool = True,
        within_s: float | None = None,
    ) -> T:
        """Return what the work returns that executes statements on the connection.

        Args:
            work: its statements are each a transaction of their own, unless it opens one.
            limit_s: maximum time of each statement, and nearly that of all.
            is_repeatable: whether the work does no harm if it is done twice. It then is where the connection had broken
                since the last use, as after a restart of the server.
            within_s: maximum time of all if it is shorter; `GRACE_S` more than `limit_s` by default.

        Raises:
            StoreBlocked: it did not succeed now. Whether anything was committed is unknown.
            StoreFailed: it never will.
        """
        is_old, within_s = self._connection is not None, within_s or limit_s + GRACE_S
        try:
            return await self._run(work, limit_s, within_s)
        except StoreBlocked as blocked:
            if not (is_old and is_repeatable and _is_loss(blocked.__cause__)):
                raise
        return await self._run(work, limit_s, within_s)

    async def _run(self, work: Callable[[Connection], Awaitable[T]], limit_s: float, within_s: float) -> T:
        async with self._lock, self._failures():
            connection = await self._connected()
            with limited(connection, within_s):
                if limit_s == STATEMENT_S:
                    return await work(connection)
                await connection.execute(_LIMIT, (_limit(limit_s),))
                found = await work(connection)
                await connection.execute(_LIMIT, (_limit(STATEMENT_S),))
                return found

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
            self.connection_count += 1
            with limited(connection, STATEMENT_S):
                await connection.execute(_LIMIT, (_limit(STATEMENT_S),))
                await connection.execute(_SESSION, {"limit": _limit(STATEMENT_S)})
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


@contextlib.contextmanager
def limited(connection: Connection, within_s: float) -> Iterator[None]:
    """Hang up if the context is not left in time. Raise `TimeoutError` then."""
    has_hung_up = False

    def hang_up() -> None:
        nonlocal has_hung_up
        has_hung_up = True
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer is told that none comes

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
