"""A store keeps a whole run, and is opened by its URL: a folder's, or a database's. Blobs may lie elsewhere."""

import asyncio
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from epochal.coordinator.store.files.backup_folder import refuse_unfinished
from epochal.coordinator.store.files.folder import run_directory_in
from epochal.coordinator.store.files.opening import kept_run, open_folder_reader, open_folder_store
from epochal.coordinator.store.kept_runs import KeptRun
from epochal.coordinator.store.replication import Program
from epochal.coordinator.store.store import Store, StoreReader
from epochal.runtime.http.redacted_urls import without_password
from epochal.state.config.blob_place import BlobPlace
from epochal.state.config.file_urls import path_of
from epochal.state.errors import ExtraMissing, InvalidInput

ALLOWED = "a folder, file:///PATH/OF/A/FOLDER, or postgresql://USER@HOST/DATABASE"
DATABASE_SCHEMES = ("postgresql", "postgres")
_OTHER_STORE = re.compile(
    r"[a-z][a-z0-9+.-]*:/|postgres(ql)?:|[^/]*:[^/]*@|\s*(host|hostaddr|port|dbname|user|password|passfile|service)\s*=",
    re.IGNORECASE,
)
"""The beginning of what is a URL of something else, perhaps mistyped, or libpq's own words, rather than a folder."""


class NoRunThere(InvalidInput):
    """A folder or database that should hold a run holds none. The user's fault."""


async def open_store(
    url: str,
    max_blob_bytes: int,
    blobs: BlobPlace | None = None,
    run_id: str = "",
    blobs_folder: Path | None = None,
    program: Program | None = None,
) -> Store:
    """Open a store to serve its run, and create it if it does not exist.

    Args:
        url: a run directory or the folder of `epochal up`, which contains one, as a path or a `file:` URL; or a
            database, in which other coordinators may serve the same run.
        max_blob_bytes: maximum size of all blobs together.
        blobs: the object store that takes new blobs; None for the run directory, or the folder of blobs.
        run_id: names the run in a database, and its folder in an object store.
        blobs_folder: the folder of blobs that all coordinators share which serve the run from a database.
        program: the one that serves it here, by the name that others which serve it see.

    Raises:
        InvalidInput: the URL is not supported, or names a backup that was not finished; or an object store cannot be
            used like this.
        StoreFailed: the store cannot be created, read or written, or another coordinator serves it.
    """
    if is_database(url):
        opening = _database_opening(url)
        opened: Store = await opening.open_database_store(url, max_blob_bytes, blobs, run_id, blobs_folder, program)
        return opened
    if blobs_folder is not None:
        raise InvalidInput(f"--blobs goes with a store in a database; {without_password(url)} keeps its blobs itself")
    folder, run_dir = _folders_of(url)
    refuse_unfinished(run_dir or folder)
    return await open_folder_store(run_dir or folder, max_blob_bytes, blobs, run_id)


def open_store_reader(url: str) -> StoreReader:
    """Open a store to read its run, without a lock and without changing it.

    Raises:
        InvalidInput: the URL is not supported, or there is no run, or a backup of one that was not finished.
        StoreFailed: a database cannot be read.
    """
    if is_database(url):
        found: StoreReader = _database_opening(url).open_database_reader(url)
        return found
    return open_folder_reader(run_directory_of(url))


def run_directory_of(url: str) -> Path:
    """Return the run directory that a URL names.

    Raises:
        NoRunThere: there is none.
        InvalidInput: it is an unfinished backup.
    """
    _, run_dir = _folders_of(url)
    if run_dir is None:
        allowed = "a run directory such as runs/RUN_ID, or the folder of `epochal up`"
        raise NoRunThere(f"{without_password(url)} holds no run; allowed: {allowed}")
    refuse_unfinished(run_dir)
    return run_dir


def runs_in(url: str) -> Sequence[KeptRun]:
    """Return the runs in the database at a URL, or in the run directories of a folder. Blocks.

    Raises:
        InvalidInput: it is wrong, or what is there holds no run, or another version's.
        StoreFailed: what is there cannot be read.
    """
    if not is_database(url):
        folder, own = _folders_of(url)
        if own is None and not folder.exists():
            raise InvalidInput(f"{url}: there is no such folder of runs")
        places = [own] if own or not folder.is_dir() else map(run_directory_in, sorted(folder.iterdir()))
        kept = [asyncio.run(kept_run(place)) for place in places if place is not None]
        return [run for run in kept if run is not None]
    found: Sequence[KeptRun] = _database_opening(url).kept_runs(url)
    return found


def is_database(url: str) -> bool:
    """Return whether a store's URL names a database."""
    scheme, found, _ = url.partition("://")
    return bool(found) and scheme in DATABASE_SCHEMES


def check_is_move(source: str, target: str) -> None:
    """Raise `InvalidInput` unless one of the two stores is a folder, and the other a database."""
    if is_database(source) is is_database(target):
        found = "both are databases" if is_database(source) else "neither is a database"
        raise InvalidInput(
            f"{without_password(source)} and {without_password(target)}: {found}; allowed: a folder and a database "
            "(postgresql://…), in either order"
        )


def need_driver(url: str) -> None:
    """Raise `InvalidInput` if the store is in a database, whose driver is not installed."""
    if is_database(url):
        _database_opening(url)


def _database_opening(url: str) -> ModuleType:
    """Return the module that opens a database. Raise `InvalidInput` if the driver is not installed."""
    try:
        return importlib.import_module("epochal.coordinator.store.postgres.opening")
    except ImportError as error:  # psycopg without libpq raises one without a name
        is_missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "psycopg"
        if not is_missing and "pq wrapper" not in str(error):
            raise
        scheme = url.partition("://")[0]
        raise ExtraMissing(
            f"a store at {scheme}:// needs psycopg with libpq: pip install 'epochal[postgres]'"
        ) from error


def _folders_of(url: str) -> tuple[Path, Path | None]:
    """Return the folder at the URL, and the run directory that it is or contains, or None."""
    folder = folder_of(url)
    try:
        return folder, run_directory_in(folder)
    except OSError as error:
        raise InvalidInput(f"the store {without_password(url)} cannot be opened: {error.strerror or error}") from error


def folder_of(url: str) -> Path:
    """Return the folder that a store's name or `file:` URL names. Raise `InvalidInput` if it names none."""
    if not url:
        raise InvalidInput(f"the store's name is empty; allowed: {ALLOWED}")
    if not url.lower().startswith("file:"):
        if _OTHER_STORE.match(url):
            raise _not_a_store(url)
        return Path(url)
    try:
        return Path(path_of(url))
    except ValueError as error:
        raise _not_a_store(url) from error


def _not_a_store(url: str) -> InvalidInput:
    return InvalidInput(f"the store {without_password(url)} cannot be opened; allowed: {ALLOWED}")
