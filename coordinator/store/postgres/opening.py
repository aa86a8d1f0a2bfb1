"""Opening a run in PostgreSQL by its URL, to serve it or to read it, and the server to which a coordinator appends.

After a failover another server answers, which may lack the last records. A standby that is promoted begins a new
timeline of its cluster. The run notes on which one it was last kept, and whether commits there were answered only once
a standby had them. From both a coordinator knows, also after a start, whether records may be missing that clients have
seen.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg

from epochal.coordinator.machine.journal_records import JournalRecord
from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.coordinator.store.kept_runs import KeptRun, KnownCoordinator
from epochal.coordinator.store.postgres.address import DatabaseAddress, parse_address
from epochal.coordinator.store.postgres.database import Connection, PostgresDatabase, executed
from epochal.coordinator.store.postgres.place import ServerPlace
from epochal.coordinator.store.postgres.replication import PostgresReplication, channel_of
from epochal.coordinator.store.replication import LEASE_S, Program
from epochal.coordinator.store.sql.database import Database, Row, Statement
from epochal.coordinator.store.sql.notes import BLOBS, BLOBS_OWNER, SERVER, Notes
from epochal.coordinator.store.sql.schema import check_schema
from epochal.coordinator.store.store import Store, StoreReader
from epochal.state.config.blob_place import BlobPlace
from epochal.state.errors import InvalidDocument, InvalidInput, StoreBlocked, StoreConflict, StoreFailed
from epochal.state.wire import canonical_json, parse_document
from epochal.state.wire_document import WireDocument

IS_SYNCHRONOUS = (
    "current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') <> 'local'"
)
"""SQL: whether a commit is answered only once a standby has it."""
IDENTITY = f"""
SELECT (SELECT system_identifier FROM pg_control_system())::text,
  ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int, {IS_SYNCHRONOUS}
WHERE NOT pg_is_in_recovery()
"""
_NEWS = f"SELECT {IS_SYNCHRONOUS}, pg_notify(:channel, :news)"
MAX_LISTED = 20
"""Maximum number of runs that a message names."""

_RUNS = """
SELECT run.run_id, run.version, run.sequence, run.journal_bytes, run.changed_s, note.value
FROM epochal_runs run LEFT JOIN epochal_notes note ON note.run_id = run.run_id AND note.name = :blobs
ORDER BY run.run_id
"""
_SERVING = """
SELECT run_id, url, program, rules, lease.holder IS NOT DISTINCT FROM replica AND lease.ends_at > clock_timestamp()
FROM epochal_replicas LEFT JOIN epochal_leases lease USING (run_id)
WHERE seen_at > clock_timestamp() - make_interval(secs => :lease) ORDER BY run_id, url
"""


@dataclass(frozen=True, slots=True)
class ServerIdentity(WireDocument):
    """A server that takes writes, as the run notes it.

    Attributes:
        system: identifier of its cluster, which its standbys share.
        timeline: number of its cluster's history, which grows with each promotion.
        is_synchronous: whether a commit is answered only once a standby has it.
    """

    system: str
    timeline: int
    is_synchronous: bool

    def is_same(self, other: "ServerIdentity") -> bool:
        """Return whether no promotion lies between them."""
        return (self.system, self.timeline) == (other.system, other.timeline)

    def was_replaced_by(self, other: "ServerIdentity") -> bool:
        """Return whether the other one has taken this one's place, so that this one must not be written to."""
        return self.system == other.system and self.timeline < other.timeline

    def has_all_of(self, before: "ServerIdentity") -> bool:
        """Return whether it has each record that was answered where the run was kept before."""
        return self.system == before.system and (self.timeline == before.timeline or before.is_synchronous)


def parse_identity(note: bytes | None) -> ServerIdentity | None:
    """Return the identity in a note; None if there is none that can be read."""
    try:
        return None if note is None else parse_document(ServerIdentity, note)
    except InvalidDocument:
        return None


def identity_in(rows: Sequence[Row]) -> ServerIdentity | None:
    """Return the server that has answered `IDENTITY`; None if it takes no writes."""
    return ServerIdentity(str(rows[0][0]), int(rows[0][1]), bool(rows[0][2])) if rows else None


class AppendingDatabase(PostgresDatabase):
    """The `JournalDatabase` protocol over a connection to the server of which the journal was read.

    The first record that is kept on a server notes it, in the same transaction. Others that serve the run are notified
    of each record.
    """

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
        """Raise `StoreBlocked` at a server that another replaced, `StoreConflict` at one that replaced another."""
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


