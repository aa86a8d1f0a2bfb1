"""Log lines that strangers can provoke: written at once, then at most once a period, with their number since."""

import logging
import time
from collections.abc import Callable

LOG_PERIOD_S = 60.0
"""Minimum time between two lines of one event."""


class RareLog:
    """Logs one event of one logger at warning level, at most once in `LOG_PERIOD_S`.

    Args:
        logger: the logger of the module in which the event happens.
        event: the event's name.
        monotonic_s: seconds on a clock that never goes back.
    """

    def __init__(self, logger: logging.Logger, event: str, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._event = event
        self._monotonic_s = monotonic_s
        self._logged_s: float | None = None
        self._count = 0

    def note(self, reason: str, count: int = 1) -> None:
        """Count the event, and log it with the count since the last line unless a line was written just before."""
        self._count += count
        now_s = self._monotonic_s()
        if self._logged_s is not None and now_s < self._logged_s + LOG_PERIOD_S:
            return
        fields = {"reason": reason, "count": self._count, "next_line_after_s": LOG_PERIOD_S}
        self._logger.warning(self._event, extra=fields)
        self._logged_s, self._count = now_s, 0
