"""Sweeps and copies of a run directory, each in its own process, keep out of each other's way by `RUN_DIR/sweep.lock`.

A sweep holds the lock alone, copies share it. The operating system releases it when a process ends, however it ends. A
sweep does not wait: it is put off, and how long is for the coordinator to say (`coordinator/run/maintenance.py`).
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from epochal.runtime.files.durable_files import open_private
from epochal.state.errors import StoreFailed

SWEEP_LOCK_FILE = "sweep.lock"
MAX_SWEEP_S = 60.0
"""Time after which a copy no longer waits for a sweep to end."""
POLL_S = 0.05


@contextlib.contextmanager
def sweeping(run_dir: Path) -> Iterator[bool]:
    """Hold the lock alone while the context is entered, and yield True; yield False if somebody copies the run.

    Raises:
        OSError: the lock cannot be opened.
    """
    with open_private(run_dir / SWEEP_LOCK_FILE) as lock:
        yield _is_taken(lock.fileno(), fcntl.LOCK_EX)


@contextlib.asynccontextmanager
async def copying(run_dir: Path) -> AsyncIterator[None]:
    """Share the lock while the context is entered. Without a lock that can be opened there is nothing to hold.

    Raises:
        StoreFailed: a sweep has gone on for `MAX_SWEEP_S`.
    """
    try:
        descriptor = os.open(run_dir / SWEEP_LOCK_FILE, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        for _ in range(round(MAX_SWEEP_S / POLL_S)):
            if _is_taken(descriptor, fcntl.LOCK_SH):
                break
            await asyncio.sleep(POLL_S)
        else:
            raise StoreFailed(f"{run_dir}: its coordinator has been deleting blobs for {MAX_SWEEP_S:g} s")
        yield
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
