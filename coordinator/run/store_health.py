"""Whether the store keeps what it is given: blocked for a while, such as by a full disk, or failed.

While it is blocked the run holds: messages are refused, documents can be read, and the service attempts again and again
to continue. A failure is the end: the process answers its readers and exits (`coordinator/serve.py`).
"""

import asyncio
import logging

from epochal.state.errors import Refused, StoreBlocked, StoreFailed
from epochal.state.refusals import Refusal

log = logging.getLogger(__name__)

MAX_HOLD_S = 3600.0
"""Maximum time for which a run holds because its store is blocked: the time after which clients give up, too."""


class StoreHealth:
    """The state of one service's store.

    Attributes:
        blocked: set while nothing can be kept at the moment.
        failed: set once the store has failed.
        needed_bytes: size of the largest thing that could not be kept while it is blocked.
        block_count: number of times that something could not be kept.
        is_full: whether something found no room while it is blocked.
        reason: why nothing can be kept, or None.
    """

    def __init__(self) -> None:
        self.blocked = asyncio.Event()
        self.failed = asyncio.Event()
        self.needed_bytes = 0
        self.block_count = 0
        self.is_full = False
        self._since_s = 0.0
        self.reason: str | None = None

    @property
    def problem(self) -> str | None:
        """The reason for which messages are not accepted, and whether it passes by itself; or None."""
        if self.reason is None or self.failed.is_set():
            return self.reason
        return f"{self.reason}; the run holds and goes on by itself when that is over"

    @property
    def failure(self) -> str | None:
        """Why the store has failed, or None."""
        return self.reason if self.failed.is_set() else None

    def note(self, error: StoreFailed, now_s: float) -> None:
        """Record that something could not be kept."""
        if self.failed.is_set():
            return
        if not isinstance(error, StoreBlocked):
            self.reason = str(error)
            self.failed.set()
            log.critical("store_failed", extra={"reason": self.reason})
            return
        self.block_count += 1
        self.needed_bytes = max(self.needed_bytes, error.needed_bytes)
        self.is_full = self.is_full or error.is_full
        self.reason = str(error)
        if not self.blocked.is_set():
            self._since_s = now_s
            self.blocked.set()
            log.error("store_blocked", extra={"reason": self.reason, "holds_for_at_most_s": MAX_HOLD_S})

    def end_hold(self, now_s: float) -> None:
        """Record that the store keeps things again."""
        self.blocked.clear()
        self.reason, self.needed_bytes, self.is_full = None, 0, False
        log.info("store_goes_on", extra={"held_s": round(now_s - self._since_s, 1)})

    def check_hold(self, now_s: float) -> None:
        """Raise `StoreFailed` if the store has been blocked for longer than `MAX_HOLD_S`."""
        if self.blocked.is_set() and now_s - self._since_s > MAX_HOLD_S:
            raise StoreFailed(f"{self.reason}; this has lasted for {MAX_HOLD_S:g} s")

    def refusal(self) -> Refused:
        """Return the refusal of a message that cannot be kept."""
        if self.failed.is_set():
            return Refused(Refusal.STORE_FAILED, f"the coordinator cannot keep anything more, and ends: {self.reason}")
        return Refused(Refusal.STORE_FAILED, f"the coordinator cannot keep anything now: {self.problem}")
