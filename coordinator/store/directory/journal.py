"""The journal in a run directory: one file for each segment."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.coordinator.store.directory.failures import repeated_while_passing, store_failure
from epochal.coordinator.store.directory.journal_files import (
    HISTORY_FILE,
    number_of,
    path_of,
    proof_file,
    proof_paths,
    read_if_there,
    segment_paths,
)
from epochal.coordinator.store.directory.segments import (
    ParsedSegment,
    encode_entry,
    encode_mark,
    encode_segment,
    parse_segment,
)
from epochal.coordinator.store.journal import StoredProof, Tail
from epochal.runtime.files.durable_files import PRIVATE_MODE, Disk, open_new_file, replace_file, sync_folder
from epochal.runtime.worker_thread import WorkerThread
from epochal.state.errors import StoreBlocked, StoreConflict, StoreFailed

log = logging.getLogger(__name__)

T = TypeVar("T")


class WritingThread:
    """The thread that writes a run directory's journal and state file, in order.

    Work that fails must leave nothing behind, or clean up when it is repeated. It is repeated for a few seconds if
    something passing is in the way. After any failure that is not `StoreBlocked` nothing more is written, because the
    content of the disk is unknown until the journal is read again, after a restart.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._worker = WorkerThread("journal")
        self._failed: str | None = None
        self._is_closed = False

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Return what the work returns.

        Raises:
            StoreBlocked: the disk is full, or the like.
            StoreFailed: it failed for good, or earlier work has, or the thread is closed.
        """
        return await repeated_while_passing(partial(self._run, work, *arguments))

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        if self._is_closed:
            raise StoreFailed(f"{self._run_dir} is closed")
        return await self._worker.run(partial(self._guarded, work, *arguments))

    def _guarded(self, work: Callable[..., T], *arguments: object) -> T:
        if self._failed is not None:
            raise StoreFailed(self._failed)
        try:
            return work(*arguments)
        except StoreBlocked:
            raise
        except StoreFailed as error:
            self._failed = str(error)
            raise
        except (OSError, MemoryError) as error:
            failure = store_failure(str(self._run_dir), error)
            if not isinstance(failure, StoreBlocked):
                self._failed = str(failure)
            raise failure from error

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
        self.damaged_bytes = 0

    async def proofs(self) -> tuple[StoredProof, ...]:
        return await _in_thread(self._run_dir, _read_proofs, self._run_dir)

    async def kept_history(self) -> bytes | None:
        return await _in_thread(self._run_dir, read_if_there, self._run_dir / HISTORY_FILE)

    async def newest_segment(self) -> int | None:
        paths = await _in_thread(self._run_dir, segment_paths, self._run_dir)
        return number_of(paths[-1]) if paths else None

    async def history(self, start: int | None = None) -> AsyncGenerator[Segment, None]:
        number = _first_number(self._run_dir) if start is None else start
        while number is not None:
            parsed = await asyncio.to_thread(_read_in_order, self._run_dir, number)
            self.torn_bytes, self.damaged_bytes = parsed.torn_bytes, parsed.damaged_bytes
            yield parsed.as_segment(number)
            number = parsed.successor


class DirectoryJournal(DirectoryHistory):
    """The `Journal` protocol over a locked run directory.

    A new segment is made durable before the mark that names it, and the mark before the segment's first record. So a
    segment that is named exists unless somebody took it away, and one that holds records is named.
    """

    def __init__(self, run_dir: Path, thread: WritingThread, disk: Disk) -> None:
        super().__init__(run_dir)
        self._thread = thread
        self._disk = disk
        self._file: BinaryIO | None = None
        self._number = 0
        self._sequence = 0
        self._end = 0
        """Where the next record begins in the last segment's file."""
        self._rest_end = 0
        """Where bytes end that follow the last record and are to be overwritten; `_end` or less if there are none."""
        self._undo_due: tuple[Path, ...] | None = None
        """Set if a write failed and may have left bytes after the last record, and these files."""
        self._is_opening = False
        """Whether the last segment has no record yet."""
        self._segments_bytes = sum(path.stat().st_size for path in segment_paths(run_dir))
        """Size of the segments; changed only in the writing thread."""
        self._other_bytes = sum(path.stat().st_size for path in proof_paths(run_dir))
        """Size of the proofs less that of segments deleted since; changed only on the event loop."""

    @property
    def size_bytes(self) -> int:
        return self._segments_bytes + self._other_bytes

    async def load(self, *, is_restored: bool = False) -> Segment | None:
        return await self._thread.run(self._load, is_restored)

    def _load(self, is_restored: bool) -> Segment | None:
        paths = segment_paths(self._run_dir)
        if not paths:
            return None
        path, number = paths[-1], number_of(paths[-1])
        proofs = proof_paths(self._run_dir)
        _warn_of_gaps(paths, number_of(proofs[-1]) if proofs else 0)
        parsed = _read_newest(paths)
        if parsed.successor is not None and not is_restored:
            raise _missing(self._run_dir, number, parsed.successor)
        if parsed.is_opening and number:
            self._mark_the_one_before(number)
        file = path.open("r+b", buffering=0)
        self.torn_bytes, self.damaged_bytes = parsed.torn_bytes, parsed.damaged_bytes
        self._take_over(file, number, parsed.entries[-1][0], parsed.kept_bytes)
        self._rest_end = path.stat().st_size
        self._is_opening = parsed.is_opening
        return parsed.as_segment(number)

    async def tail(self, after: int) -> Tail | None:
        segment = await self._thread.run(_read_newest_whole, self._run_dir)
        records = tuple(record for record in segment.records if record.sequence > after)
        return Tail(records, len(segment.records)) if segment.snapshot.sequence <= after <= self._sequence else None

    def _take_over(self, file: BinaryIO, number: int, sequence: int, end: int) -> None:
        self.close()
        self._file, self._number, self._sequence = file, number, sequence
        self._end = self._rest_end = end
        self._undo_due = None

    def _mark_the_one_before(self, number: int) -> None:
        """Write the mark that names segment `number`, if the machine stopped before it was durable."""
        path = path_of(self._run_dir, number - 1)
        if not path.exists():
            return
        parsed = _read_segment(path, is_last=True)
        if parsed.successor is None:
            with path.open("r+b") as file:
                self._write_mark(file, parsed.kept_bytes, number)

    def _write_mark(self, file: BinaryIO, end: int, successor: int) -> int:
        """Write a mark at the end of a segment; return its size."""
        mark = encode_mark(successor)
        file.seek(end)
        self._disk.write(file, mark)
        file.flush()
        file.truncate(end + len(mark))
        self._disk.sync(file.fileno())
        return len(mark)

    async def append(self, record: JournalRecord) -> None:
        await self._thread.run(self._append, record)

    def _append(self, record: JournalRecord) -> None:
        if self._file is None or record.sequence != self._sequence + 1:
            raise StoreConflict(f"record {record.sequence} does not follow record {self._sequence}")
        entry = encode_entry(record.sequence, record.body)
        end = self._end + len(entry)
        with self._undone_on_failure():
            self._file.seek(self._end)
            self._disk.write(self._file, entry)
            self._disk.sync(self._file.fileno())
            if self._rest_end > end:  # only now: until the record is kept, these bytes tell that one was damaged
                self._file.truncate(end)
                self._disk.sync(self._file.fileno())
        self._segments_bytes += end - max(self._end, self._rest_end)
        self._end = self._rest_end = end
        self._sequence, self._is_opening = record.sequence, False

    async def open_segment(self, snapshot: Snapshot) -> None:
        await self._thread.run(self._open_segment, snapshot)

    def _open_segment(self, snapshot: Snapshot) -> None:
        before = self._file
        if before is None and segment_paths(self._run_dir):
            raise StoreConflict(f"a snapshot of record {snapshot.sequence} does not follow a record that was loaded")
        if before is not None and (self._is_opening or snapshot.sequence != self._sequence):
            raise StoreConflict(f"a snapshot of record {snapshot.sequence} does not follow record {self._sequence}")
        number = 0 if before is None else self._number + 1
        path = path_of(self._run_dir, number)
        content = encode_segment(Segment(number, snapshot, ()))
        with self._undone_on_failure(path), contextlib.ExitStack() as on_failure:
            file = on_failure.enter_context(open_new_file(path, content, self._disk))
            if before is not None:
                self._segments_bytes += self._write_mark(before, self._end, number)
            on_failure.pop_all()
        self._take_over(file, number, snapshot.sequence, len(content))
        self._is_opening = True
        self._segments_bytes += len(content)

    async def keep_proof(self, proof: StoredProof) -> None:
        path = self._run_dir / proof_file(proof.segment_count)
        self._other_bytes += await _in_thread(self._run_dir, self._replace, path, proof.body)

    async def keep_history(self, body: bytes) -> None:
        await _in_thread(self._run_dir, self._replace, self._run_dir / HISTORY_FILE, body)

    async def drop_covered(self, segment_count: int) -> None:
        for path in (*segment_paths(self._run_dir), *proof_paths(self._run_dir)):
            if number_of(path) < segment_count:
                self._other_bytes -= await _in_thread(self._run_dir, self._delete, path)

    def _replace(self, path: Path, data: bytes) -> int:
        """Write a file in place of one that may be there; return by how much more it takes."""
        before_bytes = path.stat().st_size if path.exists() else 0
        replace_file(path, data, self._disk, PRIVATE_MODE)
        return len(data) - before_bytes

    def _delete(self, path: Path) -> int:
        """Delete a file durably before the next is deleted, so that the journal never has a gap; return its size."""
        size_bytes = path.stat().st_size
        path.unlink()
        sync_folder(path.parent, self._disk)
        return size_bytes

    @contextlib.contextmanager
    def _undone_on_failure(self, *made: Path) -> Iterator[None]:
        """Undo what an earlier failure left, and what this one leaves: bytes after the last record, and these files."""
        self._undo()
        self._undo_due = made
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # else the next writing undoes it, or fails in turn
                self._undo()
            raise
        self._undo_due = None

    def _undo(self) -> None:
        """Remove what a failed writing left: first a mark or a torn record, then the segment that the mark names."""
        if self._undo_due is None:
            return
        if self._file is not None:
            self._file.truncate(self._end)
            self._disk.sync(self._file.fileno())
            self._segments_bytes -= max(0, self._rest_end - self._end)
            self._rest_end = self._end
        for path in self._undo_due:
            path.unlink(missing_ok=True)
            sync_folder(path.parent, self._disk)
        self._undo_due = None

    def close(self) -> None:
        """Close the file that is appended to."""
        if self._file is not None:
            self._file.close()


