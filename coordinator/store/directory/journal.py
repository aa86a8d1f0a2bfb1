"""The run directory: the default store, for one coordinator on one machine.

```
RUN_DIR/
├── lock                    held by the coordinator that serves the run; names its process
├── state.toml              the run's description, rewritten at phase changes; loadable as a start
├── journal/00000000.log    segments, numbered; each opens with a snapshot (coordinator/store/directory/segments.py)
├── blobs/ab/abcd…          results and checkpoints by SHA-256 (coordinator/store/directory/blobs.py)
└── keys/                   the coordinator's own key and the hash of the admin token (coordinator/auth/identity.py)
```

The rule kept here: after one failed write or sync nothing more is written, because what the disk holds is no longer
known; the process must be started again, and finds the last whole record.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TypeVar

from coordinator.store.directory.segments import MAGIC, encode_entry, parse_segment, segment_of
from coordinator.store.protocol import JournalRecord, Segment, Snapshot
from runtime.durable_files import REAL_DISK, Disk, make_folder, replace_file
from state.errors import StoreConflict, StoreFailed

JOURNAL_FOLDER = "journal"
BLOBS_FOLDER = "blobs"
KEYS_FOLDER = "keys"
STATE_FILE = "state.toml"
LOCK_FILE = "lock"
MAX_LOCK_BYTES = 64

T = TypeVar("T")


def _segment_paths(run_dir: Path) -> list[Path]:
    return sorted((run_dir / JOURNAL_FOLDER).glob("[0-9]*.log"))


def _take_lock(run_dir: Path) -> BinaryIO:
    path = run_dir / LOCK_FILE
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        owner = file.read(MAX_LOCK_BYTES).decode(errors="replace").strip() or "unknown"
        file.close()
        raise StoreConflict(f"{run_dir} is served by another coordinator already (process {owner})") from None
    file.truncate(0)
    file.write(b"%d\n" % os.getpid())
    file.flush()
    return file


class RunDirectory:
    """The `Store` protocol over a run directory. Blocking work runs in one thread of its own, in order."""

    def __init__(self, run_dir: Path, lock: BinaryIO, disk: Disk) -> None:
        self.path = run_dir
        self._lock: BinaryIO | None = lock
        self._disk = disk
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._file: BinaryIO | None = None
        self._sequence = 0
        self._bytes = sum(path.stat().st_size for path in _segment_paths(run_dir))
        self._failed: str | None = None
        self._appended = asyncio.Event()

    @classmethod
    def open(cls, run_dir: Path, disk: Disk = REAL_DISK) -> "RunDirectory":
        """Lock a run directory, which is created if need be, and clear what an interrupted start left.

        Raises:
            StoreConflict: another coordinator serves it.
            StoreFailed: it cannot be created or written.
        """
        try:
            make_folder(run_dir / JOURNAL_FOLDER, disk)
            lock = _take_lock(run_dir)
            for stale in (run_dir / JOURNAL_FOLDER).glob("*.new"):
                stale.unlink()
        except OSError as error:
            raise StoreFailed(f"{run_dir} cannot be used as a run directory: {error.strerror or error}") from error
        return cls(run_dir, lock, disk)

    @staticmethod
    async def read_history(run_dir: Path) -> AsyncIterator[Segment]:
        """Every segment of a run directory, without its lock and without changing it.

        Raises:
            StoreFailed: there is no journal, or it is damaged.
        """
        paths = _segment_paths(run_dir)
        if not paths:
            raise StoreFailed(f"{run_dir} holds no journal")
        for path in paths:
            yield await asyncio.to_thread(_read_segment, path, path == paths[-1])

    async def load(self) -> Segment | None:
        return await self._in_thread(self._load)

    def _load(self) -> Segment | None:
        paths = _segment_paths(self.path)
        if not paths:
            return None
        path = paths[-1]
        data = path.read_bytes()
        parsed = parse_segment(data, str(path), is_last=True)
        file = path.open("r+b")
        if parsed.torn_bytes:
            file.truncate(parsed.kept_bytes)
            self._disk.sync(file.fileno())
            self._bytes -= parsed.torn_bytes
        file.seek(parsed.kept_bytes)
        self._take_over(file, parsed.entries[-1][0])
        return segment_of(parsed, int(path.stem))

    def _take_over(self, file: BinaryIO, sequence: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._sequence = file, sequence

    async def append(self, record: JournalRecord) -> None:
        await self._in_thread(self._append, record)
        self._tell()

    def _append(self, record: JournalRecord) -> None:
        if self._file is None or record.sequence != self._sequence + 1:
            raise StoreConflict(f"record {record.sequence} does not follow record {self._sequence}")
        entry = encode_entry(record.sequence, record.body)
        self._disk.write(self._file, entry)
        self._file.flush()
        self._disk.sync(self._file.fileno())
        self._sequence = record.sequence
        self._bytes += len(entry)

    async def open_segment(self, snapshot: Snapshot) -> None:
        await self._in_thread(self._open_segment, snapshot)
        self._tell()

    def _open_segment(self, snapshot: Snapshot) -> None:
        paths = _segment_paths(self.path)
        if paths and snapshot.sequence != self._sequence:
            raise StoreConflict(f"a snapshot of {snapshot.sequence} does not follow record {self._sequence}")
        number = int(paths[-1].stem) + 1 if paths else 0
        path = self.path / JOURNAL_FOLDER / f"{number:08d}.log"
        content = MAGIC + encode_entry(snapshot.sequence, snapshot.body)
        replace_file(path, content, self._disk)
        file = path.open("r+b")
        file.seek(len(content))
        self._take_over(file, snapshot.sequence)
        self._bytes += len(content)

    async def save_state_file(self, text: str) -> None:
        await self._in_thread(replace_file, self.path / STATE_FILE, text.encode(), self._disk)

    def history(self) -> AsyncIterator[Segment]:
        return self.read_history(self.path)

    async def watch(self, after: int) -> int:
        while self._sequence <= after:
            await self._appended.wait()
        return self._sequence

    @property
    def journal_bytes(self) -> int:
        return self._bytes

    async def aclose(self) -> None:
        lock, self._lock = self._lock, None
        if lock is None:
            return
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close_files)
        self._thread.shutdown()
        lock.close()

    def _close_files(self) -> None:
        if self._file is not None:
            self._file.close()

    def _tell(self) -> None:
        self._appended.set()
        self._appended = asyncio.Event()

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        if self._lock is None:
            raise StoreFailed(f"{self.path} is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work, *arguments)

    def _guarded(self, work: Callable[..., T], *arguments: object) -> T:
        """Do the work, unless an earlier one failed; remember a failure for good."""
        if self._failed is not None:
            raise StoreFailed(self._failed)
        try:
            return work(*arguments)
        except StoreFailed as error:
            self._failed = str(error)
            raise
        except OSError as error:
            self._failed = f"{self.path}: {error.strerror or error}"
            raise StoreFailed(self._failed) from error


def _read_segment(path: Path, is_last: bool) -> Segment:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreFailed(f"{path}: {error.strerror or error}") from error
    return segment_of(parse_segment(data, str(path), is_last=is_last), int(path.stem))
