"""Where every program gets time from (a simulation brings its own), and a run's time, which never goes back."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def wall_s(self) -> float:
        """Return the seconds since 1970 by the machine's clock, which may jump."""
        ...

    def monotonic_s(self) -> float:
        """Return the seconds from some start; they never go back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


class RunClock:
    """The run's time: wall time when it is opened, but never before `not_before_s`; monotonic from there on."""

    def __init__(self, clock: Clock, *, not_before_s: float) -> None:
        self._clock = clock
        self._base_s = max(clock.wall_s(), not_before_s) - clock.monotonic_s()

    def now_s(self) -> float:
        """Return the seconds on the run's clock."""
        return self._base_s + self._clock.monotonic_s()
