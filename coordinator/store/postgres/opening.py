"""Opening a run in PostgreSQL by its URL, to serve it or to read it, with its blobs."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psycopg

from epochal.coordinator.store.directory.blobs import DirectoryBlobs
from epochal.coordinator.store.kept_runs import KeptRun, KnownCoordinator
from epochal.coordinator.store.layered_blobs import layered_reader
from epochal.coordinator.store.memory import MemoryBlobs
from epochal.coordinator.store.object_store.opening import reader_with_object_stores, with_object_stores
from epochal.coordinator.store.postgres.address import DatabaseAddress, parse_address
from epochal.coordinator.store.postgres.database import Connection, Database
from epochal.coordinator.store.postgres.migrations import LAST_STEP, check_readable
from epochal.coordinator.store.postgres.notes import BLOBS, BLOBS_OWNER, NoteInDatabase
from epochal.coordinator.store.postgres.store import PostgresReader, PostgresStore
from epochal.coordinator.store.replication import LEASE_S, Program
from epochal.state.config.blob_place import BlobPlace
from epochal.state.errors import InvalidInput

UNBOUNDED_BYTES = 2**62
MAX_LISTED = 20
"""Maximum number of runs that a message names."""

_RUNS = """
SELECT run.run_id, run.version, run.sequence, run.journal_bytes, extract(epoch FROM run.changed_at)::float8, note.value
FROM epochal_runs run LEFT JOIN epochal_notes note ON note.run_id = run.run_id AND note.name = %s
ORDER BY run.run_id
"""


_SERVING = """
SELECT run_id, url, program, rules, lease.holder IS NOT DISTINCT FROM replica AND lease.ends_at > clock_timestamp()
FROM epochal_replicas LEFT JOIN epochal_leases lease USING (run_id)
WHERE seen_at > clock_timestamp() - make_interval(secs => %(lease)s) ORDER BY run_id, url
"""


async def open_database_store(
    url: str,
    max_blob_bytes: int,
    place: BlobPlace | None,
    run_id: str,
    folder: Path | None,
    program: Program | None = None,
) -> PostgresStore:
    """Open a run in a database to serve it; others may be serving it.

    Args:
        url: the database; it may name the run and the folder of its blobs.
        max_blob_bytes: maximum size of all blobs.
        place: the object store that takes new blobs; None for the folder.
        run_id: the run.
        folder: a folder that all coordinators of the run share; None if the URL names it, or there is none.
        program: the one that serves the run here.

    Raises:
        InvalidInput: the URL names another run, or there is no place for blobs; the tables are newer than this program.
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
    store = await PostgresStore.open(address, run_id, MemoryBlobs(0), program)
    try:
        own = None
        if folder is not None:
            owner = await store.notes.create(BLOBS_OWNER, os.urandom(16).hex().encode())
            own = await DirectoryBlobs.shared(folder.absolute(), run_id, owner, max_blob_bytes)
            store.blobs_note = str(folder.absolute()).encode()
        note = NoteInDatabase(store.notes, store.name)
        store.take_blobs(await with_object_stores(note, own, run_id, place, max_blob_bytes))
    except BaseException:
        await store.aclose()
        raise
    return store


async def shared_folder(folder: Path, run_id: str) -> tuple[DirectoryBlobs, bytes]:
    """Return a run's blobs in a folder that coordinators share, and the random name by which they are its store's.

    Raises:
        InvalidInput: the folder holds blobs of such a run already.
        StoreFailed: it is missing, or cannot be written.
    """
    if await asyncio.to_thread((folder / run_id).exists):
        raise InvalidInput(f"{folder / run_id} exists; allowed: a folder that holds no blobs of this run")
    owner = os.urandom(16).hex().encode()
    return await DirectoryBlobs.shared(folder, run_id, owner, UNBOUNDED_BYTES), owner


def kept_runs(url: str) -> list[KeptRun]:
    """Return the runs in the database at a URL, those of others than it names too.

    Raises:
        InvalidInput: the URL is wrong, or the database holds tables of no run, or newer ones than this program's.
        StoreFailed: the database cannot be read.
    """
    return _kept_runs(parse_address(url))


def _kept_runs(address: DatabaseAddress) -> list[KeptRun]:
    with ThreadPoolExecutor(1) as thread:  # the caller's own may be running an event loop
        return thread.submit(asyncio.run, _listed(address)).result()


async def _listed(address: DatabaseAddress) -> list[KeptRun]:
    """Return the runs in a database, within the limits of `Database`."""
    database = Database(address.conninfo, address.name, is_kept=False)
    return await database.run(partial(_read_runs, address.name))


async def _read_runs(name: str, connection: Connection) -> list[KeptRun]:
    try:
        row = await (await connection.execute(LAST_STEP)).fetchone()
    except psycopg.errors.UndefinedTable:
        row = None
    check_readable(0 if row is None else row[0], name)
    rows = await (await connection.execute(_RUNS, (BLOBS,))).fetchall()
    serving = await _coordinators(connection)
    return [
        KeptRun(
            run_id,
            version,
            records,
            size_bytes,
            changed_s,
            None if folder is None else bytes(folder).decode(),
            tuple(serving.get(run_id, ())),
        )
        for run_id, version, records, size_bytes, changed_s, folder in rows
    ]


async def _coordinators(connection: Connection) -> dict[str, list[KnownCoordinator]]:
    """Return the coordinators that serve each run now."""
    try:
        rows = await (await connection.execute(_SERVING, {"lease": LEASE_S})).fetchall()
    except psycopg.errors.FeatureNotSupported:  # a standby has no unlogged tables
        return {}
    found: dict[str, list[KnownCoordinator]] = {}
    for run_id, url, program, rules, is_ticking in rows:
        found.setdefault(run_id, []).append(KnownCoordinator(url, program, rules, is_ticking))
    return found


def open_database_reader(url: str) -> PostgresReader:
    """Open a run in a database to read it. The URL names it, unless it is the only one.

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
    folder = address.blobs or run.blobs
    reader = PostgresReader(address, run.run_id)
    reader.blobs_folder = None if folder is None else Path(folder) / run.run_id
    own = None if reader.blobs_folder is None else DirectoryBlobs.for_reading(reader.blobs_folder)
    others = reader_with_object_stores(NoteInDatabase(reader.notes, reader.name), own)
    reader.blobs = layered_reader(others, reader.recorded_blobs)
    return reader