def _read_newest_whole(run_dir: Path) -> Segment:
    path = segment_paths(run_dir)[-1]
    return _read_segment(path, is_last=True).as_segment(number_of(path))


async def _in_thread(run_dir: Path, work: Callable[..., T], *arguments: object) -> T:
    """Return what the work returns, done beside the writing thread: nothing that is appended depends on it."""
    try:
        return await asyncio.to_thread(work, *arguments)
    except OSError as error:
        raise store_failure(str(run_dir), error) from error


def _read_proofs(run_dir: Path) -> tuple[StoredProof, ...]:
    return tuple(StoredProof(number_of(path), path.read_bytes()) for path in proof_paths(run_dir))


def _first_number(run_dir: Path) -> int | None:
    """Return the number of the journal's first segment: of the one that follows the newest proof, if there is one.

    Segments before it may be there still, not all of them, while they are deleted.
    """
    segments, proofs = segment_paths(run_dir), proof_paths(run_dir)
    if proofs:
        return number_of(proofs[-1])
    return number_of(segments[0]) if segments else None


def _read_in_order(run_dir: Path, number: int) -> ParsedSegment:
    """Return a segment that a coordinator may be writing, with its successor if there is one.

    A segment that is followed by one with records has a mark. Before that, the mark may be missing or torn.
    """
    path, following = path_of(run_dir, number), path_of(run_dir, number + 1)
    is_followed = following.exists()
    parsed = _read_segment(path, is_last=True)
    if is_followed and parsed.successor is None:
        if _read_segment(following, is_last=True).is_opening:
            return replace(parsed, successor=number + 1, torn_bytes=0, damaged_bytes=0)
        parsed = _read_segment(path, is_last=False)  # again, because the mark may have been written meanwhile
        if parsed.successor is None:
            raise StoreFailed(f"{path} does not end with the name of {following.name}: records may be missing")
    if parsed.successor is None:
        return _read_in_order(run_dir, number) if following.exists() else parsed
    if not path_of(run_dir, parsed.successor).exists():
        raise _missing(run_dir, number, parsed.successor)
    return parsed


