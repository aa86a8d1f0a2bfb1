"""The folder of a run on one machine: its files, and the locks that keep other processes out.

```
RUN_DIR/
├── lock          held by the coordinator that serves the run; contains its process ID and its address
├── sweep.lock    held by a sweep, or shared by those who copy the run
├── run.sqlite    the database (coordinator/store/sql/), with run.sqlite-wal and run.sqlite-shm while it is open
├── state.toml    the run's state file, rewritten at phase changes; a new run can start from it
└── blobs/        results and checkpoints by SHA-256 that are too large for the database
```

The operating system releases a lock when a process ends, however it ends. A sweep does not wait for its lock: it is put
off, and how long is for the coordinator to say (`coordinator/run/maintenance.py`).
"""

import asyncio
import contextlib
import fcntl
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from epochal.coordinator.store.failures import store_failure
from epochal.coordinator.store.files.blobs import BLOBS_FOLDER
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

DATABASE_FILE = "run.sqlite"
STATE_FILE = "state.toml"
LOCK_FILE = "lock"
SWEEP_LOCK_FILE = "sweep.lock"
SCRATCH_FOLDER = "scratch"
OWN_FOLDERS = frozenset({BLOBS_FOLDER})
OWN_FILES = frozenset(
    {STATE_FILE, LOCK_FILE, SWEEP_LOCK_FILE, DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm"}
)
STORE_RETRY_S = 2.0
"""Time between two attempts to go on while a disk keeps nothing."""
TESTNET_FOLDER = "coordinator"
"""Name of the run directory in the folder of `epochal up`."""
MAX_LOCK_BYTES = 512
MAX_SWEEP_S = 60.0
"""Time after which a copy no longer waits for a sweep to end."""
POLL_S = 0.05


class StoreInUse(StoreFailed):
    """Another process serves the run in this run directory. Do not retry before it has ended."""


def run_directory_in(folder: Path) -> Path | None:
    """Return the run directory that the folder is, or contains if `epochal up` made it; else None."""
    return next((path for path in (folder, folder / TESTNET_FOLDER) if (path / DATABASE_FILE).exists()), None)


class FolderPlace:
    """The `Place` protocol over a run directory. It is locked between `lock` and `aclose`."""

    retry_s = STORE_RETRY_S

    def __init__(self, run_dir: Path, disk: Disk = REAL_DISK) -> None:
        self.run_dir = run_dir
        self._disk = disk
        self._lock: BinaryIO | None = None

    async def lock(self) -> None:
        """Lock the run directory, and create it if it does not exist.

        Raises:
            StoreInUse: another coordinator serves it.
            StoreFailed: it cannot be created or written.
        """
        try:
            make_folder(self.run_dir.parent, self._disk)
            make_folder(self.run_dir, self._disk, PRIVATE_FOLDER_MODE)
            self._lock = _take_lock(self.run_dir)
            open_private(self.run_dir / SWEEP_LOCK_FILE).close()
            await asyncio.to_thread(_make_all_private, self.run_dir)
        except OSError as error:
            reason = error.strerror or error
            raise StoreFailed(f"{self.run_dir} cannot be used as a run directory: {reason}") from error

    @property
    def scratch(self) -> Path:
        return self.run_dir / SCRATCH_FOLDER

    def clock(self, system: Clock) -> Clock:
        return system

    async def origin(self) -> None:
        """Return None: a copy of the files is made by `epochal backup`, which notes it."""

    async def is_served(self) -> bool:
        """Return False: the lock keeps out all others."""
        return False

    async def served_at(self) -> str | None:
        """Return the address in the lock if its process is alive: one that was killed has left its address."""
        try:
            with (self.run_dir / LOCK_FILE).open("rb") as file:
                process_id, url = _owner_in(file.read(MAX_LOCK_BYTES))
            if url is not None:
                with contextlib.suppress(PermissionError):  # another user's process
                    os.kill(int(process_id), 0)
        except (OSError, ValueError, OverflowError):
            return None
        return url

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
            with open_private(self.run_dir / SWEEP_LOCK_FILE) as lock:
                yield _is_taken(lock.fileno(), fcntl.LOCK_EX)
        except OSError as error:
            raise StoreFailed(f"{self.run_dir}: {error.strerror or error}") from error

    @contextlib.asynccontextmanager
    async def copying(self) -> AsyncIterator[None]:
        """Let no sweep begin while the context is entered. Without a lock that can be opened there is none to hold."""
        try:
            descriptor = os.open(self.run_dir / SWEEP_LOCK_FILE, os.O_RDONLY)
        except OSError:
            yield
            return
        try:
            for _ in range(round(MAX_SWEEP_S / POLL_S)):
                if _is_taken(descriptor, fcntl.LOCK_SH):
                    break
                await asyncio.sleep(POLL_S)
            else:
                raise StoreFailed(f"{self.run_dir}: its coordinator has been deleting blobs for {MAX_SWEEP_S:g} s")
            yield
        finally:
            os.close(descriptor)

    async def save_state_file(self, text: str) -> None:
        try:
            await asyncio.to_thread(replace_file, self.run_dir / STATE_FILE, text.encode(), self._disk, PRIVATE_MODE)
        except OSError as error:
            raise store_failure(str(self.run_dir), error) from error

    async def check_room(self, size_bytes: int) -> None:
        try:
            await asyncio.to_thread(check_room, self.run_dir, size_bytes, self._disk)
        except OSError as error:
            raise store_failure(str(self.run_dir), error) from error

    async def aclose(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                lock.truncate(0)
            lock.close()


def _is_taken(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
