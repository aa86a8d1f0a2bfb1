"""Messages that may come thousands of times a second, logged at once and then once a period with their number."""

import logging
from typing import Any

PERIOD_S = 60.0
"""Time between two messages of the same kind."""


class PeriodicLog:
    """One kind of message: the first is logged at once, the following ones are counted and logged once a period."""

    def __init__(self, log: logging.Logger, message: str, period_s: float = PERIOD_S) -> None:
        self._log = log
        self._message = message
        self._period_s = period_s
        self._next_at_s = float("-inf")
        self._count = 0

    def happened(self, now_s: float, **facts: Any) -> None:
        """Count one more; log it with the number since the last message, unless that was less than a period ago.

        Args:
            now_s: any clock's seconds, the same one each time.
            facts: of this one, for the message.
        """
        self._count += 1
        if now_s < self._next_at_s:
            return
        self._log.warning(self._message, extra={"count": self._count, **facts})
        self._next_at_s, self._count = now_s + self._period_s, 0
