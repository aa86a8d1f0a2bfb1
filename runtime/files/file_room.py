"""Bytes of a file at a given place, and room for them before they are written."""

import os

from epochal.state.model.tensors import Buffer


def write_at(descriptor: int, offset: int, data: Buffer) -> None:
    """Write all of the data from this byte on. Raise `OSError` if they do not fit; some may have been written."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def allocate(descriptor: int, size_bytes: int) -> None:
    """Make the file this large. Raise `OSError` if the disk has no room for it, where the system reports that."""
    if os.fstat(descriptor).st_size > size_bytes:
        os.ftruncate(descriptor, size_bytes)
    elif hasattr(os, "posix_fallocate"):  # not on macOS
        os.posix_fallocate(descriptor, 0, size_bytes)
    else:
        os.ftruncate(descriptor, size_bytes)
