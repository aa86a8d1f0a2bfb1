"""The run directory: the default store, for one coordinator on one machine.

```
RUN_DIR/
├── lock                    held by the coordinator that serves the run; names its process
├── state.toml              the run's description, rewritten at phase changes; loadable as a start
├── journal/00000000.log    segments, numbered; each opens with a snapshot (coordinator/store/directory/segments.py)
├── blobs/ab/abcd…          results and checkpoints by SHA-256 (coordinator/store/directory/blobs.py)
└── keys/                   the coordinator's key, the admin token's hash (coordinator/store/directory/keys.py)
```
"""

import fcntl
import os
from pathlib import Path
from typing import BinaryIO

from coordinator.store.directory.blobs import DirectoryBlobs
from coordinator.store.directory.journal import JOURNAL_FOLDER, DirectoryHistory, DirectoryJournal, segment_paths
from coordinator.store.directory.keys import DirectoryKeys
from coordinator.store.directory.writing_thread import WritingThread
from runtime.durable_files import REAL_DISK, Disk, make_folder, replace_file
from state.errors import StoreFailed

STATE_FILE = "state.toml"
LOCK_FILE = "lock"
TESTNET_FOLDER = "coordinator"
"""The folder of `epochal up` holds the run directory under this name."""
MAX_LOCK_BYTES = 64


def run_directory_in(folder: Path) -> Path | None:
    """Return the run directory with a journal that the folder is or, made by `epochal up`, holds; else None."""
    return next((path for path in (folder, folder / TESTNET_FOLDER) if segment_paths(path)), None)


class RunDirectory:
    """The `Store` protocol over a run directory, locked."""

    def __init__(self, run_dir: Path, lock: BinaryIO, blobs: DirectoryBlobs, disk: Disk) -> None:
        self._run_dir = run_dir
        self._lock: BinaryIO | None = lock
        self._disk = disk
        self._thread = WritingThread(run_dir)
        self.journal = DirectoryJournal(run_dir, self._thread, disk)
        self.blobs = blobs
        self.keys = DirectoryKeys(run_dir)

    @classmethod
    async def open(cls, run_dir: Path, max_blob_bytes: int, disk: Disk = REAL_DISK) -> "RunDirectory":
        """Lock a run directory, which is created if need be, and clear what an interrupted start or upload left.

        Raises:
            StoreFailed: it cannot be created or written, or another coordinator serves it.
        """
        try:
            make_folder(run_dir / JOURNAL_FOLDER, disk)
            lock = _take_lock(run_dir)
        except OSError as error:
            raise StoreFailed(f"{run_dir} cannot be used as a run directory: {error.strerror or error}") from error
        try:
            for stale in (run_dir / JOURNAL_FOLDER).glob("*.new"):
                stale.unlink()
            return cls(run_dir, lock, await DirectoryBlobs.open(run_dir, max_blob_bytes, disk), disk)
        except BaseException as error:
            lock.close()
            if isinstance(error, OSError):
                raise StoreFailed(f"{run_dir} cannot be used as a run directory: {error.strerror or error}") from error
            raise

    @property
    def torn_bytes(self) -> int:
        return self.journal.torn_bytes

    @property
    def journal_bytes(self) -> int:
        return self.journal.size_bytes

    async def save_state_file(self, text: str) -> None:
        await self._thread.run(replace_file, self._run_dir / STATE_FILE, text.encode(), self._disk)

    async def aclose(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            await self._thread.aclose(self.journal.close)
            lock.close()


class RunDirectoryReader:
    """The `StoreReader` protocol over a run directory, which another process may be serving."""

    def __init__(self, run_dir: Path) -> None:
        self.journal = DirectoryHistory(run_dir)
        self.blobs = DirectoryBlobs.for_reading(run_dir)

    @property
    def torn_bytes(self) -> int:
        return self.journal.torn_bytes


def _take_lock(run_dir: Path) -> BinaryIO:
    file = (run_dir / LOCK_FILE).open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read(MAX_LOCK_BYTES).decode(errors="replace").strip() or "unknown"
        file.close()
        raise StoreFailed(f"{run_dir} is served by another coordinator already (process {owner})") from None
    file.truncate(0)
    file.write(b"%d\n" % os.getpid())
    file.flush()
    return file
