"""A file's bytes where the system keeps them, for a socket to send without a copy in this process.

The rule kept here: nobody but the system reads a view of a mapping. A process that reads a mapped page which was cut
off ends (SIGBUS), while the system, asked to send it, answers with an error (EFAULT). Between the file's new end and
the end of that page there are zeros, so whoever sends from a mapping inspects the file's version afterwards.
"""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MAPS = sys.platform == "linux" and sys.maxsize > 2**32
"""Whether files are mapped: where the system reports what is in memory, and addresses are not scarce."""
MAX_VIEW_BYTES = 1024**2
"""The longest view that is given at a time."""
_MAX_PAGES = MAX_VIEW_BYTES // mmap.PAGESIZE + 2
_NOT_IN_MEMORY = b"\0"


def _system_mincore() -> Callable[..., int] | None:
    if not MAPS:
        return None
    found: Any = getattr(ctypes.PyDLL(None), "mincore", None)
    if found is not None:
        found.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
    return found  # type: ignore[no-any-return]


_mincore = _system_mincore()


class MappedFile:
    """A mapping of the first `size_bytes` of the file that is open as `fd`, which may be closed afterwards.

    One thread uses it at a time.

    Raises:
        OSError, ValueError: it cannot be mapped.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._map = mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ)
        self._view = memoryview(self._map)
        self._address = int(np.frombuffer(self._map, np.uint8).ctypes.data)
        self._pages = bytearray(_MAX_PAGES)
        self._pages_address = ctypes.addressof((ctypes.c_char * _MAX_PAGES).from_buffer(self._pages))
        self.size_bytes = size_bytes

    def at_hand(self, stretches: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes of stretches of the file, for the system alone to read, as far as they are in memory.

        Args:
            stretches: the offset and the length of each in bytes, at most `MAX_VIEW_BYTES`.

        Returns:
            The first ones, up to one that sending would wait for a disk for, or that is not one of this file.
        """
        views: list[memoryview] = []
        if _mincore is None:
            return views
        view, address, pages, pages_address = self._view, self._address, self._pages, self._pages_address
        for offset, count in stretches:
            if not 0 < count <= MAX_VIEW_BYTES or offset + count > self.size_bytes:
                break
            before = offset % mmap.PAGESIZE
            length = before + count
            if _mincore(address + offset - before, length, pages_address):
                break
            if pages.find(_NOT_IN_MEMORY, 0, -(-length // mmap.PAGESIZE)) >= 0:
                break
            views.append(view[offset : offset + count])
        return views


def is_told_what_is_in_memory(fd: int) -> bool:
    """Whether the system reports which pages of the file are in memory.

    Linux tells it to a file's owner and to whoever may write it; to others it says that all of them are.
    """
    if _mincore is None:
        return False
    try:
        return os.fstat(fd).st_uid == os.geteuid() or os.access(f"/proc/self/fd/{fd}", os.W_OK, effective_ids=True)
    except OSError:
        return False


def mapped_if_told(fd: int, size_bytes: int) -> MappedFile | None:
    """Return a mapping of the file, or None where it cannot be mapped or would be waited for unawares."""
    if not is_told_what_is_in_memory(fd):
        return None
    try:
        return MappedFile(fd, size_bytes)
    except (OSError, ValueError):
        return None
