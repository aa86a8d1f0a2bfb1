"""Work by lease: asks a coordinator for it, one piece after the other, and renews the lease meanwhile.

The rule kept here: what cannot be carried out is given back, and so is what is under way at the end.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import CoordinatorUnreachable, EpochalError, Refused
from epochal.state.refusals import Refusal

log = logging.getLogger(__name__)

POLL_S = 20.0
"""Time for which a request for work waits at the coordinator."""
RENEWALS_PER_LEASE = 3
REST_S = 2.0
"""Time before the next work after some that could not be carried out."""

T = TypeVar("T")


class NotCarriedOut(EpochalError):
    """Leased work cannot be carried out here, such as for want of bytes or of room; it goes back to the coordinator."""


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that is held.

    Attributes:
        expires_in_s: seconds after which it ends unless it is renewed.
        renew, give_back: requests to the coordinator.
        is_over: set when the work is not to be continued; threads that do it check this.
    """

    expires_in_s: float
    renew: Callable[[], Awaitable[None]]
    give_back: Callable[[], Awaitable[None]]
    is_over: threading.Event = field(default_factory=threading.Event)


async def work_by_lease(
    policy: RetryPolicy,
    lease: Callable[[float], Awaitable[T | None]],
    carry_out: Callable[[T], Awaitable[None]],
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """Carry out leased work until cancelled, or until there is no more where none will come.

    Args:
        policy: how long requests to the coordinator are repeated.
        lease: returns work that comes within so many seconds; None if none does.
        carry_out: does it.
        is_over: returns whether no other work will come.

    Raises:
        Refused: the coordinator refuses for good.
        CoordinatorUnreachable: there was no answer within the policy.
    """
    backoff = policy.begin()
    while True:
        try:
            ends = is_over()
            leased = await lease(0.0 if ends else POLL_S)
            backoff.reset()
            if leased is not None:
                await carry_out(leased)
            elif ends:
                return
        except CoordinatorUnreachable as error:
            await backoff.wait(error)
        except Refused as refusal:
            if refusal.kind is Refusal.GONE:
                log.info("lease_lost", extra={"reason": refusal.message})
            elif refusal.kind.may_retry:
                await backoff.wait(refusal, float(refusal.context.get("retry_after_s", 0.0)))
            else:
                raise


async def while_leased(lease: HeldLease, work: Coroutine[Any, Any, T]) -> T | None:
    """Return what the work returns, for which the lease is renewed; None if it had to be given back.

    Raises what the work raises, but for `NotCarriedOut`.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(_renew(lease))
            found = await work
            renewing.cancel()
        return found
    except BaseException as error:
        lease.is_over.set()
        with contextlib.suppress(CoordinatorUnreachable, Refused):
            await lease.give_back()
        cause = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
        if not isinstance(cause, NotCarriedOut):
            raise cause from None
        log.warning("lease_given_back", extra={"reason": str(cause)})
        await asyncio.sleep(REST_S)
        return None


async def _renew(lease: HeldLease) -> None:
    """Renew the lease until cancelled, or until it is over."""
    while True:
        await asyncio.sleep(lease.expires_in_s / RENEWALS_PER_LEASE)
        try:
            await lease.renew()
        except CoordinatorUnreachable as error:
            log.info("lease_not_renewed", extra={"reason": error.message})
        except Refused as refusal:
            if not refusal.kind.may_retry:
                lease.is_over.set()
                return
