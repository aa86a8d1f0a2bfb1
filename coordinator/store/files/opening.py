"""Opening a run in a folder: its database in SQLite, its lock, and its blobs."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

from epochal.coordinator.store.failures import store_failure
from epochal.coordinator.store.files.blobs import DirectoryBlobs
from epochal.coordinator.store.files.folder import DATABASE_FILE, FolderPlace
from epochal.coordinator.store.kept_runs import KeptRun, KnownCoordinator
from epochal.coordinator.store.sql.database import Statement
from epochal.coordinator.store.sql.schema import check_schema
from epochal.coordinator.store.sql.sqlite import SqliteDatabase, connect, failure_of, log_of
from epochal.coordinator.store.sql.write_ahead_log import damage_in
from epochal.coordinator.store.store import Store, StoreReader
from epochal.runtime.files.durable_files import REAL_DISK, Disk
from epochal.state.config.blob_place import BlobPlace
from epochal.state.errors import StoreFailed

UNNAMED_RUN = "run"
"""Name in its folder of a run that has none yet."""
_RUN = "SELECT run_id FROM epochal_runs LIMIT 1"
_LISTED = "SELECT run_id, version, sequence, journal_bytes, changed_s FROM epochal_runs"


async def open_folder_store(
    run_dir: Path, max_blob_bytes: int, blobs: BlobPlace | None = None, run_id: str = "", disk: Disk = REAL_DISK
) -> Store:
    """Lock a run directory, create it if it does not exist, and delete interrupted uploads.

    Args:
        run_dir: the folder.
        max_blob_bytes: maximum size of all blobs.
        blobs: the object store that takes new blobs; None for the folder.
        run_id: names a run that is new, and its folder in an object store.
        disk: writes and syncs blobs.

    Raises:
        InvalidInput: its run is elsewhere now, or an object store cannot be used like this.
        StoreFailed: it cannot be created or written, or another coordinator serves it.
    """
    name, place, path = str(run_dir), FolderPlace(run_dir, disk), run_dir / DATABASE_FILE
    await place.lock()
    writing, other = SqliteDatabase(path, name, writes=True), SqliteDatabase(path, name, writes=True)
    async with contextlib.AsyncExitStack() as on_failure:
        for opened in (place, writing, other):
            on_failure.push_async_callback(opened.aclose)
        await asyncio.to_thread(_check_log, name, path)
        await other.make_tables()
        (found,) = await other.transact(Statement(_RUN))
        store = Store((writing, other), found[0][0] if found else run_id or UNNAMED_RUN, place, name)
        await store.begin()
        own = await DirectoryBlobs.open(run_dir, max_blob_bytes, disk)
        await store.open_blobs(own, run_id, blobs, max_blob_bytes)
        on_failure.pop_all()
    return store


def _check_log(name: str, path: Path) -> None:
    """Raise `StoreFailed` if transactions are lost that the database's write-ahead log held."""
    try:
        damage = damage_in(log_of(path))
    except OSError as error:
        raise store_failure(name, error) from error
    if damage is not None:
        raise StoreFailed(f"{name}: {damage}; restore a backup, or move {path.name}-wal away and start with --restored")


def open_folder_reader(run_dir: Path, *, writes: bool = False) -> StoreReader:
    """Open the run in a run directory, which another process may be serving, to read it.

    Args:
        run_dir: the folder.
        writes: whether notes may be written; then the caller has locked the run directory.

    Raises:
        InvalidInput: it holds no run, or tables of another version.
        StoreFailed: it cannot be read.
    """
    name, path = str(run_dir), run_dir / DATABASE_FILE
    try:
        with contextlib.closing(connect(path, writes=False)) as connection:
            tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'epochal_schema'").fetchone()
            number = connection.execute("SELECT max(number) FROM epochal_schema").fetchone() if tables[0] else (None,)
            if number[0] is None:
                _check_log(name, path)
            check_schema(number[0], name)
            found = connection.execute(_RUN).fetchone()
    except (sqlite3.Error, OSError) as error:
        raise failure_of(name, error) from error
    run_id = UNNAMED_RUN if found is None else found[0]
    database = SqliteDatabase(path, name, writes=writes)
    return StoreReader(database, run_id, FolderPlace(run_dir), name, DirectoryBlobs.for_reading(run_dir))


async def kept_run(run_dir: Path) -> KeptRun | None:
    """Return a run directory's run as a line of a list; None before its first record.

    Raises:
        InvalidInput: its tables are of another version.
        StoreFailed: it cannot be read.
    """
    place, database = FolderPlace(run_dir), SqliteDatabase(run_dir / DATABASE_FILE, str(run_dir), writes=False)
    async with contextlib.aclosing(database):
        check_schema(await database.schema(), str(run_dir))
        (rows,) = await database.transact(Statement(_LISTED))
    url = await place.served_at()
    serving = () if url is None else (KnownCoordinator(url, None, None, is_ticking=True),)
    for run_id, version, records, size_bytes, changed_s in rows:
        return KeptRun(run_id, version, records, size_bytes, changed_s, str(run_dir), serving)
    return None
