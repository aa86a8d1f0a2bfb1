"""Messages that may come thousands of times a second, logged at once and then once a period with their number."""

import asyncio
import logging
from typing import Any

PERIOD_S = 60.0
"""Time between two messages of the same kind."""
ACCEPT_FAILED = "socket.accept() out of system resource"
"""What asyncio says, up to thousands of times a second, while the process has no descriptor for another connection."""


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


def log_accept_errors_rarely(log: logging.Logger, period_s: float = PERIOD_S) -> None:
    """Log errors of accepting connections in the running loop once a period, instead of a traceback for each."""
    message = "no descriptors or memory for another connection; the next attempt is in a second"
    errors = PeriodicLog(log, message, period_s)

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") == ACCEPT_FAILED:
            errors.happened(loop.time(), error=str(context.get("exception")))
        else:
            loop.default_exception_handler(context)

    asyncio.get_running_loop().set_exception_handler(handle)
