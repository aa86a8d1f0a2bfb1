"""Writing files atomically and durably. Every write goes through a `Disk`, so that a test can let it fail."""

import errno
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from epochal.state.model.tensors import Buffer


def _write_all(file: BinaryIO, data: Buffer) -> None:
    """Write all of the bytes: an unbuffered file may take fewer at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _sync_data(descriptor: int) -> None:
    """Make the bytes of a file durable, if not everything about it."""
    if hasattr(os, "fdatasync"):  # not on macOS
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def _allocate(descriptor: int, size_bytes: int) -> None:
    if size_bytes and hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(descriptor, 0, size_bytes)


@dataclass(frozen=True, slots=True)
class Disk:
    """The system calls that write, sync and reserve room. All raise `OSError` when the disk is full or fails."""

    write: Callable[[BinaryIO, Buffer], object] = _write_all
    sync: Callable[[int], None] = os.fsync
    allocate: Callable[[int, int], None] = _allocate
    sync_data: Callable[[int], None] = _sync_data


REAL_DISK = Disk()
PUBLIC_MODE = 0o666
PRIVATE_MODE = 0o600
"""For files that only their owner may read."""
PRIVATE_FOLDER_MODE = 0o700
"""For folders that only their owner may enter."""
OTHERS_MODE = 0o077
"""The permissions of everybody but the owner."""
ROOM_FILE = "room.new"
"""Name of the file that `check_room` makes for a moment."""
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of a file system without hard links."""


def sync_folder(folder: Path, disk: Disk = REAL_DISK) -> None:
    """Make the names in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.sync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, disk: Disk = REAL_DISK, mode: int = 0o777) -> None:
    """Create the folder and its missing parents, durably."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode, exist_ok=True)
        sync_folder(path.parent, disk)


def open_private(path: Path, flags: int = 0) -> BinaryIO:
    """Open a file that only its owner may read, unbuffered, to read and write it; create it if it does not exist.

    Args:
        path: the file.
        flags: further flags of `os.open`, such as `os.O_TRUNC`.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | flags, PRIVATE_MODE)
    return open(descriptor, "r+b", buffering=0)


def make_private(path: Path) -> None:
    """Take every permission on a file or folder from all but its owner. A link is left alone."""
    found = path.lstat().st_mode
    if not stat.S_ISLNK(found) and found & OTHERS_MODE:
        path.chmod(stat.S_IMODE(found) & ~OTHERS_MODE)


def replace_file(path: Path, data: bytes, disk: Disk = REAL_DISK, mode: int = PUBLIC_MODE) -> None:
    """Write a file atomically: a crash or an `OSError` leaves the old content or the new one."""
    fresh = path.with_name(path.name + ".new")
    try:
        _write(fresh, data, disk, mode)
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent, disk)


def check_room(folder: Path, size_bytes: int, disk: Disk = REAL_DISK) -> None:
    """Raise `OSError` unless a file of this size can be made in the folder now. It is not kept."""
    path = folder / ROOM_FILE
    try:
        with open_private(path, os.O_TRUNC) as file:
            disk.allocate(file.fileno(), size_bytes)
    finally:
        path.unlink(missing_ok=True)


def create_file(path: Path, data: bytes, disk: Disk = REAL_DISK, mode: int = PUBLIC_MODE) -> None:
    """Create a file atomically. Raise `FileExistsError` if it exists, perhaps made by another process just before."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write(fresh, data, disk, mode)
        try:
            os.link(fresh, path)
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
            fresh.replace(path)
        sync_folder(path.parent, disk)
    finally:
        fresh.unlink(missing_ok=True)


def _write(path: Path, data: bytes, disk: Disk, mode: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        disk.write(file, data)
        file.flush()
        disk.sync(file.fileno())
