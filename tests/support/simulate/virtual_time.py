"""An event loop whose time jumps to the next timer: hours of a run in seconds, the same on every machine.

Only for code without threads and sockets. When nothing is ready and no timer is set, the loop would wait for ever; it
says so instead.
"""

import asyncio
import functools
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class _JumpingSelector(selectors.SelectSelector):
    """Never sleeps: a wait becomes a jump of the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise RuntimeError("every task waits and no timer is set: the simulation is deadlocked")
        self.now_s += timeout
        return ready


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that a set of tasks is not in the order of their addresses in memory."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in virtual time, which begins at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        numbers = itertools.count()
        self.set_task_factory(lambda loop, coro, **options: _NumberedTask(next(numbers), coro, loop=loop, **options))

    def time(self) -> float:
        return self._jumping.now_s


class VirtualClock:
    """`epochal.runtime.clock.Clock` over a virtual loop; `step_s` shifts the wall clock, as an operator might."""

    def __init__(self) -> None:
        self.step_s = 1_000_000.0

    def wall_s(self) -> float:
        return asyncio.get_running_loop().time() + self.step_s

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


def run_virtually(main: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """Run a coroutine to its end in virtual time, on a new loop."""
    loop = loop or VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtually(test(*args, **kwargs))

    return run
