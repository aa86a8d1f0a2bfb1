"""Python's collector of reference cycles: where it visits many objects in vain, it should run rarely or not at all."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 20_000
"""New objects between two collections of the youngest ones (Python's default: 700, or 2,000)."""
YOUNG_COLLECTIONS = 20
OLD_COLLECTIONS = 20
"""A full collection visits each request that waits: 0.2 s for 2,300 of them."""


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
