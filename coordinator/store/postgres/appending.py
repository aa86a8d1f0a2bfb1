"""The connection by which a coordinator appends to a run in PostgreSQL: to the server of which the journal was read.

The first record that is kept on a server notes it, in the same transaction. Others that serve the run are notified of
each record.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import psycopg

from epochal.coordinator.machine.journal_records import JournalRecord
from epochal.coordinator.store.postgres.database import Connection, PostgresDatabase, executed
from epochal.coordinator.store.postgres.replication import channel_of
from epochal.coordinator.store.postgres.server_identity import (
    IDENTITY,
    IS_SYNCHRONOUS,
    ServerIdentity,
    identity_in,
    parse_identity,
)
from epochal.coordinator.store.sql.database import Database, Row, Statement
from epochal.coordinator.store.sql.notes import SERVER, Notes
from epochal.state.errors import StoreBlocked, StoreConflict, StoreFailed
from epochal.state.wire import canonical_json

_NEWS = f"SELECT {IS_SYNCHRONOUS}, pg_notify(:channel, :news)"


class AppendingDatabase(PostgresDatabase):
    """The `JournalDatabase` protocol over a connection to PostgreSQL."""

    def __init__(self, conninfo: str, name: str, run_id: str) -> None:
        super().__init__(conninfo, name)
        self._run_id = run_id
        self._server: ServerIdentity | None = None
        """The server of which the journal was read; None before, or if it does not identify itself."""
        self._is_note_due = True
        """Whether the next record notes the server."""
        self._asked: tuple[Connection | None, ServerIdentity | None] = (None, None)
        """The connection that was asked last for its server, and the answer."""

    async def follow(self, reading: Database) -> bool:
        self._server = None
        server, other = await _identity(self), await _identity(reading)
        if server is not None and other is not None and not server.is_same(other):
            raise StoreBlocked(
                f"{self.name}: two servers answer, on timelines {server.timeline} and {other.timeline} of their "
                "cluster; one of them must end",
                is_full=False,
            )
        noted = parse_identity(await Notes(reading, self._run_id).read(SERVER))
        self._server, self._is_note_due = server, noted != server
        return noted is not None and server is not None and not server.has_all_of(noted)

    async def _check_server(self, connection: Connection) -> None:
        """Raise unless the connection leads to the server of which the journal was read.

        Raises:
            StoreBlocked: it leads to one whose place another has taken.
            StoreConflict: it leads to one that has taken the other's place.
        """
        if self._asked[0] is not connection:
            self._asked = (connection, await _identity_at(connection))
        found, known = self._asked[1], self._server
        if found is None or known is None or found.is_same(known):
            return
        if found.was_replaced_by(known):
            raise StoreBlocked(
                f"{self.name}: a former primary answers (timeline {found.timeline}); the run was kept on timeline "
                f"{known.timeline} since",
                is_full=False,
            )
        raise StoreConflict(f"{self.name}: another server has taken over")

    def beside(self, record: JournalRecord) -> Sequence[Statement]:
        news = json.dumps({"run": self._run_id, "version": record.version, "sequence": record.sequence})
        telling = Statement(_NEWS, {"channel": channel_of(self._run_id), "news": news})
        if not self._is_note_due or self._server is None:
            return (telling,)
        return telling, Notes(self, self._run_id).writing(SERVER, canonical_json(self._server))

    def note_rows(self, rows: Sequence[Sequence[Row]]) -> None:
        if self._server is not None:
            is_synchronous = bool(rows[0][0][0])
            self._is_note_due = is_synchronous != self._server.is_synchronous
            self._server = replace(self._server, is_synchronous=is_synchronous)


async def _identity(database: Database) -> ServerIdentity | None:
    """Return the server that answers; None if it does not identify itself (some services' do not)."""
    try:
        return identity_in((await database.transact(Statement(IDENTITY)))[0])
    except StoreBlocked:
        raise
    except StoreFailed:
        return None


async def _identity_at(connection: Connection) -> ServerIdentity | None:
    """Return the server of a connection, as `_identity` does. Raise `psycopg.OperationalError` if it is gone."""
    try:
        return identity_in((await executed(connection, [Statement(IDENTITY)]))[0])
    except psycopg.OperationalError:
        raise
    except psycopg.Error:
        return None
