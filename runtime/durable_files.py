"""The few file operations on which "kept" rests, in one place: so that a test can make them fail as a disk does."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class Disk:
    """How bytes reach the disk. Both raise `OSError` when it is full or fails."""

    write: Callable[[BinaryIO, bytes], object] = lambda file, data: file.write(data)
    sync: Callable[[int], None] = os.fsync


REAL_DISK = Disk()


def sync_folder(folder: Path, disk: Disk = REAL_DISK) -> None:
    """Make a rename or a new name in the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.sync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, disk: Disk = REAL_DISK) -> None:
    """Make the folder, and those that it lies in, unless they are there; the names of new ones are durable."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent, disk)


def replace_file(path: Path, data: bytes, disk: Disk = REAL_DISK) -> None:
    """Write the file whole or not at all: a crash leaves the old one or the new one."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        disk.write(file, data)
        file.flush()
        disk.sync(file.fileno())
    fresh.replace(path)
    sync_folder(path.parent, disk)
