"""Memory of long-lived servers: Python's collector of reference cycles, which should visit few objects in vain, and the
heaps of the C library.
"""

import ctypes
import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 100_000
"""New objects between two collections of the youngest ones (Python's default: 700, or 2,000). A thousand requests that
wait have fewer, and most are answered before: then they need no collection."""
YOUNG_COLLECTIONS = 20
OLD_COLLECTIONS = 20
"""A full collection visits each request that waits: 0.2 s for 2,300 of them."""

_M_ARENA_MAX = -8
"""The parameter of glibc's `mallopt` that is the maximum number of heaps."""


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect no cycles until the context is left: while modules are imported, a fifth of the time goes into that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_rarely() -> None:
    """Leave all present objects out of collections for good, and collect later ones less often than by default.

    It is for a server with thousands of requests that wait, once it serves. Objects that are in no cycle are freed at
    once, as ever.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, OLD_COLLECTIONS)


def share_one_heap() -> bool:
    """Let all threads take memory from one heap, and return whether that is so, which it is with glibc alone.

    By default each thread has a heap of its own, and what is free in one is of no use to the others: with a few threads
    that do little, some megabytes. Call it before threads are started.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    return bool(ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1))
