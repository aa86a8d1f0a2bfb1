"""Virtual time: what happens at a time is a call, and who waits is a generator. Hours pass in milliseconds.

A process is a generator. It yields a number, to continue so many seconds later, or a `Signal`, to continue once that is
given, with its value. Nothing here reads a clock: the same calls at the same times give the same run.
"""

import heapq
from collections.abc import Callable, Generator
from typing import Any

Process = Generator["float | Signal", Any, None]
"""A process; a part of one is called with `yield from`."""
Part = Generator["float | Signal", Any, Any]
"""A part of a process, which may return a value."""


class Signal:
    """Something that is given once; processes wait for it."""

    __slots__ = ("_waiting", "is_given", "value")

    def __init__(self) -> None:
        self.is_given = False
        self.value: Any = None
        self._waiting: list[Callable[[Any], None]] = []

    def give(self, value: Any = None) -> None:
        """Resume everyone who waits, with this value; a second call changes nothing."""
        if self.is_given:
            return
        self.is_given, self.value = True, value
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call(value)

    def then(self, call: Callable[[Any], None]) -> None:
        """Call with the value, once it is given."""
        if self.is_given:
            call(self.value)
        else:
            self._waiting.append(call)


class Timeline:
    """The calls to come, in the order of their times."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.event_count = 0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Call at a time; one that has passed is now."""
        self.event_count += 1
        heapq.heappush(self._calls, (max(self.now_s, time_s), self.event_count, call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call so many seconds from now."""
        self.at(self.now_s + seconds, call)

    def start(self, process: Process) -> None:
        """Run a process, from now on."""

        def go_on(value: Any = None) -> None:
            try:
                waits_for = process.send(value)
            except StopIteration:
                return
            if isinstance(waits_for, Signal):
                waits_for.then(go_on)
            else:
                self.after(waits_for, go_on)

        go_on()

    def run_while(self, goes_on: Callable[[], bool]) -> bool:
        """Make the calls in order while the condition holds; return False if none is left."""
        while goes_on():
            if not self._calls:
                return False
            self.now_s, _, call = heapq.heappop(self._calls)
            call()
        return True
