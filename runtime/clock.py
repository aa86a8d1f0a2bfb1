"""The coordinator's clock: seconds that never go back, however the machine's own clock is set while it runs."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the shell gets time from; a simulation brings its own."""

    def wall_s(self) -> float:
        """Seconds since 1970 by the machine's clock; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from some start; never goes back."""
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
        """Seconds on the run's clock."""
        return self._base_s + self._clock.monotonic_s()
