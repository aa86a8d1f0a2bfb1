"""The coordinators of one run that share its store, as one of them knows the others.

Theory of operation. Each follows the journal: it is notified of each record, and meets the others several times a
second (`coordinator/store/replication.py`), where it notices records that it has missed. The journal's
compare-and-swap alone ensures that there is one history. The rest is needed so that

- what a coordinator answers is not older than the request: `fresh` reads the journal once for all requests that wait,
  unless it is alone. It is after it has met nobody for `LEASE_S`: a database that fails over loses the meetings, and
  the first who comes to the new one finds nobody there;
- one of them ticks, and judges who has fallen silent, as long as it has met the others lately. One that was stopped for
  a while does not: it takes every member as heard when it begins again;
- a coordinator that does not reach the store says so, and goes on when it does.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from epochal.coordinator.run.liveness import Liveness
from epochal.coordinator.store.replication import LEASE_S, MEETING_S, Heartbeats, Replication
from epochal.coordinator.store.store import Store
from epochal.state.errors import StoreBlocked, StoreFailed
from epochal.state.wire import ClientId

log = logging.getLogger(__name__)

RECOUNT_S = 10.0
"""Time between two counts of the blobs, of which others add and delete some."""
FRESH_WITHIN_S = 10.0
"""Maximum time that a request waits until the store has read earlier records. It is longer than a statement may take,
because the messages of thousands of members, which are handled and kept before, are no failure of the store."""
FRESH_PAUSE_S = 0.002
"""Time between two readings of the journal for requests that wait, so that many share one."""


@dataclass(frozen=True, slots=True)
class Following:
    """A service as replication uses it.

    Attributes:
        known: returns the number of the last known record.
        catch_up: reads and shows what others appended, unless a record of this number is known; returns whether there
            was any.
        now_s: returns seconds on the run's clock.
        note_failure: called with failures of the store.
        problem: returns why the store keeps nothing at the moment, or None.
        members: returns the run's members.
        recount_blobs: counts the blobs that others have added and deleted.
    """

    known: Callable[[], int]
    catch_up: Callable[[int | None], Awaitable[bool]]
    now_s: Callable[[], float]
    note_failure: Callable[[StoreFailed], None]
    problem: Callable[[], str | None]
    members: Callable[[], Collection[ClientId]]
    recount_blobs: Callable[[], Awaitable[None]]


class Replicas:
    """The meetings of one service with the others of its run; nothing to do where the store keeps out all others."""

    def __init__(self, store: Store, liveness: Liveness, following: Following) -> None:
        self._store = store
        self._replication: Replication | None = store.replication
        self._liveness = liveness
        self._following = following
        self._met_s = float("-inf")
        """When the last meeting began, on the event loop's clock."""
        self._alone_since_s = float("inf")
        """When the first of the last meetings began at which nobody else was."""
        self._leased_s = float("-inf")
        """When the last meeting began that gave the lease."""
        self._other_count = 0
        self._waiting: asyncio.Future[StoreFailed | None] | None = None
        self._is_wanted = asyncio.Event()

    @property
    def is_ticking(self) -> bool:
        """Whether this coordinator is the one that ticks."""
        return self._replication is None or _now_s() < self._leased_s + LEASE_S

    @property
    def is_alone(self) -> bool:
        """Whether nobody else can have appended lately. A newcomer is known before it accepts messages."""
        return self._replication is None or self._alone_since_s + LEASE_S <= _now_s() < self._met_s + LEASE_S

    @property
    def other_count(self) -> int:
        """Number of other coordinators that are alive, as of the last meeting."""
        return self._other_count

    async def meet(self) -> None:
        """Meet the others once. Raise `StoreFailed` if the store fails."""
        if self._replication is None:
            return
        began_s, now_s = _now_s(), self._following.now_s()
        mine = self._liveness.heartbeats(now_s) if self._other_count else Heartbeats()
        meeting = await self._replication.meet(replace(mine, now_s=now_s))
        was_ticking, is_late = self.is_ticking, began_s > self._met_s + LEASE_S
        for others in meeting.others:
            self._liveness.take(others)
        if meeting.is_ticking and (is_late or not was_ticking):
            self._liveness.begin_again(self._following.now_s())
            log.info("ticking_begun", extra={"others": len(meeting.others)})
        if len(meeting.others) != self._other_count:
            log.info("replicas_changed", extra={"others": len(meeting.others)})
        if meeting.others:
            self._alone_since_s = float("inf")
        elif is_late or self._other_count:
            self._alone_since_s = began_s
        self._met_s, self._other_count = began_s, len(meeting.others)
        self._leased_s = began_s if meeting.is_ticking else float("-inf")
        if meeting.sequence > self._following.known():
            await self._following.catch_up(meeting.sequence)

    @contextlib.asynccontextmanager
    async def taking_part(self) -> AsyncIterator[None]:
        """Follow the journal and meet the others until the context is left, from when all others know of it."""
        if self._replication is None:
            yield
            return
        try:
            await self.meet()
            if self._other_count:  # one that was stopped since its last meeting takes itself for alone until then
                for _ in range(round(LEASE_S / MEETING_S)):
                    await asyncio.sleep(MEETING_S)
                    await self._attempt(self.meet)
                await self._following.catch_up(None)
            async with asyncio.TaskGroup() as tasks:
                working = [
                    tasks.create_task(work)
                    for work in (
                        self._follow(self._replication),
                        self._keep_meeting(),
                        self._refresh(),
                        self._recount(),
                    )
                ]
                yield
                for task in working:
                    task.cancel()
        finally:
            await self._replication.leave()

    async def fresh(self) -> None:
        """Return when everything is known that was kept before the call; at once if nobody else can have kept any.

        Raises:
            StoreFailed: the store cannot be asked.
        """
        if not self.is_alone:
            await self.read()

    async def read(self) -> None:
        """Return when everything is known that was kept before the call; one reading serves all who wait.

        Raises:
            StoreFailed: the store cannot be asked.
        """
        if self._replication is None:
            return
        if self._following.problem() is not None:
            raise StoreBlocked(f"{self._following.problem()}", is_full=False)
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
            self._is_wanted.set()
        try:
            async with asyncio.timeout(FRESH_WITHIN_S):
                failure = await asyncio.shield(self._waiting)
        except TimeoutError:
            raise StoreBlocked(f"{self._store.name} does not answer in time", is_full=False) from None
        if failure is not None:
            raise failure

    async def _refresh(self) -> None:
        """Read the journal for all who wait, again and again."""
        try:
            while True:
                await self._is_wanted.wait()
                self._is_wanted.clear()
                waiting, self._waiting = self._waiting, None
                assert waiting is not None, "it was made before it was wanted"
                failure: StoreFailed | None = StoreBlocked("the coordinator ends", is_full=False)
                try:
                    failure = await self._attempt(partial(self._following.catch_up, None))
                finally:
                    waiting.set_result(failure)
                await asyncio.sleep(FRESH_PAUSE_S)
        finally:
            if self._waiting is not None:
                self._waiting.set_result(StoreBlocked("the coordinator ends", is_full=False))

    async def _follow(self, replication: Replication) -> None:
        async with aclosing(replication.news()) as news:
            async for sequence in news:
                if sequence is None or sequence > self._following.known():
                    await self._attempt(partial(self._following.catch_up, sequence))

    async def _keep_meeting(self) -> None:
        while True:
            await asyncio.sleep(MEETING_S)
            failure = await self._attempt(self.meet)
            if failure is not None and _now_s() > self._met_s + LEASE_S:
                self._following.note_failure(failure)

    async def _recount(self) -> None:
        while True:
            await asyncio.sleep(RECOUNT_S)
            self._liveness.forget_others(self._following.members())  # who ticks does so more often
            await self._attempt(self._following.recount_blobs)

    async def _attempt(self, work: Callable[[], Awaitable[object]]) -> StoreFailed | None:
        """Do some work; return the failure of the store that prevents it, which is noted unless it may pass."""
        try:
            await work()
        except StoreBlocked as blocked:
            return blocked
        except StoreFailed as failure:
            self._following.note_failure(failure)
            return failure
        return None


def _now_s() -> float:
    return asyncio.get_running_loop().time()
