"""Work that a coordinator gives to others by lease: checks of results, and slices of updates.

Theory of operation. Who takes work has a lease, and renews it while it works. A lease that is not renewed ends: the
next one who asks takes the work, or after `MAX_LEASES` the coordinator, so that a worker may die with work in its
hands. The coordinator takes it as well if nobody does within a time.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from epochal.runtime.broadcast import Broadcast
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal

log = logging.getLogger(__name__)

LEASE_S = 30.0
"""Time for which a worker has its work, unless it renews the lease."""
MAX_LEASES = 2
"""Number of leases of the same work that may end without it, before the coordinator carries it out."""
PRESENT_FOR_S = 60.0
"""Time after its last request in which a worker counts as present; it asks for work at least every 20 s."""
GRACE_S = 60.0
MIN_BYTES_PER_S = 1024 * 1024
"""A lease is not renewed beyond `GRACE_S` and what the bytes need at this rate."""
LEASE_BYTES = 16


@dataclass(slots=True)
class Lease:
    """A worker's hold on work, from `since_s` until `until_s` on the run's clock; only the worker knows its name."""

    name: str
    worker: str
    since_s: float
    until_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """Work that one worker at a time has.

    Attributes:
        free_since_s: since when nobody has it.
        ended_leases: number of leases that ended without it.
        is_done: whether nobody is to do it any more.
        changed: notified when it is leased, renewed or done.
    """

    free_since_s: float
    lease: Lease | None = None
    ended_leases: int = 0
    is_done: bool = False
    changed: Broadcast = field(default_factory=Broadcast)

    @property
    def is_free(self) -> bool:
        """Whether a worker may take it."""
        return self.lease is None and not self.is_done and self.ended_leases < MAX_LEASES

    @property
    def described(self) -> Mapping[str, Any]:
        """Fields of a log line about it."""
        return {}

    def end(self) -> None:
        """Note that nobody is to do it any more."""
        self.is_done = True
        self.changed.notify()


W = TypeVar("W", bound=Work)


class Leases(Generic[W]):
    """The leases of one kind of work.

    Args:
        kind: names it in logs.
        now_s: seconds on the run's clock.
        pending: returns what is to be done, in the order in which it is given out.
    """

    def __init__(self, kind: str, now_s: Callable[[], float], pending: Callable[[], Iterable[W]]) -> None:
        self._kind = kind
        self._now_s = now_s
        self._pending = pending
        self._news = Broadcast()

    def offer(self) -> None:
        """Wake those who wait for work: there is other."""
        self._news.notify()

    async def is_done(self, work: W, free_for_s: float) -> bool:
        """Return True as soon as work is done; False if the coordinator is to do it.

        Args:
            work: is pending meanwhile.
            free_for_s: seconds within which a worker must take it.
        """
        while not work.is_done:
            changed, now_s = work.changed.next, self._now_s()
            self._end_late(work)
            until_s = work.free_since_s + free_for_s if work.lease is None else work.lease.until_s
            if work.lease is None and (work.ended_leases >= MAX_LEASES or until_s <= now_s):
                reason = f"{MAX_LEASES} leases ended" if work.ended_leases >= MAX_LEASES else "nobody took it in time"
                log.warning("lease_taken_over", extra={"of": self._kind, **work.described, "reason": reason})
                return False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until_s - now_s)):
                    await changed.wait()
        return True

    async def taken(self, worker: str, wait_s: float, heard: Callable[[], None]) -> W | None:
        """Return work, leased to a worker; None if there is none within `wait_s`.

        Args:
            worker: who asks.
            wait_s: seconds.
            heard: called whenever the worker is known to be there; what it raises is raised.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + wait_s
        while True:
            heard()
            news = self._news.next
            for work in self._pending():
                self._end_late(work)
                if work.is_free:
                    now_s = self._now_s()
                    work.lease = Lease(secrets.token_hex(LEASE_BYTES), worker, now_s, now_s + LEASE_S)
                    work.changed.notify()
                    return work
            try:
                async with asyncio.timeout_at(min(end_s, loop.time() + LEASE_S)):
                    await news.wait()
            except TimeoutError:
                if loop.time() >= end_s:
                    heard()
                    return None

    def held(self, name: str) -> tuple[W, Lease]:
        """Return work and its lease. Raise `Refused(Refusal.GONE)` if the lease is over."""
        for work in self._pending():
            lease = work.lease
            if lease is not None and lease.name == name and lease.until_s > self._now_s() and not work.is_done:
                return work, lease
        raise Refused(Refusal.GONE, "this lease is over: the work was done elsewhere, or nobody needs it")

    def renew(self, work: W, lease: Lease, since_s: float, size_bytes: float) -> None:
        """Renew a lease. Raise `Refused(Refusal.GONE)` if that has lasted for too long.

        Args:
            work, lease: as `held` returns them.
            since_s: since when there are so many bytes to read.
            size_bytes: their number.
        """
        now_s = self._now_s()
        if now_s > since_s + GRACE_S + size_bytes / MIN_BYTES_PER_S:
            raise Refused(Refusal.GONE, f"this lease has lasted for {now_s - since_s:.0f} s; the work goes elsewhere")
        lease.until_s = now_s + LEASE_S
        work.changed.notify()

    def give_back(self, work: W, lease: Lease) -> None:
        """End a lease without the work."""
        lease.until_s = self._now_s()
        self._end_late(work)

    def undo(self, work: W) -> None:
        """Take a lease back of which the worker never hears."""
        work.lease = None
        work.changed.notify()
        self.offer()

    def _end_late(self, work: W) -> None:
        """End a lease whose time is over."""
        lease, now_s = work.lease, self._now_s()
        if lease is None or lease.until_s > now_s or work.is_done:
            return
        log.warning("lease_ended", extra={"of": self._kind, "worker": lease.worker, **work.described})
        work.lease, work.free_since_s = None, now_s
        work.ended_leases += 1
        work.changed.notify()
        self.offer()
