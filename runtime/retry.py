"""Retries: exponential backoff with jitter and a bound, in time that a simulation can replace.

The rule kept here: every retry goes through `Backoff`, so that clients do not all return to a restarted server at once,
every retry ends, and `Retry-After` is respected.
"""

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime

from epochal.runtime.clock import Clock, SystemClock

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
DEFAULT_BOUND_S = 3600.0
"""A coordinator may well be unreachable for minutes; after an hour a client gives up."""
_MAX_DIGITS, _MAX_DOUBLINGS = 9, 60

Jitter = Callable[[], float]
"""Returns a random number in [0, 1)."""

system_jitter: Jitter = secrets.SystemRandom().random
"""Random numbers of the operating system."""

_SYSTEM_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retries: number, delays and total time.

    Attributes:
        clock, jitter, sleep: replaced by simulations and tests.
        bound_s: seconds after the first failure within which attempts are made.
        attempts: maximum number of failed attempts in a row, including the first.
        first_delay_s, max_delay_s: the n-th wait (from 0) is `first_delay_s · 2ⁿ`, at most `max_delay_s`, times [½, 1).
        max_asked_s: maximum number of seconds to wait because the server asks for it.
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
        """Return the waits of one operation, each at most `max_delay_s` unless the server asks for more."""
        return Backoff(self if max_delay_s >= self.max_delay_s else replace(self, max_delay_s=max_delay_s))


class Backoff:
    """The waits between the attempts of one operation."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self.reset()

    def reset(self) -> None:
        """Forget the failures so far, because an attempt succeeded."""
        self._failures = 0
        self._failed_since_s = 0.0

    async def wait(self, error: Exception, at_least_s: float = 0.0) -> None:
        """Return when it is time for the next attempt, and raise as `next_delay_s`."""
        await self._policy.sleep(self.next_delay_s(error, at_least_s))

    def next_delay_s(self, error: Exception, at_least_s: float = 0.0) -> float:
        """Count a failure, and return the seconds to wait before the next attempt.

        Args:
            error: why the last attempt failed.
            at_least_s: how long the server asks to wait (`retry_after_s`).

        Raises:
            Exception: `error` itself, once `attempts` have failed in a row or `bound_s` has passed since the first
                failure, or will have passed after the wait that the server asks for.
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
        return max(min(doubled, policy.max_delay_s) * (0.5 + policy.jitter() / 2), asked_s)


def retry_after_s(header: object, now_s: float) -> float:
    """Return the seconds that a `Retry-After` header asks to wait (RFC 9110, 10.2.3); 0 if it is invalid.

    Args:
        header: its value, a number of seconds or a date, or None.
        now_s: seconds since 1970.
    """
    text = str(header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:_MAX_DIGITS])
    try:
        at = parsedate_to_datetime(text)
        return max(0.0, at.replace(tzinfo=at.tzinfo or UTC).timestamp() - now_s)
    except (ValueError, OverflowError):  # not a date, or with an impossible year or zone
        return 0.0
