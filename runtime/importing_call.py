"""A call that imports much, in a thread of its own: how long it will still take, and how to stop it.

Each module that is imported is looked for by the finders of `sys.meta_path` in turn. One that comes first, and finds
nothing, counts the modules of its thread, and ends the thread's call at the next one when nobody waits for it any more.
"""

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import ModuleType

from runtime.clock import Clock, SystemClock
from state.errors import EpochalError

MOST_DONE = 0.98
"""Largest part of a call that counts as done before it returns, however many modules it has imported."""


class ImportingCall:
    """A blocking call that mostly imports modules. `start` it once; `stop` it where it may still run.

    Args:
        call: the call.
        module_count: about how many modules are looked for until it returns, with other work counted like so many.
        clock: measures how long it takes.
    """

    def __init__(self, call: Callable[[], None], module_count: int, clock: Clock | None = None) -> None:
        self._call = call
        self._module_count = module_count
        self._clock = clock or SystemClock()
        self._ended: Future[None] = Future()
        self._finder = _CountingFinder()
        self._started_s = math.inf

    def start(self) -> None:
        """Begin the call."""
        self._started_s = self._clock.monotonic_s()
        self._ended.set_running_or_notify_cancel()  # so that whoever no longer waits for it does not cancel it
        threading.Thread(target=self._run, name="epochal-import").start()

    async def ended(self) -> None:
        """Return once the call has returned. Raise what it raises."""
        await asyncio.wrap_future(self._ended)

    def left_s(self) -> float:
        """Return about how many seconds the call will still take: what is left of its modules, as fast as before."""
        if self._ended.done():
            return 0.0
        done = min(self._finder.count / self._module_count, MOST_DONE)
        return (self._clock.monotonic_s() - self._started_s) * (1 - done) / done if done else math.inf

    def stop(self) -> None:
        """Let the call end at its next import; `ended` raises `EpochalError` then."""
        self._finder.is_stopped = True

    def _run(self) -> None:
        self._finder.thread = threading.get_ident()
        sys.meta_path.insert(0, self._finder)
        failure: BaseException | None = None
        try:
            self._call()
        except _Stopped:
            failure = EpochalError("stopped before everything was imported")
        except BaseException as error:
            failure = error
        sys.meta_path.remove(self._finder)
        if failure is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(failure)


class _Stopped(BaseException):
    """Ends a call that nobody waits for, past every `except Exception`."""


class _CountingFinder:
    """A finder of modules that finds none."""

    def __init__(self) -> None:
        self.count = 0
        self.thread: int | None = None
        self.is_stopped = False

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Count a module that this finder's thread looks for."""
        del fullname, path, target
        if threading.get_ident() == self.thread:
            self.count += 1
            if self.is_stopped:
                raise _Stopped
