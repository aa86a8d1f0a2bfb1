"""The meaning of a failed system call for files, and the patience with what passes by itself."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from epochal.runtime.os_errors import Obstacle, obstacle_of, reason_of
from epochal.state.errors import StoreBlocked, StoreFailed

PASSING_S = 5.0
"""Maximum time for which work is repeated while descriptors or memory have run out."""
PASSING_PAUSE_S = 0.1

T = TypeVar("T")


def store_failure(place: str, error: OSError | MemoryError) -> StoreFailed:
    """Return the error to raise for a failed system call: `StoreBlocked` if the same may succeed later."""
    obstacle, message = obstacle_of(error), f"{place}: {reason_of(error)}"
    if obstacle is Obstacle.BROKEN:
        return StoreFailed(message)
    return StoreBlocked(message, is_full=obstacle is Obstacle.FULL)


def is_passing(failure: StoreFailed) -> bool:
    """Return whether the same may succeed in a moment, without anybody's doing."""
    return isinstance(failure, StoreBlocked) and not failure.is_full


async def repeated_while_passing(work: Callable[[], Awaitable[T]]) -> T:
    """Return what the work returns; repeat it for up to `PASSING_S` while something passing is in the way."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + PASSING_S
    while True:
        try:
            return await work()
        except StoreBlocked as blocked:
            if not is_passing(blocked) or loop.time() >= until_s:
                raise
        await asyncio.sleep(PASSING_PAUSE_S)
