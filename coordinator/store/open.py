"""The place where a run is kept, as a whole, and how it is opened: a store is a URL.

A folder is the only kind yet (`coordinator/store/directory`). `MemoryStore` offers the same to tests and simulations.
"""

from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from coordinator.store.blobs import BlobReader, BlobStore
from coordinator.store.directory.run_directory import RunDirectory, RunDirectoryReader, run_directory_in
from coordinator.store.journal import Journal, JournalReader
from coordinator.store.keys import CoordinatorKeys
from state.errors import InvalidInput

ALLOWED = "a folder, or file:///PATH/OF/A/FOLDER"


class StoreReader(Protocol):
    """A run that is only read; a coordinator may serve it meanwhile."""

    @property
    def journal(self) -> JournalReader: ...

    @property
    def blobs(self) -> BlobReader: ...

    @property
    def torn_bytes(self) -> int:
        """How many bytes of an unfinished last record were found when the journal was read, and left out."""
        ...


class Store(StoreReader, Protocol):
    """A run that a coordinator serves. Opening it takes an exclusive lock where the medium has one."""

    @property
    def journal(self) -> Journal: ...

    @property
    def blobs(self) -> BlobStore: ...

    @property
    def keys(self) -> CoordinatorKeys: ...

    @property
    def journal_bytes(self) -> int:
        """How many bytes the journal takes up."""
        ...

    async def save_state_file(self, text: str) -> None:
        """Replace the kept `state.toml` as a whole. Raise `StoreFailed` when the medium fails."""
        ...

    async def aclose(self) -> None:
        """Release the lock. May be called again."""
        ...


async def open_store(url: str, max_blob_bytes: int) -> Store:
    """Open the store of a run to serve it; one that does not exist is created.

    Args:
        url: a folder or its `file:` URL: a run directory, or the folder of `epochal up`, which holds one.
        max_blob_bytes: the bound of all blobs together.

    Raises:
        InvalidInput: the URL is of no known kind.
        StoreFailed: the store cannot be created, read or written, or another coordinator serves it.
    """
    folder, run_dir = _folders_of(url)
    return await RunDirectory.open(run_dir or folder, max_blob_bytes)


def open_store_reader(url: str) -> StoreReader:
    """Open the store of a run to read it, without a lock and without changing it.

    Args:
        url: as for `open_store`.

    Raises:
        InvalidInput: the URL is of no known kind, or no run is kept there.
    """
    _, run_dir = _folders_of(url)
    if run_dir is None:
        raise InvalidInput(
            f"{url} holds no run; allowed: a run directory such as runs/RUN_ID, or the folder of `epochal up`"
        )
    return RunDirectoryReader(run_dir)


def _folders_of(url: str) -> tuple[Path, Path | None]:
    """Return the folder that the URL names and the run directory that it is or holds, if it does."""
    folder = _folder_of(url)
    try:
        return folder, run_directory_in(folder)
    except OSError as error:
        raise InvalidInput(f"the store {url} cannot be opened: {error.strerror or error}") from error


def _folder_of(url: str) -> Path:
    if not url:
        raise InvalidInput(f"the store's name is empty; allowed: {ALLOWED}")
    if "://" not in url and not url.startswith("file:"):
        return Path(url)
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise InvalidInput(f"the store {url} cannot be opened; allowed: {ALLOWED}")
    if parts.query or parts.fragment:
        raise InvalidInput(f"the store {url} cannot be opened: a folder has no ? or #; allowed: {ALLOWED}")
    return Path(path)
