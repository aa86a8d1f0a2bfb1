"""Meetings of a run's coordinators in PostgreSQL, and notifications of what each appends.

Rows of `epochal_replicas` and `epochal_leases` are unlogged: they cost no write-ahead log, and a database that fails
loses what was only true for seconds. All times are the database's own, whatever the coordinators' clocks say.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing

from psycopg.sql import SQL, Identifier

from epochal.coordinator.store.postgres.database import PostgresDatabase, limited
from epochal.coordinator.store.replication import LEASE_S, Heartbeats, MeetingResult, Program
from epochal.coordinator.store.sql.database import GRACE_S, STATEMENT_S, Statement
from epochal.state.errors import StoreBlocked, StoreFailed

log = logging.getLogger(__name__)

LISTEN_AGAIN_S = 0.25
"""Time between two attempts to listen while the database does not answer."""
QUIET_S = 10.0
"""Time without a notification after which a listener asks whether its connection still lives."""
LEAVE_WITHIN_S = 2.0
"""Maximum time to give the lease back; otherwise it ends by itself."""
FORGOTTEN_AFTER_S = 3600.0
"""Time after which a coordinator that was not seen is forgotten."""

_MEET = """
WITH present AS (
  INSERT INTO epochal_replicas (run_id, replica, url, program, rules, heartbeats, seen_at)
  VALUES (:run, :replica, :url, :program, :rules, :mine, clock_timestamp())
  ON CONFLICT (run_id, replica)
  DO UPDATE SET url = excluded.url, program = excluded.program, rules = excluded.rules,
    heartbeats = excluded.heartbeats, seen_at = excluded.seen_at
), lease AS (
  INSERT INTO epochal_leases AS held (run_id, holder, ends_at)
  VALUES (:run, :replica, clock_timestamp() + make_interval(secs => :lease))
  ON CONFLICT (run_id) DO UPDATE SET holder = excluded.holder, ends_at = excluded.ends_at
  WHERE held.holder = excluded.holder OR held.ends_at < clock_timestamp()
    OR held.ends_at > clock_timestamp() + make_interval(secs => 2 * :lease)  -- the server's clock was set back
  RETURNING holder
)
SELECT EXISTS (SELECT FROM lease), (SELECT sequence FROM epochal_runs WHERE run_id = :run), other.heartbeats
FROM (SELECT) one LEFT JOIN epochal_replicas other ON other.run_id = :run AND other.replica <> :replica
  AND other.seen_at > clock_timestamp() - make_interval(secs => :lease)