def _missing(run_dir: Path, number: int, successor: int) -> StoreFailed:
    path, missing = path_of(run_dir, number), path_of(run_dir, successor)
    named = f"{missing} is missing: {path.name} names it as the segment that follows. Put it back, or restore a backup"
    if number_of(segment_paths(run_dir)[-1]) > successor:
        return StoreFailed(f"{named}; without it the run goes on, but can be neither audited nor backed up")
    return StoreFailed(
        f"{named}; without it the run can only return to the end of {path.name}, by a start with --restored"
    )


def _warn_of_gaps(paths: list[Path], first: int) -> None:
    """Log which segments from the first on are missing: a start reads the newest one alone."""
    found = {number_of(path) for path in paths}
    missing = [number for number in range(first, max(found)) if number not in found]
    if missing:
        consequence = "the run goes on, but can be neither audited nor backed up; put them back"
        fields = {"first": path_of(Path(), missing[0]).name, "count": len(missing), "consequence": consequence}
        log.warning("journal_segments_missing", extra=fields)


def _read_newest(paths: list[Path]) -> ParsedSegment:
    """Return the newest of these segments. If it is damaged, the error says how the run can go on without it."""
    try:
        return _read_segment(paths[-1], is_last=True)
    except StoreBlocked:
        raise
    except StoreFailed as error:
        if len(paths) == 1:
            raise
        raise StoreFailed(
            f"{error.message}. Without a backup: take {paths[-1].name} away and start with --restored; the run then "
            f"returns to the end of {paths[-2].name}"
        ) from error


def _read_segment(path: Path, *, is_last: bool) -> ParsedSegment:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise store_failure(str(path), error) from error
    return parse_segment(data, str(path), is_last=is_last)