async def open_database_store(
    url: str,
    max_blob_bytes: int,
    place: BlobPlace | None,
    run_id: str,
    folder: Path | None,
    program: Program | None = None,
) -> Store:
    """Open a run in a database to serve it; others may be serving it.

    Args:
        url: the database; it may name the run and the folder of its blobs.
        max_blob_bytes: maximum size of all blobs.
        place: the object store that takes new blobs; None for the folder.
        run_id: the run.
        folder: a folder that all coordinators of the run share; None if the URL names it, or there is none.
        program: the one that serves the run here.

    Raises:
        InvalidInput: the URL names another run, or there is no place for blobs; the tables are another version's.
        StoreFailed: the database, the folder or the object store cannot be used.
    """
    address = parse_address(url)
    if address.run_id not in (None, run_id):
        raise InvalidInput(f"--store names run {address.run_id!r}, but the state file is of run {run_id!r}")
    folder = folder or (None if address.blobs is None else Path(address.blobs))
    if folder is None and place is None:
        raise InvalidInput(
            f"{address.name} keeps no results and checkpoints. Name an object store for them (`[blobs] store` in the "
            "state file), or a folder that all coordinators of the run share (--blobs DIR)"
        )
    store = await open_journal(address, run_id, program)
    try:
        own = None
        if folder is not None:
            owner = await store.notes.create(BLOBS_OWNER, os.urandom(16).hex().encode())
            own = await DirectoryBlobs.shared(folder.absolute(), run_id, owner, max_blob_bytes)
            store.blobs_folder = str(folder.absolute()).encode()
        await store.open_blobs(own, run_id, place, max_blob_bytes)
    except BaseException:
        await store.aclose()
        raise
    return store


async def open_journal(address: DatabaseAddress, run_id: str, program: Program | None = None) -> Store:
    """Open a run in a database as `open_database_store` does, before it is known where its blobs are."""
    name, conninfo = address.name_of(run_id), address.writing()
    writing = AppendingDatabase(conninfo, name, run_id)
    other, meeting, listening = (PostgresDatabase(conninfo, name) for _ in range(3))
    replication = PostgresReplication(meeting, listening, run_id)
    replication.program = program
    store = Store((writing, other), run_id, ServerPlace(address, other, run_id, replication), name, replication)
    try:
        await store.begin()
    except BaseException:
        await store.aclose()
        raise
    return store


def kept_runs(url: str) -> list[KeptRun]:
    """Return the runs in the database at a URL, those of others than it names too.

    Raises:
        InvalidInput: the URL is wrong, or the database holds tables of no run, or another version's.
        StoreFailed: the database cannot be read.
    """
    return _kept_runs(parse_address(url))


def _kept_runs(address: DatabaseAddress) -> list[KeptRun]:
    with ThreadPoolExecutor(1) as thread:  # the caller's own may be running an event loop
        return thread.submit(asyncio.run, _listed(address)).result()


async def _listed(address: DatabaseAddress) -> list[KeptRun]:
    """Return the runs in a database, within the limits of `PostgresDatabase`."""
    database = PostgresDatabase(address.conninfo, address.name, is_kept=False)
    check_schema(await database.schema(), address.name)
    (rows,) = await database.transact(Statement(_RUNS, {"blobs": BLOBS}))
    serving = await _coordinators(database)
    return [
        KeptRun(run_id, version, records, size_bytes, changed_s, _folder_in(note), tuple(serving.get(run_id, ())))
        for run_id, version, records, size_bytes, changed_s, note in rows
    ]


def _folder_in(note: bytes | None) -> str | None:
    return None if note is None else bytes(note).decode()


async def _coordinators(database: PostgresDatabase) -> dict[str, list[KnownCoordinator]]:
    """Return the coordinators that serve each run now."""
    rows: list[Row] = []
    try:
        (rows,) = await database.transact(Statement(_SERVING, {"lease": LEASE_S}))
    except StoreBlocked:
        raise
    except StoreFailed:  # a standby has no unlogged tables
        return {}
    found: dict[str, list[KnownCoordinator]] = {}
    for run_id, url, program, rules, is_ticking in rows:
        found.setdefault(run_id, []).append(KnownCoordinator(url, program, rules, is_ticking))
    return found


def open_database_reader(url: str, *, writes: bool = False) -> StoreReader:
    """Open a run in a database to read it. The URL names it, unless it is the only one.

    Args:
        url: the database.
        writes: whether notes may be written.

    Raises:
        InvalidInput: there is no such run, or there are several and the URL names none.
        StoreFailed: the database cannot be read.
    """
    address = parse_address(url)
    runs = _kept_runs(address)
    named = [run for run in runs if address.run_id in (None, run.run_id)]
    if len(named) != 1:
        listed = ", ".join(repr(run.run_id) for run in runs[:MAX_LISTED]) or "none"
        wanted = "no run" if address.run_id is None else f"run {address.run_id!r}"
        raise InvalidInput(f"{address.name} names {wanted}; allowed: ?run=RUN_ID with one of its runs: {listed}")
    run = named[0]
    folder, name = address.blobs or run.blobs, address.name_of(run.run_id)
    database = PostgresDatabase(address.writing() if writes else address.conninfo, name, is_kept=False)
    files = None if folder is None else DirectoryBlobs.for_reading(Path(folder) / run.run_id)
    reader = StoreReader(database, run.run_id, ServerPlace(address, database, run.run_id), name, files)
    reader.blobs_folder = None if folder is None else Path(folder) / run.run_id
    return reader
