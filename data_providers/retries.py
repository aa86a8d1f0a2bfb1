"""When a source tries a request again: exponential backoff with full jitter, what the server asks for, and a bound."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from data_providers.protocol import SourceUnavailable

MAX_RETRY_AFTER_S = 30.0
"""A server that asks for more patience than this gets no more than this from one request."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how long a request is tried.

    Attributes:
        attempts: tries in a row that bring nothing, the first one included.
        first_delay_s, max_delay_s: the bound of the n-th wait is `first_delay_s · 2ⁿ`, at most `max_delay_s`; the wait
            is anything from 0 to it, so that clients that failed together do not come back together.
        sleep, jitter: time and chance (from [0, 1)); a test brings its own.
    """

    attempts: int = 4
    first_delay_s: float = 0.25
    max_delay_s: float = 8.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = secrets.SystemRandom().random

    async def wait(self, failures: int, error: SourceUnavailable) -> None:
        """Returns when it is time to try again after this many failures in a row.

        Raises:
            SourceUnavailable: `error` itself, when there were `attempts` of them.
        """
        if failures >= self.attempts:
            raise error
        bound_s = min(self.first_delay_s * 2 ** (failures - 1), self.max_delay_s)
        asked_s = retry_after_s(error.context.get("retry_after"), datetime.now(UTC))
        await self.sleep(max(bound_s * self.jitter(), min(asked_s, MAX_RETRY_AFTER_S)))


def retry_after_s(value: object, now: datetime) -> float:
    """How long a `Retry-After` header (RFC 9110, 10.2.3) asks to wait, in seconds; 0 if neither number nor date."""
    text = str(value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - now).total_seconds())
