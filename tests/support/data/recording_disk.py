"""Disks for tests: one records what was made durable, one fails on demand."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from epochal.runtime.files.durable_files import REAL_DISK, Disk
from epochal.state.model.tensors import Buffer


class RecordingDisk:
    """Gives a `Disk` and records what it syncs."""

    def __init__(self) -> None:
        self._synced: set[tuple[int, int]] = set()
        self.disk = Disk(sync=self._sync)

    def _sync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._synced.add((found.st_dev, found.st_ino))
        os.fsync(descriptor)

    def lacks(self, *paths: Path) -> list[Path]:
        """Return those of these files and folders that a power failure may take."""
        return [path for path in paths if (path.stat().st_dev, path.stat().st_ino) not in self._synced]


class FailingDisk:
    """Gives a `Disk` whose calls fail with an error number while it is set.

    Attributes:
        write_errno, sync_errno: errors of every write, which keeps half of its bytes, and of every sync; 0 for none.
        after_calls: number of calls of that kind that still succeed.
        call_count: number of calls that failed.
    """

    def __init__(self) -> None:
        self.write_errno = self.sync_errno = self.after_calls = self.call_count = 0
        self.disk = Disk(self._write, self._sync, self._allocate, self._sync)

    def _write(self, file: BinaryIO, data: Buffer) -> None:
        self._fail(self.write_errno, lambda: file.write(data[: len(data) // 2]))
        REAL_DISK.write(file, data)

    def _sync(self, descriptor: int) -> None:
        self._fail(self.sync_errno, lambda: None)
        os.fsync(descriptor)

    def _allocate(self, descriptor: int, size_bytes: int) -> None:
        self._fail(self.write_errno, lambda: None)
        REAL_DISK.allocate(descriptor, size_bytes)

    def _fail(self, error: int, before: Callable[[], object]) -> None:
        if error and self.after_calls:
            self.after_calls -= 1
        elif error:
            self.call_count += 1
            before()
            raise OSError(error, os.strerror(error))
