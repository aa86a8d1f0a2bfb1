"""Wakes all tasks that wait for a change."""

import asyncio


class Broadcast:
    """Wakes all waiting tasks at each notification; a task that waits after it waits for the next one.

    A caller misses no notification if it checks its condition and then waits, without an `await` in between. With one
    in between: take `next`, check the condition, then wait for the event taken.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._is_closed = False

    @property
    def next(self) -> asyncio.Event:
        """Event that the next notification sets."""
        return self._event

    async def wait(self) -> None:
        """Return at the next notification. The caller sets a timeout."""
        await self._event.wait()

    def notify(self) -> None:
        """Wake all waiting tasks."""
        self._event.set()
        if not self._is_closed:
            self._event = asyncio.Event()

    def close(self) -> None:
        """Wake all waiting tasks, and let every later wait return at once."""
        self._is_closed = True
        self._event.set()
