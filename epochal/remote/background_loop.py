"""An event loop in a separate thread, so that blocking calls can be made from anywhere, also from a notebook.

A notebook's cells run inside an event loop, in which no other one can be run.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from epochal.runtime.task_errors import first_error
from epochal.state.errors import EpochalError

STOP_S = 10.0
"""Maximum time that a call which is interrupted, or the end of the loop, takes."""

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines in a thread's event loop, until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns. It is cancelled if the caller is interrupted, as by Ctrl-C."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseExceptionGroup as group:
            raise first_error(group, EpochalError) from None
        except KeyboardInterrupt:
            future.cancel()
            with contextlib.suppress(BaseException):
                future.result(STOP_S)
            raise

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(STOP_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
    await asyncio.get_running_loop().shutdown_asyncgens()
