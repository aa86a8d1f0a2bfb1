"""Token buckets: how often each sender may do something. Time is always an argument.

A bucket holds up to `burst` tokens and is refilled slowly as time passes. Each act takes one.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

MAX_BUCKETS = 65_536
"""Number of senders that are remembered; the one that was silent for the longest time is forgotten first."""
ROUNDING = 1e-9
"""Part of a token that may be lacking, so that rounding refuses no sender that waits for the returned time."""

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_s: float
    occasion: object


class TokenBuckets(Generic[K]):
    """One token bucket for each sender.

    Args:
        burst: number of tokens in a full bucket.
        period_s: time in which a bucket gains a token.
    """

    def __init__(self, burst: float, period_s: float) -> None:
        self._burst = burst
        self._period_s = period_s
        self._buckets: OrderedDict[K, _Bucket] = OrderedDict()

    def wait_s(self, sender: K, now_s: float, occasion: object = None) -> float:
        """Return the seconds until there is a token; 0 if there is one.

        Args:
            sender: whose bucket it is.
            now_s: seconds on a clock that never goes back.
            occasion: the bucket is filled when this differs from the occasion of the last call.
        """
        bucket = self._buckets.get(sender)
        if bucket is None or bucket.occasion != occasion:
            bucket = self._buckets[sender] = _Bucket(self._burst, now_s, occasion)
        gained = max(0.0, now_s - bucket.filled_s) / self._period_s
        bucket.tokens, bucket.filled_s = min(self._burst, bucket.tokens + gained), now_s
        self._buckets.move_to_end(sender)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        lacking = 1.0 - bucket.tokens
        return lacking * self._period_s if lacking > ROUNDING else 0.0

    def take(self, sender: K, now_s: float, occasion: object = None) -> float:
        """Take a token and return 0, or return the seconds until there is one. Arguments as `wait_s`."""
        wait_s = self.wait_s(sender, now_s, occasion)
        if not wait_s:
            self.spend(sender, 1.0)
        return wait_s

    def spend(self, sender: K, count: float) -> None:
        """Take so many tokens, whether they are there or not; a negative number is given back."""
        bucket = self._buckets.get(sender)
        if bucket is not None:
            bucket.tokens = min(self._burst, bucket.tokens - count)
