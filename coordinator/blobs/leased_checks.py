"""Checks of results in an object store: carried out by checkers, by lease, or by the coordinator itself.

A check waits for a checker that asks for work (`epochal checker`; `leases.py`). The coordinator takes it itself if no
checker asked lately, or none takes it within `[blobs] checker_wait_s`. A verdict is counted once.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from epochal.coordinator.blobs import leases
from epochal.coordinator.blobs.leases import PRESENT_FOR_S, Lease, Leases, Work
from epochal.state.errors import Refused
from epochal.state.messages.blob_messages import NO_ROOM, CheckVerdict, ExpectedResult, LeasedCheck, RenewedLease
from epochal.state.refusals import Refusal

SignedUrl = Callable[[ExpectedResult], Awaitable[tuple[str, float]]]
"""Returns a URL where the bytes can be read, and for how many seconds."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Check(Work):
    """A check, and its verdict."""

    check: ExpectedResult
    answer: CheckVerdict | None = None

    @property
    def described(self) -> Mapping[str, str]:
        return {"sha256": self.check.sha256, "client_id": self.check.client_id}


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
        self._pending: list[_Check] = []
        self._leases = Leases("check", now_s, lambda: self._pending)
        self._heard_s = -math.inf
        self.asked = asyncio.Event()

    @property
    def waiting_count(self) -> int:
        """Number of checks that wait for a checker."""
        return sum(pending.is_free for pending in self._pending)

    async def verdict_of_checker(self, check: ExpectedResult, wait_s: float) -> CheckVerdict | None:
        """Return a checker's verdict; None if the coordinator is to check itself.

        Args:
            check: what is to be checked.
            wait_s: seconds within which a checker must take it.
        """
        if wait_s <= 0 or self._now_s() > self._heard_s + PRESENT_FOR_S:
            return None
        pending = _Check(check=check, free_since_s=self._now_s())
        self._pending.append(pending)
        self._leases.offer()
        try:
            return pending.answer if await self._leases.is_done(pending, wait_s) else None
        finally:
            self._pending.remove(pending)

    # Requests of checkers

    async def lease(self, checker: str, wait_s: float) -> LeasedCheck | None:
        """Return the check that has waited longest, leased; None if there is none within `wait_s`."""
        pending = await self._leases.taken(checker, wait_s, self._hear)
        if pending is None or pending.lease is None:
            return None
        name = pending.lease.name
        try:
            url, expires_in_s = await self._signed_url(pending.check)
        except BaseException:
            self._leases.undo(pending)
            raise
        return LeasedCheck(name, leases.LEASE_S, pending.check, url, expires_in_s)

    async def renew(self, checker: str, name: str) -> RenewedLease:
        """Renew a lease. Raise `Refused(Refusal.GONE)` if it is over, or has lasted for too long."""
        pending, lease = self._held(checker, name)
        self._leases.renew(pending, lease, lease.since_s, pending.check.size_bytes)
        url, expires_in_s = await self._signed_url(pending.check)
        return RenewedLease(leases.LEASE_S, url, expires_in_s)

    def report(self, checker: str, name: str, verdict: CheckVerdict) -> None:
        """Take the verdict of a lease.

        Raises:
            Refused: `gone`, if the lease is over; `invalid-body`, if the verdict contradicts itself.
        """
        pending, lease = self._held(checker, name)
        is_whole = (verdict.rule is None) == (verdict.replica_digest is not None) == (verdict.norm is not None)
        if not is_whole or verdict.rule == NO_ROOM:
            raise Refused(Refusal.INVALID_BODY, "a verdict has either a broken rule, or a replica digest and a norm")
        pending.answer = replace(verdict, checker=lease.worker)
        pending.end()

    def give_back(self, checker: str, name: str) -> None:
        """End a lease without a verdict. Raise `Refused(Refusal.GONE)` if it is over."""
        self._leases.give_back(*self._held(checker, name))

    def _hear(self) -> None:
        self._heard_s = self._now_s()
        self.asked.set()

    def _held(self, checker: str, name: str) -> tuple[_Check, Lease]:
        """Return a check and its lease. Raise `Refused(Refusal.GONE)` unless this checker has it now."""
        self._hear()
        pending, lease = self._leases.held(name)
        if lease.worker != checker:
            raise Refused(Refusal.GONE, "this lease is another checker's")
        return pending, lease
