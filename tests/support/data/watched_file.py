"""Waits for writes to a file, by inotify(7), which only Linux has."""

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

IN_MODIFY = 0x2
MAX_EVENTS_BYTES = 65_536


@contextlib.contextmanager
def writes_to(path: Path) -> Iterator[asyncio.Event]:
    """Yield an event that is set whenever the file was written since it was last cleared. Use it in an event loop."""
    libc, loop, written = ctypes.CDLL(None, use_errno=True), asyncio.get_running_loop(), asyncio.Event()
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0 or libc.inotify_add_watch(descriptor, os.fsencode(path), IN_MODIFY) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))

    def take() -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(descriptor, MAX_EVENTS_BYTES)
        written.set()

    loop.add_reader(descriptor, take)
    try:
        yield written
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
