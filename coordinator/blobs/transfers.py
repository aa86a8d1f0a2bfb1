"""Running uploads and downloads of blobs: how many there may be, how slow, and what ends them early.

Theory of operation. Each transfer has a place, of which a member has a few and all members together a bounded number. A
transfer ends when its average rate is below its minimum, or when its owner calls `Transfer.end`. If all places are
taken, transfers that are slower than `MIN_BYTES_PER_S` give way, the slowest first: so a set of members that send or
read next to nothing cannot keep the others out, and steady ones are not harmed.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from epochal.runtime.http.bodies import BODY_GRACE_S, MIN_BODY_BYTES_PER_S
from epochal.state.errors import Refused
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId

MIN_BYTES_PER_S = MIN_BODY_BYTES_PER_S
"""Minimum average rate of a transfer."""
GRACE_S = BODY_GRACE_S
"""Time that every transfer has beyond what its bytes need at its minimum rate."""
GIVE_WAY_S = 2.0
"""Time that it has beyond what its bytes need at `MIN_BYTES_PER_S`, before it gives way if all places are taken."""
MAX_WAIT_S = 5.0
"""Maximum time that a new transfer waits for a place."""
CHECK_PERIOD_S = 0.25
"""Time between two searches for transfers that must give way."""

T = TypeVar("T")


class Transfer:
    """One running upload or download of a member.

    Args:
        client_id: the member.
        now_s: the clock.
        min_bytes_per_s: minimum average rate, at most `MIN_BYTES_PER_S`.

    Attributes:
        moved_bytes: number of bytes that have arrived or were sent; its owner counts them.
    """

    def __init__(self, client_id: ClientId, now_s: Callable[[], float], min_bytes_per_s: float) -> None:
        self.client_id = client_id
        self.moved_bytes = 0
        self._now_s = now_s
        self._min_bytes_per_s = min_bytes_per_s
        self._waited_s = 0.0
        self._waits_since_s: float | None = None
        self._ended: Refused | None = None
        self._timeout: asyncio.Timeout | None = None

    @property
    def waited_s(self) -> float:
        """Seconds that were spent waiting for the member, and not for the coordinator's disk."""
        return self._waited_s + (0.0 if self._waits_since_s is None else self._now_s() - self._waits_since_s)

    @property
    def bytes_per_s(self) -> float:
        """Average rate at which the member sends or reads."""
        return self.moved_bytes / max(self.waited_s, 1e-3)

    @property
    def lag_s(self) -> float:
        """Seconds by which it is behind a transfer of `MIN_BYTES_PER_S`."""
        return self.waited_s - self.moved_bytes / MIN_BYTES_PER_S

    def end(self, refusal: Refused) -> None:
        """End the transfer: its present and every later `move` raises this refusal."""
        self._ended = self._ended or refusal
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def move(self, step: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `step`, which receives or sends a piece.

        Raises:
            Refused: `body-timeout` if the average rate is below the minimum, or the refusal given to `end`.
        """
        if self._ended is not None:
            raise self._ended
        allowed_s = GRACE_S + self.moved_bytes / self._min_bytes_per_s - self._waited_s
        self._waits_since_s = self._now_s()
        try:
            async with asyncio.timeout(max(0.0, allowed_s)) as self._timeout:
                return await step()
        except TimeoutError:
            raise self._ended or self._too_slow() from None
        finally:
            self._waited_s, self._waits_since_s, self._timeout = self.waited_s, None, None

    def _too_slow(self) -> Refused:
        return Refused(
            Refusal.BODY_TIMEOUT,
            f"{self.moved_bytes} bytes in {self.waited_s:.0f} s; needed after {GRACE_S:g} s: at least "
            f"{self._min_bytes_per_s:.0f} bytes/s on average",
        )


class Places:
    """The places of transfers of one kind.

    Args:
        total: number of places of all members together.
        per_client: number of places of one.
        now_s: the clock.
    """

    def __init__(self, total: int, per_client: int, now_s: Callable[[], float]) -> None:
        self._total = total
        self._per_client = per_client
        self._now_s = now_s
        self._running: set[Transfer] = set()
        self._free = asyncio.Semaphore(total)
        self._held: Counter[ClientId] = Counter()
        self._waiting_count = 0
        self._next_check: asyncio.TimerHandle | None = None

    @property
    def running_count(self) -> int:
        """Number of transfers that have a place."""
        return len(self._running)

    def running(self) -> tuple[Transfer, ...]:
        """Return the transfers that have a place."""
        return tuple(self._running)

    @asynccontextmanager
    async def place(self, client_id: ClientId, min_bytes_per_s: float = MIN_BYTES_PER_S) -> AsyncIterator[Transfer]:
        """Hold a place for a member's transfer.

        Raises:
            Refused: `overloaded`: the member has all places that it may have, or no place was free for `MAX_WAIT_S`.
        """
        if self._held[client_id] >= self._per_client:
            message = f"{self._per_client} transfers of this client are under way already"
            raise Refused(Refusal.OVERLOADED, message)
        self._held[client_id] += 1
        try:
            await self._wait_for_place()
            transfer = Transfer(client_id, self._now_s, min_bytes_per_s)
            self._running.add(transfer)
            try:
                yield transfer
            finally:
                self._running.remove(transfer)
                self._free.release()
        finally:
            self._held[client_id] -= 1
            if not self._held[client_id]:
                del self._held[client_id]

    async def _wait_for_place(self) -> None:
        self._waiting_count += 1
        try:
            if self._free.locked() and self._next_check is None:
                self._make_room()
            async with asyncio.timeout(MAX_WAIT_S):
                await self._free.acquire()
        except TimeoutError:
            message = f"{self._total} transfers are under way; try again in a moment"
            raise Refused(Refusal.OVERLOADED, message) from None
        finally:
            self._waiting_count -= 1

    def _make_room(self) -> None:
        """End as many slow transfers as new ones wait for a place, the slowest first; repeat it while any wait."""
        self._next_check = None
        if not self._waiting_count:
            return
        slow = (transfer for transfer in self._running if transfer.lag_s > GIVE_WAY_S)
        for transfer in sorted(slow, key=lambda transfer: transfer.bytes_per_s)[: self._waiting_count]:
            transfer.end(Refused(Refusal.OVERLOADED, "all places are taken, and this transfer was the slowest"))
        self._next_check = asyncio.get_running_loop().call_later(CHECK_PERIOD_S, self._make_room)
