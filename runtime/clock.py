"""Clocks: the system's, which simulations replace, and a run's, which never goes back."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def wall_s(self) -> float:
        """Return the seconds since 1970 by the system clock, which may jump."""

    def monotonic_s(self) -> float:
        """Return the seconds since an arbitrary start; they never go back."""


class SystemClock:
    """The system's clocks."""

    def wall_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()


class RunClock:
    """A run's time: starts at the wall time, or at `not_before_s` if that is later, and is monotonic from then on.

    Args:
        clock: the system's.
        not_before_s: the run has reached this time.
        now_s: the time that others have by whom the run continues; it takes the place of the wall time.
    """

    def __init__(self, clock: Clock, *, not_before_s: float, now_s: float | None = None) -> None:
        self._clock = clock
        self._base_s = max(clock.wall_s() if now_s is None else now_s, not_before_s) - clock.monotonic_s()

    def not_before(self, now_s: float) -> None:
        """Never return an earlier time again, because another coordinator of the run has reached it."""
        self._base_s += max(0.0, now_s - self.now_s())

    def now_s(self) -> float:
        """Return the run's time in seconds since 1970."""
        return self._base_s + self._clock.monotonic_s()
