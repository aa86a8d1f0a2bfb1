"""One background activity at a time, which the next one replaces."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from state.errors import InternalError

STOP_TIMEOUT_S = 30.0
"""An activity that was cancelled and does not end within this is our bug: arithmetic runs elsewhere (`Worker`)."""


class BackgroundTask:
    """Runs at most one coroutine at a time, in a task group that outlives it.

    An error that the coroutine raises is the task group's: it ends everything in the group.
    """

    def __init__(self, group: asyncio.TaskGroup, name: str) -> None:
        self._group = group
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the activity still runs."""
        return self._task is not None and not self._task.done()

    async def replace(self, activity: Coroutine[Any, Any, None] | None) -> None:
        """End what runs, and only then start `activity`; with None, nothing follows.

        Raises:
            InternalError: what runs does not let itself be cancelled.
        """
        try:
            await self._stop()
        except BaseException:
            if activity is not None:
                activity.close()
            raise
        if activity is not None:
            self._task = self._group.create_task(activity, name=self._name)

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is None or task.done():
            return
        task.cancel()
        _, pending = await asyncio.wait({task}, timeout=STOP_TIMEOUT_S)
        if pending:
            raise InternalError(f"{self._name} does not end within {STOP_TIMEOUT_S:g} s of being cancelled")
