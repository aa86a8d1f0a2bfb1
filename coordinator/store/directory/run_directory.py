"""The run directory: the default store, for one coordinator on one machine.

```
RUN_DIR/
├── lock                    held by the coordinator that serves the run; contains its process ID and its address
├── sweep.lock              held by a sweep, or shared by those who copy (coordinator/store/directory/sweep_lock.py)
├── backup.json             in a backup from which nobody has started (coordinator/store/directory/backup_folder.py)
├── state.toml              the run's state file, rewritten at phase changes; a new run can start from it
├── journal/00000000.log    numbered segments (coordinator/store/directory/segments.py)
├── journal/history.kept    the run's history, derived from the segments (coordinator/insight/kept_history.py)
├── object-stores.json      which object stores hold blobs (coordinator/store/object_store/opening.py)
├── blobs/ab/abcd…          results and checkpoints by SHA-256 (coordinator/store/directory/blobs.py)
├── blobs/packs/            small ones, many in a file (coordinator/store/directory/packs.py)
└── keys/                   the coordinator's key, the admin token's hash (coordinator/store/directory/keys.py)
```
"""

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import BinaryIO

from epochal.coordinator.store.blobs import BlobReader, BlobStore
from epochal.coordinator.store.directory import sweep_lock
from epochal.coordinator.store.directory.backup_folder import NOTE_FILE
from epochal.coordinator.store.directory.blobs import BLOBS_FOLDER, DirectoryBlobs
from epochal.coordinator.store.directory.journal import DirectoryHistory, DirectoryJournal, WritingThread
from epochal.coordinator.store.directory.journal_files import JOURNAL_FOLDER, segment_paths
from epochal.coordinator.store.directory.keys import KEYS_FOLDER, DirectoryKeys
from epochal.coordinator.store.journal import STORE_RETRY_S
from epochal.coordinator.store.object_store.opening import NOTE_FILE as STORES_FILE
from epochal.coordinator.store.recorded_blobs import RecordedBlobs
from epochal.coordinator.store.replication import Replication
from epochal.runtime.clock import Clock
from epochal.runtime.files.durable_files import (
    PRIVATE_FOLDER_MODE,
    PRIVATE_MODE,
    REAL_DISK,
    Disk,
    check_room,
    make_folder,
    make_private,
    open_private,
    replace_file,
)
from epochal.state.errors import StoreFailed

log = logging.getLogger(__name__)

STATE_FILE = "state.toml"
LOCK_FILE = "lock"
OWN_FOLDERS = frozenset({JOURNAL_FOLDER, BLOBS_FOLDER, KEYS_FOLDER})
OWN_FILES = frozenset({STATE_FILE, f"{STATE_FILE}.new", LOCK_FILE, sweep_lock.SWEEP_LOCK_FILE, NOTE_FILE, STORES_FILE})
TESTNET_FOLDER = "coordinator"
"""Name of the run directory in the folder of `epochal up`."""
MAX_LOCK_BYTES = 512


class StoreInUse(StoreFailed):
    """Another process serves the run in this run directory. Do not retry before it has ended."""


def run_directory_in(folder: Path) -> Path | None:
    """Return the run directory with a journal that the folder is, or contains if `epochal up` made it; else None."""
    return next((path for path in (folder, folder / TESTNET_FOLDER) if segment_paths(path)), None)


