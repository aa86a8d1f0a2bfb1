"""When to try again: exponential backoff with jitter and a bound, on a clock that a simulation can replace.

The rule kept here: every retry of a client goes through `Backoff`, so a coordinator or a data server that comes back is
met by clients that spread out, and no retry goes on for ever.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from runtime.clock import Clock

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
DEFAULT_BOUND_S = 3600.0
"""A coordinator that is away for minutes is normal; after an hour without an answer a client gives up."""

Jitter = Callable[[], float]
"""Where a client's randomness comes from: a number in [0, 1)."""


def system_jitter() -> Jitter:
    """The operating system's randomness."""
    return secrets.SystemRandom().random


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long something is tried again: for `bound_s` seconds after its first failure."""

    clock: Clock
    jitter: Jitter
    bound_s: float = DEFAULT_BOUND_S

    def begin(self, max_delay_s: float = MAX_DELAY_S) -> "Backoff":
        """The waits of one undertaking, none longer than `max_delay_s` seconds (nor than `MAX_DELAY_S`)."""
        return Backoff(self, min(max_delay_s, MAX_DELAY_S))


class Backoff:
    """The waits between the tries of one undertaking: 0.1 s, then twice as long each time up to 5 s, each × [½, 1)."""

    def __init__(self, retry_policy: RetryPolicy, max_delay_s: float = MAX_DELAY_S) -> None:
        self._retry_policy = retry_policy
        self._max_delay_s = max_delay_s
        self._failed_since_s: float | None = None
        self._delay_s = FIRST_DELAY_S

    async def wait(self, error: Exception, at_least_s: float = 0.0) -> None:
        """Returns when it is time for the next try.

        Args:
            error: why the last try failed.
            at_least_s: what the other side asked for (`Retry-After`).

        Raises:
            Exception: `error` itself, once `bound_s` has passed since the first failure.
        """
        now_s = self._retry_policy.clock.monotonic_s()
        if self._failed_since_s is None:
            self._failed_since_s = now_s
        elif now_s - self._failed_since_s >= self._retry_policy.bound_s:
            raise error
        delay_s = max(self._delay_s * (0.5 + self._retry_policy.jitter() / 2), min(at_least_s, MAX_DELAY_S))
        self._delay_s = min(2 * self._delay_s, self._max_delay_s)
        await asyncio.sleep(delay_s)
