"""Checks of results in an object store: carried out by checkers, by lease, or by the coordinator itself.

Theory of operation. A check waits for a checker that asks for work (`epochal checker`). Who takes it has a lease, and
renews it while it reads. A lease that is not renewed ends: the next checker, or after `MAX_LEASES` the coordinator,
takes the check, so that a checker may die with work in its hands. The coordinator takes a check itself as well if no
checker asked for work lately, or none takes it within `[blobs] checker_wait_s`. A verdict is counted once.
"""

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from epochal.runtime.broadcast import Broadcast
from epochal.state.errors import Refused
from epochal.state.messages.blob_messages import NO_ROOM, CheckVerdict, ExpectedResult, LeasedCheck, RenewedLease
from epochal.state.refusals import Refusal

log = logging.getLogger(__name__)

LEASE_S = 30.0
"""Time for which a checker has a check, unless it renews the lease."""
MAX_LEASES = 2
"""Number of leases of one check that may end without a verdict, before the coordinator carries it out."""
PRESENT_FOR_S = 60.0
"""Time after its last request in which a checker counts as present; it asks for work at least every 20 s."""
CHECK_GRACE_S = 60.0
MIN_CHECK_BYTES_PER_S = 1024 * 1024
"""A lease is not renewed beyond `CHECK_GRACE_S` and what the bytes need at this rate."""
LEASE_BYTES = 16

SignedUrl = Callable[[ExpectedResult], Awaitable[tuple[str, float]]]
"""Returns a URL where the bytes can be read, and for how many seconds."""


@dataclass(slots=True)
class _Lease:
    """A checker's hold on a check, from `since_s` until `until_s` on the run's clock."""

    name: str
    checker: str
    since_s: float
    until_s: float


@dataclass(slots=True)
class _Pending:
    """A check without a verdict.

    Attributes:
        waits_since_s: since when nobody has it.
        ended_leases: number of leases that ended without a verdict.
        answer: the verdict.
        changed: notified when it is leased, renewed or answered.
    """

    check: ExpectedResult
    waits_since_s: float
    lease: _Lease | None = None
    ended_leases: int = 0
    answer: CheckVerdict | None = None
    changed: Broadcast = field(default_factory=Broadcast)


