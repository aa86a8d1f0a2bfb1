"""The journal in a run directory: one file for each segment."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from coordinator.store.directory.segments import MAGIC, ParsedSegment, encode_entry, parse_segment
from coordinator.store.journal import JournalRecord, Segment, Snapshot
from runtime.durable_files import Disk, replace_file
from runtime.worker_thread import WorkerThread
from state.errors import StoreConflict, StoreFailed

JOURNAL_FOLDER = "journal"

T = TypeVar("T")


def segment_paths(run_dir: Path) -> list[Path]:
    """Return the segment files of a run directory, oldest first."""
    return sorted((run_dir / JOURNAL_FOLDER).glob("[0-9]*.log"))


class WritingThread:
    """The thread that writes a run directory's journal and state file, in order.

    After a failed write or sync it writes nothing more, because the content of the disk is unknown until the journal is
    read again, after a restart.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._worker = WorkerThread("journal")
        self._failed: str | None = None
        self._is_closed = False

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Return what the work returns.

        Raises:
            StoreFailed: it failed, or earlier work has, or the thread is closed.
        """
        if self._is_closed:
            raise StoreFailed(f"{self._run_dir} is closed")
        return await self._worker.run(partial(self._guarded, work, *arguments))

    def _guarded(self, work: Callable[..., T], *arguments: object) -> T:
        if self._failed is not None:
            raise StoreFailed(self._failed)
        try:
            return work(*arguments)
        except StoreFailed as error:
            self._failed = str(error)
            raise
        except OSError as error:
            self._failed = f"{self._run_dir}: {error.strerror or error}"
            raise StoreFailed(self._failed) from error

    async def aclose(self, last: Callable[[], None]) -> None:
        """Do the last work after everything before it, even after a failure."""
        self._is_closed = True
        await self._worker.run(last)
        await self._worker.aclose()


class DirectoryHistory:
    """The `JournalReader` protocol over a run directory, without its lock and without changing it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.torn_bytes = 0

    async def history(self) -> AsyncIterator[Segment]:
        paths = segment_paths(self._run_dir)
        for path in paths:
            parsed = await asyncio.to_thread(_read_segment, path, is_last=path == paths[-1])
            self.torn_bytes = parsed.torn_bytes
            yield parsed.as_segment(int(path.stem))


class DirectoryJournal(DirectoryHistory):
    """The `Journal` protocol over a locked run directory."""

    def __init__(self, run_dir: Path, thread: WritingThread, disk: Disk) -> None:
        super().__init__(run_dir)
        self._thread = thread
        self._disk = disk
        self._file: BinaryIO | None = None
        self._sequence = 0
        self._is_opening = False
        """Whether the last segment has no record yet."""
        self.size_bytes = sum(path.stat().st_size for path in segment_paths(run_dir))

    async def load(self) -> Segment | None:
        return await self._thread.run(self._load)

    def _load(self) -> Segment | None:
        paths = segment_paths(self._run_dir)
        if not paths:
            return None
        path = paths[-1]
        parsed = _read_segment(path, is_last=True)
        file = path.open("r+b")
        self.torn_bytes = parsed.torn_bytes
        if parsed.torn_bytes:
            file.truncate(parsed.kept_bytes)
            self._disk.sync(file.fileno())
            self.size_bytes -= parsed.torn_bytes
        file.seek(parsed.kept_bytes)
        self._take_over(file, parsed.entries[-1][0], is_opening=len(parsed.entries) == 1)
        return parsed.as_segment(int(path.stem))

    def _take_over(self, file: BinaryIO, sequence: int, *, is_opening: bool) -> None:
        self.close()
        self._file, self._sequence, self._is_opening = file, sequence, is_opening

    async def append(self, record: JournalRecord) -> None:
        await self._thread.run(self._append, record)

    def _append(self, record: JournalRecord) -> None:
        if self._file is None or record.sequence != self._sequence + 1:
            raise StoreConflict(f"record {record.sequence} does not follow record {self._sequence}")
        entry = encode_entry(record.sequence, record.body)
        self._disk.write(self._file, entry)
        self._file.flush()
        self._disk.sync(self._file.fileno())
        self._sequence, self._is_opening = record.sequence, False
        self.size_bytes += len(entry)

    async def open_segment(self, snapshot: Snapshot) -> None:
        await self._thread.run(self._open_segment, snapshot)

    def _open_segment(self, snapshot: Snapshot) -> None:
        paths = segment_paths(self._run_dir)
        if paths and (self._file is None or self._is_opening or snapshot.sequence != self._sequence):
            raise StoreConflict(f"a snapshot of record {snapshot.sequence} does not follow record {self._sequence}")
        number = int(paths[-1].stem) + 1 if paths else 0
        path = self._run_dir / JOURNAL_FOLDER / f"{number:08d}.log"
        content = MAGIC + encode_entry(snapshot.sequence, snapshot.body)
        replace_file(path, content, self._disk)
        file = path.open("r+b")
        file.seek(len(content))
        self._take_over(file, snapshot.sequence, is_opening=True)
        self.size_bytes += len(content)

    def close(self) -> None:
        """Close the file that is appended to."""
        if self._file is not None:
            self._file.close()


def _read_segment(path: Path, *, is_last: bool) -> ParsedSegment:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreFailed(f"{path}: {error.strerror or error}") from error
    return parse_segment(data, str(path), is_last=is_last)
