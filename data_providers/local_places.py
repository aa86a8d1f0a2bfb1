"""Places on this machine: the files below a folder, their versions, and the errors of what cannot be opened."""

import errno
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

from data_providers.file_names import is_hidden
from data_providers.protocol import CorruptData, Rejected, SourceUnavailable

MAX_FILES_BELOW = 1_000_000
"""Maximum number of files below a folder of data."""

MISTAKEN_PLACES = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors of the system that no waiting ends: the path is wrong, or this user may not read there."""


class FileVersion(NamedTuple):
    """A file's size, and when its content was last modified: both must stay as long as the file is in use."""

    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        """Return the version of what `stat` or `fstat` found."""
        return cls(found.st_size, found.st_mtime_ns)

    def check(self, path: Path, found: os.stat_result) -> None:
        """Raise `CorruptData` if the file is not this version any more; the fault of who changed it."""
        now = FileVersion.of(found)
        if now.size_bytes != self.size_bytes:
            changed = f"had {self.size_bytes} bytes and now has {now.size_bytes}"
        elif now.modified_ns != self.modified_ns:
            changed = f"was modified: it was of {_time_of(self.modified_ns)} and is now of {_time_of(now.modified_ns)}"
        else:
            return
        raise CorruptData(f"{path} {changed}; data may not change while they are in use", path=str(path))


def _time_of(modified_ns: int) -> str:
    seconds, rest_ns = divmod(modified_ns, 10**9)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest_ns:09} UTC"
    except (OverflowError, ValueError, OSError):  # a time that no calendar has
        return f"{modified_ns} ns"


def cannot_open(path: Path, error: OSError) -> Rejected | SourceUnavailable:
    """Return the error for files that cannot be opened; `Rejected` if the same path can only fail again."""
    reason = str(error) if error.errno is None else os.strerror(error.errno)
    message = f"{path.absolute()} cannot be read: {reason}"
    if error.errno in MISTAKEN_PLACES:
        return Rejected(f"{message}; check the path, or name the data with --data", path=str(path))
    return SourceUnavailable(message, path=str(path))


def files_below(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files in a folder and those below it, hidden ones left out, each with its name relative to the folder.

    Raises:
        Rejected: there are more than `MAX_FILES_BELOW`.
        OSError: the folder cannot be read.
    """
    os.listdir(folder)  # `rglob` passes over a folder that cannot be read
    count = 0
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if not is_hidden(name) and path.is_file():
            count += 1
            if count > MAX_FILES_BELOW:
                raise Rejected(f"{folder} holds more than {MAX_FILES_BELOW} files", path=str(folder))
            yield name, path
