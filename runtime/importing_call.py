"""Runs a call that imports much in a separate thread, estimates its remaining time, and can stop it.

Each module that is imported is searched for by the finders of `sys.meta_path` in turn. One that comes first, and finds
nothing, counts the modules of its thread, and ends the thread's call at the next one when nobody waits for it any more.
"""

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import ModuleType

from epochal.runtime.clock import Clock, SystemClock
from epochal.state.errors import EpochalError

MOST_DONE = 0.98
"""Largest part of a call that counts as done before it returns, however many modules it has imported."""

STALL_S = 2.0
STALLED_PART = 0.25
"""A call that has searched for no module for `STALL_S`, and this part of its time so far, may hang."""
STOP_TIMEOUT_S = 5.0
"""Maximum time for which a call that is stopped is waited for."""


class ImportingCall:
    """A blocking call that mostly imports modules. `start` it once; `stop` it where it may still run.

    Args:
        call: the call.
        module_count: about how many modules are searched for until it returns, with other work counted like so many.
        clock: measures how long it takes.
    """

    def __init__(self, call: Callable[[], None], module_count: int, clock: Clock | None = None) -> None:
        self._call = call
        self._module_count = module_count
        self._clock = clock or SystemClock()
        self._ended: Future[None] = Future()
        self._finder = _CountingFinder(self._clock.monotonic_s)
        self._started_s = math.inf
        self._thread = threading.Thread(target=self._run, name="epochal-import", daemon=True)
        """A daemon: an import that hangs must not keep the process from its end."""

    def start(self) -> None:
        """Begin the call."""
        self._started_s = self._clock.monotonic_s()
        self._ended.set_running_or_notify_cancel()  # so that whoever no longer waits for it does not cancel it
        self._thread.start()

    async def ended(self) -> None:
        """Return once the call has returned. Raise what it raises."""
        await asyncio.wrap_future(self._ended)

    def left_s(self) -> float:
        """Return about how many seconds the call will still take: what is left of its modules, as fast as before.

        Infinity if nobody can tell: nothing was imported yet, or nothing was for so long that the call may hang.
        """
        if self._ended.done():
            return 0.0
        finder, now_s = self._finder, self._clock.monotonic_s()
        taken_s = now_s - self._started_s
        if not finder.count or now_s - finder.last_s > STALL_S + STALLED_PART * taken_s:
            return math.inf
        done = min(finder.count / self._module_count, MOST_DONE)
        return taken_s * (1 - done) / done

    def stop(self) -> None:
        """Let the call end at its next import; `ended` raises `EpochalError` then."""
        self._finder.is_stopped = True

    def join(self) -> None:
        """Wait for the thread's end, for at most `STOP_TIMEOUT_S`."""
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        self._finder.thread = threading.get_ident()
        sys.meta_path = [self._finder, *sys.meta_path]  # a new list: other threads may be going through the old one
        failure: BaseException | None = None
        try:
            self._call()
        except _Stopped:
            failure = EpochalError("stopped before everything was imported")
        except BaseException as error:
            failure = error
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self._finder]
        if failure is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(failure)


class _Stopped(BaseException):
    """Ends a call that nobody waits for, past every `except Exception`."""


class _CountingFinder:
    """A finder of modules that finds none."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.count = 0
        self.last_s = 0.0
        self.thread: int | None = None
        self.is_stopped = False

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Count a module that this finder's thread searches."""
        del fullname, path, target
        if threading.get_ident() == self.thread:
            self.count += 1
            self.last_s = self._now_s()
            if self.is_stopped:
                raise _Stopped
