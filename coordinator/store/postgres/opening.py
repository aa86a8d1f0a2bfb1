"""Opening a run in PostgreSQL by its URL, to serve it or to read it, with its blobs."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.coordinator.store.kept_runs import KeptRun, KnownCoordinator
from epochal.coordinator.store.postgres.address import DatabaseAddress, parse_address
from epochal.coordinator.store.postgres.appending import AppendingDatabase
from epochal.coordinator.store.postgres.database import PostgresDatabase
from epochal.coordinator.store.postgres.place import ServerPlace
from epochal.coordinator.store.postgres.replication import PostgresReplication
from epochal.coordinator.store.replication import LEASE_S, Program
from epochal.coordinator.store.sql.database import Row, Statement
from epochal.coordinator.store.sql.notes import BLOBS, BLOBS_OWNER
from epochal.coordinator.store.sql.schema import check_schema
from epochal.coordinator.store.store import Store, StoreReader
from epochal.state.config.blob_place import BlobPlace
from epochal.state.errors import InvalidInput, StoreBlocked, StoreFailed

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
