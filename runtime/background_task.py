"""A slot for one background task at a time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from epochal.state.errors import InternalError

STOP_TIMEOUT_S = 30.0
"""An activity that takes longer to end after its cancellation is a bug: arithmetic runs in a `Worker`."""


class BackgroundTask:
    """Runs at most one coroutine at a time, in a task group. An error that it raises ends the whole group."""

    def __init__(self, group: asyncio.TaskGroup, name: str) -> None:
        self._group = group
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an activity is running."""
        return self._task is not None and not self._task.done()

    async def replace(self, activity: Coroutine[Any, Any, None] | None) -> None:
        """Cancel the running activity, wait for its end, then start `activity` unless it is None.

        Raises:
            InternalError: the running activity does not end.
        """
        try:
            await self._stop()
            if activity is not None:
                self._task = self._group.create_task(activity, name=self._name)
        except BaseException:  # also of a group that ends
            if activity is not None:
                activity.close()
            raise

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is None or task.done():
            return
        task.cancel()
        _, pending = await asyncio.wait({task}, timeout=STOP_TIMEOUT_S)
        if pending:
            raise InternalError(f"{self._name} does not end within {STOP_TIMEOUT_S:g} s of being cancelled")
