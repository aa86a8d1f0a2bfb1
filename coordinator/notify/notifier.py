"""Sends the notices that `[notify]` asks for, beside the run and never in its way.

Theory of operation. A check every few seconds compares the run with the conditions; what is due becomes a notice in the
journal (`coordinator/insight/notices.py`), so a restart neither forgets nor repeats it, and of several coordinators the
one that ticks sends. One task for each address sends it what it lacks: with a bound on each attempt, again after a
growing wait while it cannot be reached, and for a day at most. What it answers is not believed, and read in part only.
A process killed after an address has answered and before that is kept sends the notice once more, with the same id.

While the store keeps nothing, which may be the very subject of a notice, notices are held in memory.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import httpx

from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.machine.stimuli import NoticeRaised, NoticeSettled
from epochal.coordinator.notify.addresses import Address
from epochal.coordinator.notify.conditions import DueNews, KnownSoFar, Room, due_news
from epochal.coordinator.notify.notice_sending import Result, tell
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.store.store import Store
from epochal.runtime.broadcast import Broadcast
from epochal.runtime.retry import RetryPolicy
from epochal.state.config.notify_table import NoticeKind
from epochal.state.errors import EpochalError, StoreFailed
from epochal.state.messages.notices import Notice

log = logging.getLogger(__name__)

CHECK_S = 2.0
"""Time between two checks of the run; a condition that lasts a shorter time is not noticed."""
ROOM_CHECK_S = 60.0
"""Time between two checks of the store's room."""
MAX_TOLD_AFTER_S = 86_400.0
"""Maximum age of a notice that is still sent."""
FAREWELL_S = 5.0
"""Maximum time for which the end of the process waits for what is still to be sent."""
RETRIES = RetryPolicy(bound_s=MAX_TOLD_AFTER_S, first_delay_s=1.0, max_delay_s=300.0, max_asked_s=3600.0)


class Notifier:
    """Sends the notices of one coordinator's run.

    Args:
        service: owns the run.
        insight: its read side, which knows the notices that were raised.
        store: keeps it; its room is checked.
        addresses: receive the notices.
        client: sends requests; closed by its owner.
        count: called with kind and result of each attempt.
        check_s: time between two checks of the run.
        retries: how attempts at one address follow each other.
    """

    def __init__(
        self,
        service: CoordinatorService,
        insight: ReadSide,
        store: Store,
        addresses: tuple[Address, ...],
        client: httpx.AsyncClient,
        count: Callable[[NoticeKind, Result], None],
        check_s: float = CHECK_S,
        retries: RetryPolicy = RETRIES,
    ) -> None:
        self._service = service
        self._insight = insight
        self._store = store
        self._addresses = addresses
        self._client = client
        self._count = count
        self._check_s = check_s
        self._retries = retries
        self._looked = Broadcast()
        self._held: dict[NoticeKind, Notice] = {}
        """Notices that could not be kept, the newest of each kind."""
        self._done: dict[tuple[str, NoticeKind], float] = {}
        """When the last notice was raised of which an address needs no more, by address and kind."""
        self._room_problem: str | None = None
        self._room_checked_s = -ROOM_CHECK_S

    async def run(self) -> None:
        """Work until cancelled."""
        if not self._addresses:
            return
        await self._service.started.wait()
        async with asyncio.TaskGroup() as tasks:
            for address in self._addresses:
                tasks.create_task(self._deliver(address))
            while True:
                await self._look()
                await asyncio.sleep(self._check_s)

    async def finish(self) -> None:
        """Check once more, and return when nothing is to be sent, after `FAREWELL_S` at most."""
        if not self._addresses or not self._service.is_serving:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._insight.ready(FAREWELL_S)
                await self._look()
                while any(self._waiting(address) for address in self._addresses):
                    await self._looked.wait()

    async def _look(self) -> None:
        """Raise what is due, and wake those who send it."""
        service = self._service
        if service.replicas.is_ticking:
            room = Room(self._store.blobs.total_bytes, service.health.problem or await self._problem_of_room())
            projection = self._known()
            if projection is not None:
                for news in due_news(service.run, KnownSoFar.of(projection), room, service.now_s()):
                    await self._raise(news)
        self._looked.notify()

    def _known(self) -> Projection | None:
        """Return what is known of earlier notices; None while it is read. If it cannot be read, none are known."""
        return Projection() if self._insight.history.has_problem else self._insight.known

    async def _problem_of_room(self) -> str | None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._room_checked_s + ROOM_CHECK_S:
            self._room_checked_s, self._room_problem = now_s, None
            try:
                await self._store.check_room(self._service.run.state_file.notify.free_bytes)
            except StoreFailed as error:
                self._room_problem = error.message
        return self._room_problem

    async def _raise(self, news: DueNews) -> None:
        now_s, held = self._service.now_s(), self._held.get(news.kind)
        if held is not None and now_s < held.raised_s + self._service.run.state_file.notify.period_s:
            return
        period_s = self._service.run.state_file.notify.period_s
        try:
            await self._service.submit(NoticeRaised(news.kind, news.subject, news.message, period_s))
        except EpochalError:  # the store keeps nothing, or too much waits; this notice must be sent all the same
            self._held[news.kind] = Notice(news.kind, news.subject, news.message, now_s)
        log.info("notice_raised", extra={"kind": news.kind, "reason": news.message})

    def _waiting(self, address: Address) -> list[Notice]:
        """Return the notices that an address wants and lacks, the oldest first."""
        projection = self._known()
        if not self._service.replicas.is_ticking or projection is None:
            return []
        oldest_s = self._service.now_s() - MAX_TOLD_AFTER_S
        newest = {notice.kind: notice for notice in projection.notices.notices()}
        for kind, held in self._held.items():
            if kind not in newest or held.raised_s > newest[kind].raised_s:
                newest[kind] = held
        lacking = (
            notice
            for notice in newest.values()
            if notice.kind in address.on
            and address.name not in notice.settled
            and notice.raised_s > max(oldest_s, self._done.get((address.name, notice.kind), oldest_s))
        )
        return sorted(lacking, key=lambda notice: notice.raised_s)

    async def _deliver(self, address: Address) -> None:
        backoff = self._retries.begin()
        while True:
            looked = self._looked.next
            waiting = self._waiting(address)
            if not waiting:
                await looked.wait()
                continue
            notice = waiting[0]
            answer = await tell(self._client, address, self._service.run.state_file.run_id, notice)
            self._count(notice.kind, answer.result)
            told = {"address": address.place, "kind": notice.kind, "result": answer.result, "reason": answer.reason}
            log.log(logging.INFO if answer.result == "delivered" else logging.WARNING, "notice_sent", extra=told)
            if answer.result != "retried":
                backoff.reset()
                await self._settle(address, notice)
                continue
            try:
                delay_s = backoff.next_delay_s(TimeoutError(answer.reason), answer.retry_after_s)
            except TimeoutError:
                backoff.reset()
                await self._settle(address, notice)
            else:
                await asyncio.sleep(delay_s)

    async def _settle(self, address: Address, notice: Notice) -> None:
        self._done[address.name, notice.kind] = notice.raised_s
        if notice is not self._held.get(notice.kind):
            with contextlib.suppress(EpochalError):  # then a restart sends it again
                await self._service.submit(NoticeSettled(notice.kind, notice.raised_s, address.name))
        self._looked.notify()
