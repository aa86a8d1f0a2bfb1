"""Uploads that clients were granted: each takes room until it was taken in, or refused, or comes too late."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from epochal.state.wire import ClientId

TAKEN_WITHIN_S = 900.0
"""Time from a signed PUT to the end of its upload; it takes no room beyond that."""
MAX_PUTS_PER_CLIENT = 4
"""Maximum number of announced uploads of one client that take room before they are taken in."""


@dataclass(frozen=True, slots=True)
class _Put:
    """An upload that a client was granted: whose, its size, and until when it may end."""

    sender: ClientId
    size_bytes: int
    until_s: float


class GrantedPuts:
    """The uploads that were granted and have not ended, by key.

    Args:
        now_s: seconds on a clock that does not go back.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._puts: dict[str, _Put] = {}
        """The oldest first."""
        self._total_bytes = 0

    @property
    def total_bytes(self) -> int:
        """Size of all of them."""
        self._end_late()
        return self._total_bytes

    @property
    def keys(self) -> frozenset[str]:
        """Return the keys of all of them."""
        self._end_late()
        return frozenset(self._puts)

    def make_way(self, key: str, sender: ClientId) -> None:
        """End an earlier grant of this upload, and the sender's oldest ones, so that it has room for this one."""
        self.end(key)
        others = [other for other, put in self._puts.items() if put.sender == sender]
        for other in others[: max(0, len(others) + 1 - MAX_PUTS_PER_CLIENT)]:
            self.end(other)

    def grant(self, key: str, sender: ClientId, size_bytes: int) -> None:
        """Note that a client was granted an upload of so many bytes."""
        self.make_way(key, sender)
        self._puts[key] = _Put(sender, size_bytes, self._now_s() + TAKEN_WITHIN_S)
        self._total_bytes += size_bytes

    def end(self, key: str) -> None:
        """Note that an upload is over, if there is one of this key."""
        put = self._puts.pop(key, None)
        self._total_bytes -= 0 if put is None else put.size_bytes

    def _end_late(self) -> None:
        now_s = self._now_s()
        while self._puts and next(iter(self._puts.values())).until_s < now_s:
            self.end(next(iter(self._puts)))
