"""Spool files that outlive their process: the next process in the same place resumes what this one has not finished.

A file is left by a second name in its spool's folder, a hard link that says its content. It stays when the process is
killed, and when it ends before the file is finished; otherwise it goes with the file. The next process takes such files
over when it removes the folder.

The rule kept here: a left file is no more than a guess at its content. Whoever takes one compares digests before it
uses a byte; and only files that this user alone could write are taken over.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from epochal.runtime.files.durable_files import OTHERS_MODE
from epochal.state.errors import InternalError

log = logging.getLogger(__name__)

LOCK_NAME = "lock"
PREFIX = "left-"
MAX_TAKEN_OVER = 1
"""Maximum number of left files that a process takes over; the others, which are older, are removed."""


class HasPath(Protocol):
    """A file that has a path unless it is in memory."""

    @property
    def path(self) -> Path | None: ...


class LeftFiles:
    """The left files in one spool's folder, by what they hold."""

    def __init__(self) -> None:
        self._unfinished: set[str] = set()
        self.unclaimed_bytes = 0
        """Size of the files that were taken over and are neither claimed nor removed."""

    def take_over(self, stale: list[Path], folder: Path) -> None:
        """Take over the left files in the folders of processes that have ended, and remove those folders."""
        for other in stale:
            _remove_if_ended(other, lambda path: path.replace(folder / path.name))
        found = sorted(folder.glob(f"{PREFIX}*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for surplus in found[MAX_TAKEN_OVER:]:
            surplus.unlink()
        self.unclaimed_bytes = sum(path.stat().st_size for path in found[:MAX_TAKEN_OVER])

    def claim(self, folder: Path, content: str, size_bytes: int) -> Path | None:
        """Return the left file of this content if it has this size, else None; remove all others.

        One that has another name, too, is in use in this process, and may be written over once that use ends.
        """
        self.unclaimed_bytes = 0
        self._unfinished.clear()
        wanted = folder / f"{PREFIX}{content}"
        for path in folder.glob(f"{PREFIX}*"):
            found = path.stat()
            if path != wanted or found.st_size != size_bytes or found.st_nlink > 1:
                path.unlink()
        return wanted if wanted.exists() else None

    def leave(self, file: HasPath, content: str) -> None:
        """Have a file left that is not finished, where the file system has hard links.

        Args:
            file: on the disk, in the spool's folder.
            content: says what it is to hold, as a part of a file's name.
        """
        path = file.path
        if path is None:
            raise InternalError("a file in memory cannot be left")
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.link(path, path.with_name(f"{PREFIX}{content}"))
            self._unfinished.add(content)
            weakref.finalize(file, self._drop, path.parent, content)

    def finish(self, content: str) -> None:
        """Note that a left file is finished: it goes with its process, unless that is killed."""
        self._unfinished.discard(content)

    def _drop(self, folder: Path, content: str) -> None:
        """Remove a leftover file that is no longer used, unless it is unfinished."""
        if content not in self._unfinished:
            with contextlib.suppress(OSError):
                (folder / f"{PREFIX}{content}").unlink()

    def remove(self, folder: Path) -> None:
        """Remove the folder with all of its files; but not with those that are unfinished."""
        kept = {f"{PREFIX}{content}" for content in self._unfinished} & set(os.listdir(folder))
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
            return
        for path in folder.iterdir():
            if path.name not in kept and path.name != LOCK_NAME:
                path.unlink()
        size_bytes = sum((folder / name).stat().st_size for name in kept)
        use = "the next client with this spool folder resumes it, or removes it"
        log.info("unfinished_download_left", extra={"folder": str(folder), "size_bytes": size_bytes, "use": use})


def _remove_if_ended(folder: Path, rescue: Callable[[Path], object]) -> None:
    """Remove the folder of a spool whose process has ended; hand its left files over before.

    Source of the lock: `flock(2)`, which the system releases however a process ends.
    """
    try:
        lock = os.open(folder / LOCK_NAME, os.O_RDWR)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()  # its process was killed before it made the lock
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_own(folder.lstat(), stat.S_ISDIR):
            for path in folder.glob(f"{PREFIX}*"):
                if _is_own(path.lstat(), stat.S_ISREG):
                    rescue(path)
        shutil.rmtree(folder, ignore_errors=True)
        log.info("spool_of_an_ended_process_removed", extra={"folder": str(folder)})
    except OSError:
        return  # its process is running
    finally:
        os.close(lock)


def _is_own(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    return is_kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS_MODE
