"""When to attempt something again: exponential backoff with jitter and a bound, in time that a simulation can replace.

The rule kept here: every retry goes through `Backoff`, so a coordinator or a data server that comes back is met by
clients that spread out, no retry goes on for ever, and what the other side asks for (`Retry-After`) is respected.
"""

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime

from runtime.clock import Clock, SystemClock

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
DEFAULT_BOUND_S = 3600.0
"""A coordinator that is away for minutes is normal; after an hour without an answer a client gives up."""
_MAX_DIGITS, _MAX_DOUBLINGS = 9, 60

Jitter = Callable[[], float]
"""Where a client's randomness comes from: a number in [0, 1)."""

system_jitter: Jitter = secrets.SystemRandom().random
"""Random numbers of the operating system."""

_SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long something is attempted again.

    Attributes:
        clock, jitter, sleep: time and chance; a simulation or a test brings its own.
        bound_s: Seconds after the first failure from which on no further attempt is made.
        attempts: Maximum number of attempts that fail in a row, the first one included.
        first_delay_s, max_delay_s: The n-th wait is `first_delay_s · 2ⁿ`, at most `max_delay_s`, times [½, 1).
        max_asked_s: Maximum number of seconds that the other side is granted when it asks for a longer wait.
    """

    clock: Clock = _SYSTEM_CLOCK
    jitter: Jitter = system_jitter
    bound_s: float = DEFAULT_BOUND_S
    attempts: float = math.inf
    first_delay_s: float = FIRST_DELAY_S
    max_delay_s: float = MAX_DELAY_S
    max_asked_s: float = MAX_DELAY_S
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def begin(self, max_delay_s: float = math.inf) -> "Backoff":
        """Return the waits of one undertaking, none of them longer than `max_delay_s` unless the other side asks."""
        return Backoff(replace(self, max_delay_s=min(max_delay_s, self.max_delay_s)))


class Backoff:
    """The waits between the attempts of one undertaking."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.reset()

    def reset(self) -> None:
        """Forget the failures so far: an attempt brought something."""
        self._failures = 0
        self._failed_since_s = 0.0

    async def wait(self, error: Exception, at_least_s: float = 0.0) -> None:
        """Return when it is time for the next attempt.

        Args:
            error: why the last attempt failed.
            at_least_s: how long the other side asks to wait (`retry_after_s`).

        Raises:
            Exception: `error` itself, once `attempts` have failed in a row or `bound_s` has passed since the first
                failure, or will have before the other side wants to be asked again.
        """
        policy, now_s = self._policy, self._policy.clock.monotonic_s()
        if not self._failures:
            self._failed_since_s = now_s
        self._failures += 1
        asked_s = min(at_least_s, policy.max_asked_s)
        is_over = self._failures > 1 and now_s - self._failed_since_s >= policy.bound_s
        if self._failures >= policy.attempts or is_over or now_s + asked_s > self._failed_since_s + policy.bound_s:
            raise error
        doubled = math.ldexp(policy.first_delay_s, min(self._failures - 1, _MAX_DOUBLINGS))
        await policy.sleep(max(min(doubled, policy.max_delay_s) * (0.5 + policy.jitter() / 2), asked_s))


def retry_after_s(header: object, now_s: float) -> float:
    """Return how many seconds a `Retry-After` header asks to wait; 0 unless it is a number or a date.

    Args:
        header: the header's value (RFC 9110, 10.2.3).
        now_s: seconds since 1970, with which a date is compared.
    """
    text = str(header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:_MAX_DIGITS])
    try:
        at = parsedate_to_datetime(text)
        return max(0.0, at.replace(tzinfo=at.tzinfo or UTC).timestamp() - now_s)
    except (ValueError, OverflowError):  # no date, or a year or a zone that no clock shows
        return 0.0
