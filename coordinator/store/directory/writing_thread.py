"""One thread in which a run directory's journal and state file are written, in order.

The rule kept here: after one failed write or sync nothing more is written, because the contents of the disk are no
longer known; the process must be started again, and finds the last whole record.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from runtime.worker_thread import WorkerThread
from state.errors import StoreFailed

T = TypeVar("T")


class WritingThread:
    """Does blocking work in order until some of it fails."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._worker = WorkerThread("journal")
        self._failed: str | None = None
        self._is_closed = False

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Return what the work returns.

        Raises:
            StoreFailed: it failed, or earlier work has, or the thread is closed.
        """
        if self._is_closed:
            raise StoreFailed(f"{self._run_dir} is closed")
        return await self._worker.run(partial(self._guarded, work, *arguments))

    def _guarded(self, work: Callable[..., T], *arguments: object) -> T:
        if self._failed is not None:
            raise StoreFailed(self._failed)
        try:
            return work(*arguments)
        except StoreFailed as error:
            self._failed = str(error)
            raise
        except OSError as error:
            self._failed = f"{self._run_dir}: {error.strerror or error}"
            raise StoreFailed(self._failed) from error

    async def aclose(self, last: Callable[[], None]) -> None:
        """Do the last work once everything before it is done, even after a failure."""
        self._is_closed = True
        await self._worker.run(last)
        await self._worker.aclose()
