"""Wakes all tasks that wait for a change, at once or at a bounded rate."""

import asyncio
import math


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

    @property
    def is_closed(self) -> bool:
        """Whether every wait returns at once."""
        return self._is_closed

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


class PacedBroadcast:
    """Wakes all waiting tasks after a notification: the more of them wait, the later.

    Args:
        prompt_count: up to this number of waiting tasks are woken at once.
        per_s: approximate maximum number of tasks woken in a second, if more of them wait.
    """

    def __init__(self, prompt_count: int, per_s: float) -> None:
        self._broadcast = Broadcast()
        self._prompt_count = prompt_count
        self._per_s = per_s
        self._waiting_count = 0
        self._woken_count = 0
        """Number of tasks woken last; most of them soon wait again."""
        self._woken_s = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_prompt(self) -> bool:
        """Whether so few tasks wait that a notification wakes them at once."""
        return max(self._waiting_count, self._woken_lately()) <= self._prompt_count

    @property
    def is_closed(self) -> bool:
        """Whether nobody waits any more."""
        return self._broadcast.is_closed

    async def wait(self) -> None:
        """Return when the tasks are woken. The caller sets a timeout."""
        self._waiting_count += 1
        try:
            await self._broadcast.wait()
        finally:
            self._waiting_count -= 1

    def notify(self) -> None:
        """Wake all waiting tasks, now or when it is time."""
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        due_s = self._woken_s + max(self._waiting_count, self._woken_lately()) / self._per_s
        if self.is_prompt or due_s <= loop.time():
            self._wake()
        else:
            self._timer = loop.call_at(due_s, self._wake)

    def close(self) -> None:
        """Wake all waiting tasks, and let every later wait return at once."""
        if self._timer is not None:
            self._timer.cancel()
        self._broadcast.close()

    def _woken_lately(self) -> int:
        is_lately = asyncio.get_running_loop().time() < self._woken_s + self._woken_count / self._per_s
        return self._woken_count if is_lately else 0

    def _wake(self) -> None:
        self._timer = None
        self._woken_count = self._waiting_count
        self._woken_s = asyncio.get_running_loop().time()
        self._broadcast.notify()
