"""Wakes all tasks that wait for a change, at once or at a bounded rate."""

import asyncio
import math
from itertools import islice

SLICE_S = 0.01
"""Time between two groups of tasks that are woken in one turn."""
TURN_PART = 0.8
"""Part of the time between two turns in which all of a turn's tasks are woken, or less."""


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
    """Wakes all waiting tasks after a notification: the more of them wait, the later, and the fewer of them at once.

    Those who wait are woken in a turn, some after the others, so that no turn holds up what else the loop has to do. A
    task that waits while a turn continues is woken in the next one.

    Args:
        prompt_count: up to this number of waiting tasks are woken at once.
        per_s: approximate maximum number of tasks woken in a second, if more of them wait.
    """

    def __init__(self, prompt_count: int, per_s: float) -> None:
        self._prompt_count = prompt_count
        self._per_s = per_s
        self._at_once = math.ceil(per_s * SLICE_S / TURN_PART)
        """Number of tasks that are woken together."""
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._turn: dict[asyncio.Future[None], None] = {}
        """Tasks that are to be woken in the turn under way."""
        self._woken_count = 0
        """Number of tasks woken in the last turn; most of them soon wait again."""
        self._woken_s = -math.inf
        """When that turn began."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_notified = False
        """Whether another turn is to follow."""
        self.turn_count = 0
        """Number of turns that have begun."""
        self.is_closed = False
        """Whether all waiting has ended."""

    @property
    def is_prompt(self) -> bool:
        """Whether so few tasks wait that a notification wakes them at once."""
        return max(self._waiting_count(), self._woken_lately()) <= self._prompt_count

    async def wait(self) -> None:
        """Return when the task is woken. The caller sets a timeout."""
        if self.is_closed:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = None
        try:
            await woken
        finally:
            self._waiting.pop(woken, None)
            self._turn.pop(woken, None)

    def notify(self) -> None:
        """Wake all waiting tasks, now or when it is time."""
        self._is_notified = True
        if self._timer is None:
            self._plan_turn()

    def close(self) -> None:
        """Wake all waiting tasks, and let every later wait return at once."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for woken in (*self._turn, *self._waiting):
            _wake(woken)

    def _plan_turn(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = self._woken_s + max(self._waiting_count(), self._woken_lately()) / self._per_s
        if self.is_prompt or due_s <= loop.time():
            self._begin_turn()
        else:
            self._timer = loop.call_at(due_s, self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_notified = False
        self._turn, self._waiting = self._waiting, {}
        self._woken_count = len(self._turn)
        self._woken_s = asyncio.get_running_loop().time()
        self.turn_count += 1
        self._wake_some(self._prompt_count if self._woken_count <= self._prompt_count else self._at_once)

    def _wake_some(self, count: int) -> None:
        """Wake so many of the turn's tasks, and plan what follows."""
        self._timer = None
        for woken in tuple(islice(self._turn, count)):
            del self._turn[woken]
            _wake(woken)
        if self._turn:
            self._timer = asyncio.get_running_loop().call_later(SLICE_S, self._wake_some, self._at_once)
        elif self._is_notified:
            self._plan_turn()

    def _waiting_count(self) -> int:
        return len(self._waiting) + len(self._turn)

    def _woken_lately(self) -> int:
        is_lately = asyncio.get_running_loop().time() < self._woken_s + self._woken_count / self._per_s
        return self._woken_count if is_lately else 0


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
