"""Where blocking work runs: in one thread of its own, in the event loop's threads, or inline where time is virtual.

The rule kept by `WorkerThread`: one call at a time, in the order of the calls, always in the same thread; so what a
call leaves behind (buffers, the thread's floating-point mode) is there for the next. Cancelling the caller does not
stop a call that is already running: whoever needs that gives the call a flag to look at.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
"""How long `aclose` waits for a call that is still running."""


class Worker(Protocol):
    """Runs blocking calls."""

    async def run(self, call: Callable[[], _T]) -> _T:
        """Return the call's own result, or raise what it raises."""
        ...

    async def aclose(self) -> None:
        """Return when the calls made so far have ended, or after a bound; no call may follow. May be called again."""
        ...


class WorkerThread:
    """A `Worker` with one thread, started at the first call and named `name`."""

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
    """A `Worker` over the event loop's own threads, for calls that need no order."""

    async def run(self, call: Callable[[], _T]) -> _T:
        return await asyncio.to_thread(call)

    async def aclose(self) -> None:
        """The threads are not this worker's to end."""


class InlineWorker:
    """A `Worker` that runs each call right away on the event loop's own thread."""

    async def run(self, call: Callable[[], _T]) -> _T:
        return call()

    async def aclose(self) -> None:
        """Nothing runs between two calls."""