class RunDirectory:
    """The `Store` protocol over a run directory, locked."""

    replication: Replication | None = None
    recorded_blobs: RecordedBlobs | None = None
    retry_s = STORE_RETRY_S

    def __init__(self, run_dir: Path, lock: BinaryIO, blobs: DirectoryBlobs, disk: Disk) -> None:
        self.name = str(run_dir)
        self._run_dir = run_dir
        self._lock: BinaryIO | None = lock
        self._disk = disk
        self._thread = WritingThread(run_dir)
        self.journal = DirectoryJournal(run_dir, self._thread, disk)
        self.blobs: BlobStore = blobs
        self.keys = DirectoryKeys(run_dir)

    @classmethod
    async def open(cls, run_dir: Path, max_blob_bytes: int, disk: Disk = REAL_DISK) -> "RunDirectory":
        """Lock a run directory, create it if it does not exist, and delete interrupted writes and uploads.

        Raises:
            StoreFailed: it cannot be created or written, or another coordinator serves it.
        """
        try:
            make_folder(run_dir.parent, disk)
            make_folder(run_dir / JOURNAL_FOLDER, disk, PRIVATE_FOLDER_MODE)
            with contextlib.ExitStack() as on_failure:
                lock = on_failure.enter_context(_take_lock(run_dir))
                for stale in (run_dir / JOURNAL_FOLDER).glob("*.new"):
                    stale.unlink()
                open_private(run_dir / sweep_lock.SWEEP_LOCK_FILE).close()
                await asyncio.to_thread(_make_all_private, run_dir)
                blobs = await DirectoryBlobs.open(run_dir, max_blob_bytes, disk)
                on_failure.pop_all()
        except OSError as error:
            raise StoreFailed(f"{run_dir} cannot be used as a run directory: {error.strerror or error}") from error
        return cls(run_dir, lock, blobs, disk)

    def clock(self, system: Clock) -> Clock:
        return system

    @property
    def is_backup(self) -> bool:
        return (self._run_dir / NOTE_FILE).exists()

    async def is_served(self) -> bool:
        """Return False: the lock keeps out all others."""
        return False

    async def note_served(self) -> None:
        await self._thread.run((self._run_dir / NOTE_FILE).unlink, True)

    async def served_at(self) -> str | None:
        return _served_at(self._run_dir)

    def note_address(self, url: str) -> None:
        try:
            if self._lock is not None:
                self._lock.write(url.encode() + b"\n")
                self._lock.flush()
        except OSError as error:
            log.warning("address_not_noted", extra={"reason": error.strerror or str(error)})

    @contextlib.asynccontextmanager
    async def sweeping(self) -> AsyncIterator[bool]:
        try:
            with sweep_lock.sweeping(self._run_dir) as is_allowed:
                yield is_allowed
        except OSError as error:
            raise StoreFailed(f"{self._run_dir}: {error.strerror or error}") from error

    def copying(self) -> AbstractAsyncContextManager[None]:
        return sweep_lock.copying(self._run_dir)

    async def save_state_file(self, text: str) -> None:
        await self._thread.run(replace_file, self._run_dir / STATE_FILE, text.encode(), self._disk, PRIVATE_MODE)

    async def check_room(self, size_bytes: int) -> None:
        await self._thread.run(check_room, self._run_dir, size_bytes, self._disk)
        await self.blobs.check_answers()

    async def aclose(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            await self._thread.aclose(self.journal.close)
            with contextlib.suppress(OSError):
                lock.truncate(0)
            lock.close()


class RunDirectoryReader:
    """The `StoreReader` protocol over a run directory, which another process may be serving."""

    def __init__(self, run_dir: Path) -> None:
        self.name = str(run_dir)
        self.journal = DirectoryHistory(run_dir)
        self.blobs: BlobReader = DirectoryBlobs.for_reading(run_dir)
        self.keys = DirectoryKeys(run_dir)
        self._run_dir = run_dir

    def copying(self) -> AbstractAsyncContextManager[None]:
        return sweep_lock.copying(self._run_dir)

    async def served_at(self) -> str | None:
        return _served_at(self._run_dir)


def _served_at(run_dir: Path) -> str | None:
    """Return the address in the lock if its process is alive: one that was killed has left its address."""
    try:
        with (run_dir / LOCK_FILE).open("rb") as file:
            process_id, url = _owner_in(file.read(MAX_LOCK_BYTES))
        if url is not None:
            with contextlib.suppress(PermissionError):  # another user's process
                os.kill(int(process_id), 0)
    except (OSError, ValueError, OverflowError):
        return None
    return url


def _owner_in(lock: bytes) -> tuple[str, str | None]:
    """Return the process ID and the address in the content of a lock; "" and None for what is not there."""
    lines = lock.decode(errors="replace").split()
    return (lines[0] if lines else ""), (lines[1] if len(lines) > 1 else None)


def _make_all_private(run_dir: Path) -> None:
    """Keep others out of what a run directory holds, which may have been made with wider permissions.

    The folder itself is left as it is if it holds something else too: then others have business there.
    """
    try:
        held = list(run_dir.iterdir())
        own = [path for path in held if path.name in OWN_FOLDERS | OWN_FILES]
        for path in own:
            make_private(path)
            if path.name in OWN_FOLDERS:
                for inner in path.rglob("*"):
                    make_private(inner)
        if len(own) == len(held):
            make_private(run_dir)
    except OSError as error:
        log.warning("run_directory_not_private", extra={"path": str(run_dir), "reason": error.strerror or str(error)})


def _take_lock(run_dir: Path) -> BinaryIO:
    file = open_private(run_dir / LOCK_FILE, os.O_APPEND)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = _owner_in(file.read(MAX_LOCK_BYTES))[0] or "unknown"
        file.close()
        raise StoreInUse(f"{run_dir} is served by another coordinator already (process {owner})") from None
    file.truncate(0)
    file.write(b"%d\n" % os.getpid())
    file.flush()
    return file
