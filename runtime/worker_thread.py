"""Runs blocking calls: in one thread, in the event loop's shared threads, or inline where time is virtual.

Cancelling the caller does not stop a call that is already running; a call that must be stoppable checks a flag.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""Maximum time that `aclose` waits for a running call."""


class Worker(Protocol):
    """Runs blocking calls."""

    async def run(self, call: Callable[[], _T]) -> _T:
        """Return the call's result, or raise its exception."""

    async def aclose(self) -> None:
        """Wait for the calls made so far, with a timeout. No call may follow, except `aclose` again."""


class WorkerThread:
    """A `Worker` that runs one call at a time, in order, always in the same thread, started at the first call.

    So a call finds the buffers and the floating-point mode that the one before left in the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._closed = False

    async def run(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        last = self._executor.submit(lambda: None)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.wrap_future(last)
        except TimeoutError:
            _logger.warning("worker_still_busy_at_close", extra={"worker": self._name})
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)


class SharedThreads:
    """A `Worker` that runs calls side by side in the event loop's thread pool."""

    async def run(self, call: Callable[[], _T]) -> _T:
        return await asyncio.to_thread(call)

    async def aclose(self) -> None:
        """Do nothing: the threads belong to the event loop."""


async def finished(call: Callable[[], _T]) -> _T:
    """Return what a blocking call returns, made in one of the event loop's threads.

    If the caller is cancelled, the cancellation is raised when the call has ended: its thread changes nothing any more.
    """
    running = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # the cancellation comes first
        raise


class InlineWorker:
    """A `Worker` that runs each call at once in the event loop's thread."""

    async def run(self, call: Callable[[], _T]) -> _T:
        return call()

    async def aclose(self) -> None:
        """Do nothing: no call is running."""