class LeasedChecks:
    """The checks of one coordinator.

    Args:
        now_s: seconds on the run's clock.
        signed_url: where a checker reads what it checks.

    Attributes:
        asked: set once a checker has asked for work.
    """

    def __init__(self, now_s: Callable[[], float], signed_url: SignedUrl) -> None:
        self._now_s = now_s
        self._signed_url = signed_url
        self._pending: list[_Pending] = []
        self._news = Broadcast()
        self._heard_s = -math.inf
        self.asked = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        """Number of checks that wait for a checker."""
        return sum(_is_free(pending) for pending in self._pending)

    async def verdict_of_checker(self, check: ExpectedResult, wait_s: float) -> CheckVerdict | None:
        """Return a checker's verdict; None if the coordinator is to check itself.

        Args:
            check: what is to be checked.
            wait_s: seconds within which a checker must take it.
        """
        if wait_s <= 0 or self._now_s() > self._heard_s + PRESENT_FOR_S:
            return None
        pending = _Pending(check, self._now_s())
        self._pending.append(pending)
        self._news.notify()
        try:
            while pending.answer is None:
                lease, changed = pending.lease, pending.changed.next
                until_s = pending.waits_since_s + wait_s if lease is None else lease.until_s
                try:
                    async with asyncio.timeout(max(0.0, until_s - self._now_s())):
                        await changed.wait()
                except TimeoutError:
                    if not self._goes_on(pending, wait_s):
                        return None
            return pending.answer
        finally:
            self._pending.remove(pending)

    def _goes_on(self, pending: _Pending, wait_s: float) -> bool:
        """Return whether a check waits for a checker, after the end of a lease or of the time to take it."""
        now_s, lease = self._now_s(), pending.lease
        if lease is not None:
            if lease.until_s > now_s:
                return True
            fields = {"checker": lease.checker, "sha256": pending.check.sha256, "client_id": pending.check.client_id}
            log.warning("check_lease_ended", extra=fields)
            pending.lease, pending.waits_since_s = None, now_s
            pending.ended_leases += 1
            self._news.notify()
        is_late = now_s >= pending.waits_since_s + wait_s
        if pending.ended_leases < MAX_LEASES and not is_late:
            return True
        reason = "no checker took it in time" if is_late else f"{MAX_LEASES} leases ended without a verdict"
        log.warning("check_taken_over", extra={"sha256": pending.check.sha256, "reason": reason})
        return False

    # Requests of checkers

    async def lease(self, checker: str, wait_s: float) -> LeasedCheck | None:
        """Return the check that has waited longest, leased; None if there is none within `wait_s`."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            self._heard_s = self._now_s()
            self.asked.set()
            news = self._news.next
            waiting = next((pending for pending in self._pending if _is_free(pending)), None)
            if waiting is not None:
                return await self._leased(waiting, checker)
            try:
                async with asyncio.timeout_at(until_s):
                    await news.wait()
            except TimeoutError:
                self._heard_s = self._now_s()
                return None

    async def _leased(self, pending: _Pending, checker: str) -> LeasedCheck:
        now_s = self._now_s()
        lease = _Lease(secrets.token_hex(LEASE_BYTES), checker, now_s, now_s + LEASE_S)
        pending.lease = lease
        pending.changed.notify()
        try:
            url, expires_in_s = await self._signed_url(pending.check)
        except BaseException:  # the checker never learns of it
            if pending.lease is lease:
                pending.lease = None
                pending.changed.notify()
                self._news.notify()
            raise
        return LeasedCheck(lease.name, LEASE_S, pending.check, url, expires_in_s)

    async def renew(self, checker: str, name: str) -> RenewedLease:
        """Renew a lease. Raise `Refused(Refusal.GONE)` if it is over, or has lasted for too long."""
        pending, lease = self._held(checker, name)
        now_s = self._now_s()
        most_s = lease.since_s + CHECK_GRACE_S + pending.check.size_bytes / MIN_CHECK_BYTES_PER_S
        if now_s > most_s:
            raise Refused(Refusal.GONE, f"this lease began {now_s - lease.since_s:.0f} s ago; the check goes elsewhere")
        lease.until_s = now_s + LEASE_S
        pending.changed.notify()
        url, expires_in_s = await self._signed_url(pending.check)
        return RenewedLease(LEASE_S, url, expires_in_s)

    def report(self, checker: str, name: str, verdict: CheckVerdict) -> None:
        """Take the verdict of a lease.

        Raises:
            Refused: `gone`, if the lease is over; `invalid-body`, if the verdict contradicts itself.
        """
        pending, lease = self._held(checker, name)
        is_whole = (verdict.rule is None) == (verdict.replica_digest is not None) == (verdict.norm is not None)
        if not is_whole or verdict.rule == NO_ROOM:
            raise Refused(Refusal.INVALID_BODY, "a verdict has either a broken rule, or a replica digest and a norm")
        pending.answer = replace(verdict, checker=lease.checker)
        pending.changed.notify()

    def give_back(self, checker: str, name: str) -> None:
        """End a lease without a verdict. Raise `Refused(Refusal.GONE)` if it is over."""
        pending, lease = self._held(checker, name)
        lease.until_s = self._now_s()
        pending.changed.notify()

    def _held(self, checker: str, name: str) -> tuple[_Pending, _Lease]:
        """Return a check and its lease. Raise `Refused(Refusal.GONE)` unless this checker has it now."""
        self._heard_s = now_s = self._now_s()
        for pending in self._pending:
            lease = pending.lease
            is_it = lease is not None and (lease.name, lease.checker) == (name, checker)
            if is_it and lease is not None and lease.until_s > now_s and pending.answer is None:
                return pending, lease
        raise Refused(Refusal.GONE, "this lease is over: the check was carried out elsewhere, or nobody needs it")


def _is_free(pending: _Pending) -> bool:
    return pending.lease is None and pending.answer is None
