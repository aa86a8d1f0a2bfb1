"""Calls that are made side by side in several threads, with their results in order."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MAX_THREADS = 8
"""Maximum number of threads of one call."""
CALLS_PER_THREAD = 2
"""Number of results, finished or not, that are held for each thread."""


def core_count() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # not on macOS


def side_by_side(call: Callable[[T], R], items: Iterable[T], thread_count: int | None = None) -> Iterator[R]:
    """Yield what `map` yields, from calls in threads that are a bounded number of items ahead of the reader.

    Args:
        call: is made for each item, outside the reader's thread; what it raises is raised in its turn.
        items: are taken in the reader's thread.
        thread_count: number of threads; None for one on each core, at most `MAX_THREADS`.
    """
    count = min(core_count(), MAX_THREADS) if thread_count is None else thread_count
    begun: deque[Future[R]] = deque()
    with ThreadPoolExecutor(count, "epochal-beside") as threads:
        try:
            for item in items:
                if len(begun) == CALLS_PER_THREAD * count:
                    yield begun.popleft().result()
                begun.append(threads.submit(call, item))
            while begun:
                yield begun.popleft().result()
        finally:
            for call_begun in begun:
                call_begun.cancel()
