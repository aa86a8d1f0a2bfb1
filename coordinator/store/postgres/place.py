"""A run's place in a database of PostgreSQL: advisory locks, the server's clock, and who serves it now."""

import asyncio
import contextlib
import hashlib
import logging
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from epochal.coordinator.store.postgres.address import DatabaseAddress
from epochal.coordinator.store.postgres.database import CONNECT_WITHIN_S, PostgresDatabase
from epochal.coordinator.store.postgres.replication import PostgresReplication, is_served, served_at
from epochal.coordinator.store.sql.database import Statement
from epochal.coordinator.store.sql.notes import STATE_FILE, Notes
from epochal.runtime.clock import Clock
from epochal.state.errors import StoreBlocked, StoreFailed

log = logging.getLogger(__name__)

MAX_SWEEP_S = 60.0
"""Time after which a copy no longer waits for a sweep to end."""
POLL_S = 0.1
RETRY_S = 0.25
"""Time between two attempts to go on while the database does not keep anything."""

_WRITABLE = "SELECT current_setting('transaction_read_only')"
_NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"
_ORIGIN = """
SELECT concat_ws('/', (SELECT system_identifier FROM pg_control_system()),
  (SELECT oid FROM pg_database WHERE datname = current_database()), 'epochal_runs'::regclass::oid)
"""


class _DatabaseClock:
    """A clock that shows the database's time, as of one reading, and goes on by this machine's."""

    def __init__(self, clock: Clock, ahead_s: float) -> None:
        self._clock = clock
        self._ahead_s = ahead_s

    def wall_s(self) -> float:
        return self._clock.monotonic_s() + self._ahead_s

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


class ServerPlace:
    """The `Place` protocol over a run in a database.

    Args:
        address: the database.
        database: a connection to it.
        run_id: the run.
        replication: by which this coordinator serves it; None for who only reads.
    """

    retry_s = RETRY_S

    def __init__(
        self,
        address: DatabaseAddress,
        database: PostgresDatabase,
        run_id: str,
        replication: PostgresReplication | None = None,
    ) -> None:
        self._address = address
        self._database = database
        self._run_id = run_id
        self._replication = replication
        self._name = address.name_of(run_id)
        self._is_sweep_put_off = False
        self._now_s = (0.0, 0.0)

    @property
    def scratch(self) -> Path:
        return Path(tempfile.gettempdir())

    async def origin(self) -> bytes:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        (now,), (origin,) = await self._database.transact(Statement(_NOW), Statement(_ORIGIN))
        self._now_s = float(now[0]), (asked_s + loop.time()) / 2
        return str(origin[0]).encode()

    def clock(self, system: Clock) -> Clock:
        database_s, loop_s = self._now_s
        elapsed_s = asyncio.get_running_loop().time() - loop_s
        return _DatabaseClock(system, database_s + elapsed_s - system.monotonic_s())

    async def is_served(self) -> bool:
        return await is_served(self._database, self._run_id)

    async def served_at(self) -> str | None:
        return await served_at(self._database, self._run_id)

    def note_address(self, url: str) -> None:
        if self._replication is not None:
            self._replication.url = url

    @contextlib.asynccontextmanager
    async def sweeping(self) -> AsyncIterator[bool]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                is_locked = await stack.enter_async_context(self._locked("", within_s=0.0))
            except StoreBlocked as blocked:  # the lock needs a connection of its own, and the run goes on without it
                if not self._is_sweep_put_off:
                    log.warning("sweep_put_off", extra={"reason": str(blocked)})
                self._is_sweep_put_off, is_locked = True, False
            else:
                self._is_sweep_put_off = False
            yield is_locked

    @contextlib.asynccontextmanager
    async def copying(self) -> AsyncIterator[None]:
        async with self._locked("_shared", MAX_SWEEP_S) as is_locked:
            if not is_locked:
                raise StoreFailed(f"{self._name}: its coordinators have been deleting blobs for {MAX_SWEEP_S:g} s")
            yield

    @contextlib.asynccontextmanager
    async def _locked(self, kind: str, within_s: float) -> AsyncIterator[bool]:
        """Hold an advisory lock with a connection of its own, and yield whether it was free within the time.

        The lock ends with the connection, however the process ends; but that the server notices a little later.
        """
        lock = {"lock": _lock_of(self._run_id)}
        taking = Statement(f"SELECT pg_try_advisory_lock{kind}(:lock)", lock)
        giving_back = Statement(f"SELECT pg_advisory_unlock{kind}(:lock)", lock)
        database = PostgresDatabase(self._address.locking(), self._name)
        try:
            ((found,),) = await database.transact(taking)
            for _ in range(0 if found[0] else round(within_s / POLL_S)):
                await asyncio.sleep(POLL_S)
                ((found,),) = await database.transact(taking)
                if found[0]:
                    break
            yield bool(found[0])
            if found[0]:
                with contextlib.suppress(StoreBlocked, StoreFailed):
                    await database.transact(giving_back)
        finally:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                await database.aclose()

    async def save_state_file(self, text: str) -> None:
        await Notes(self._database, self._run_id).write(STATE_FILE, text.encode())

    async def check_room(self, size_bytes: int) -> None:
        del size_bytes  # nobody can ask a database how much room it has
        ((row,),) = await self._database.transact(Statement(_WRITABLE))
        if row[0] != "off":
            raise StoreBlocked(f"{self._name} is read-only at the moment", is_full=False)

    async def aclose(self) -> None:
        if self._replication is not None:
            await self._replication.aclose()


def _lock_of(run_id: str) -> int:
    """Return the number of the advisory lock for the sweeps of a run."""
    digest = hashlib.sha256(f"epochal/sweep\0{run_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