"""
_LEAVE = """
WITH left_ AS (DELETE FROM epochal_replicas WHERE run_id = :run AND replica = :replica)
DELETE FROM epochal_leases WHERE run_id = :run AND holder = :replica
"""
_FORGET = """
DELETE FROM epochal_replicas WHERE run_id = :run
AND seen_at < clock_timestamp() - make_interval(secs => :after)
"""
_IS_SERVED = """
SELECT FROM epochal_replicas WHERE run_id = :run
AND seen_at > clock_timestamp() - make_interval(secs => :lease) LIMIT 1
"""
_SERVED_AT = """
SELECT url FROM epochal_replicas replica LEFT JOIN epochal_leases lease USING (run_id)
WHERE run_id = :run AND url IS NOT NULL AND seen_at > clock_timestamp() - make_interval(secs => :lease)
ORDER BY lease.holder IS NOT DISTINCT FROM replica DESC, seen_at DESC LIMIT 1
"""


class PostgresReplication:
    """The `Replication` protocol over a database.

    Args:
        meeting: the connection for meetings.
        listening: the connection for notifications.
        run_id: the run.

    Attributes:
        url: where this coordinator is served, once that is known.
        program: which one it is.
    """

    def __init__(self, meeting: PostgresDatabase, listening: PostgresDatabase, run_id: str) -> None:
        self._meeting = meeting
        self._listening = listening
        self._run_id = run_id
        self._replica = os.urandom(16).hex()
        self.url: str | None = None
        self.program: Program | None = None
        self._has_met = False

    async def news(self) -> AsyncGenerator[int | None, None]:
        while True:
            with contextlib.suppress(StoreBlocked):
                async with aclosing(self._notified()) as notified:
                    async for sequence in notified:
                        yield sequence
            await asyncio.sleep(LISTEN_AGAIN_S)

    async def _notified(self) -> AsyncGenerator[int | None, None]:
        async with self._listening.alone() as connection:
            with limited(connection, STATEMENT_S + GRACE_S):
                await connection.execute(SQL("LISTEN {}").format(Identifier(channel_of(self._run_id))))
            while True:
                yield None
                async for told in connection.notifies(timeout=QUIET_S):
                    yield _sequence_in(told.payload)
                with limited(connection, STATEMENT_S + GRACE_S):
                    await connection.execute("SELECT")

    async def meet(self, mine: Heartbeats) -> MeetingResult:
        program = None if self.program is None else self.program.version
        rules = None if self.program is None else self.program.rules
        values = self._values() | {"url": self.url, "program": program, "rules": rules, "mine": _encoded(mine)}

        self._has_met = True
        (rows,) = await self._meeting.transact(Statement(_MEET, values), within_s=LEASE_S)  # a later lease is over
        is_ticking, sequence, _ = rows[0]
        others = tuple(_decoded(heartbeats) for _, _, heartbeats in rows if heartbeats is not None)
        return MeetingResult(is_ticking, sequence or 0, others)

    async def leave(self) -> None:
        if not self._has_met:
            return

        leaving = Statement(_LEAVE, self._values())
        forgetting = Statement(_FORGET, {"run": self._run_id, "after": FORGOTTEN_AFTER_S})
        with contextlib.suppress(StoreFailed, TimeoutError):
            async with asyncio.timeout(2 * LEAVE_WITHIN_S):  # another one may be waiting for the connection
                await self._meeting.transact(leaving, forgetting, within_s=LEAVE_WITHIN_S)
                self._has_met = False

    async def aclose(self) -> None:
        """Close both connections for good. May be called again."""
        await self._meeting.aclose()
        await self._listening.aclose()

    def _values(self) -> dict[str, object]:
        return {"run": self._run_id, "replica": self._replica, "lease": LEASE_S}


def channel_of(run_id: str) -> str:
    """Return the channel on which news of a run is notified; a run's own name may be too long for one."""
    return f"epochal_{hashlib.sha256(run_id.encode()).hexdigest()[:32]}"


async def served_at(database: PostgresDatabase, run_id: str) -> str | None:
    """Return the address of a coordinator that serves the run now, of the one that ticks if it is known."""
    try:
        (rows,) = await database.transact(Statement(_SERVED_AT, {"run": run_id, "lease": LEASE_S}))
    except StoreFailed:  # a standby has no unlogged tables
        return None
    return rows[0][0] if rows else None


async def is_served(database: PostgresDatabase, run_id: str) -> bool:
    """Return whether a coordinator that serves the run was seen lately. Raise `StoreFailed` if that is unknown."""
    (rows,) = await database.transact(Statement(_IS_SERVED, {"run": run_id, "lease": LEASE_S}))
    return bool(rows)


def _sequence_in(payload: str) -> int | None:
    """Return the number of the record that a notification names; None if it is another's, or unreadable."""
    try:
        return int(json.loads(payload)["sequence"])
    except (ValueError, KeyError, TypeError):
        return None


def _encoded(mine: Heartbeats) -> bytes:
    heard, closed = ({name: round(at_s, 3) for name, at_s in kept.items()} for kept in (mine.heard, mine.closed))
    return json.dumps([heard, closed, mine.now_s], separators=(",", ":")).encode()


def _decoded(body: bytes) -> Heartbeats:
    heard, closed, *more = json.loads(body)  # of a later version, perhaps
    return Heartbeats(heard, closed, more[0] if more else None)
