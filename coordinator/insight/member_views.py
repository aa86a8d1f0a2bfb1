"""All members of a run, and one of them, as viewers are sent them.

A page of ten thousand members takes some tenths of a second of a processor. It is made for all viewers together, in a
thread, and not again before a time that is many times as long: however many ask, it costs a small part of a core.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace

from epochal.coordinator.insight.history_views import EncodedPage, encoded_page
from epochal.coordinator.insight.member_book import counts_of
from epochal.coordinator.insight.member_rows import member_rows
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.insight.verification_view import verification_of
from epochal.coordinator.machine.run import Run
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import Refused
from epochal.state.messages.history_rows import RoundDetail
from epochal.state.messages.member_rows import MAX_MEMBERS_GONE, MemberColumns, MemberDetail, MemberRound, MembersPage
from epochal.state.messages.verification_views import VerificationView
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, canonical_json

MIN_PAGE_AGE_S = 1.0
"""Time for which a page is sent again, whatever happens."""
MAX_PAGE_AGE_S = 10.0
"""Time for which it is sent again while the run has not changed: members are heard meanwhile."""
PAGE_AGE_PER_COST = 50.0
"""Each page is sent for at least this many times as long as it took to make: 2 % of a core."""
MAX_PAGE_WAITING = 256
"""Maximum number of requests that wait for a page."""
_LEVEL = 1
"""Ids in hex are most of a page: higher levels take longer, and save little."""
_PLACES = 3


class MemberViews:
    """The members of one coordinator's run.

    Args:
        insight: of the coordinator.
        worker: makes pages.
    """

    def __init__(self, insight: ReadSide, worker: Worker) -> None:
        self._insight = insight
        self._worker = worker
        self._page: EncodedPage | None = None
        self._of: Run | None = None
        self._made_s = self._cost_s = 0.0
        self._made_count = self._waiting_count = 0
        self._turn = asyncio.Lock()

    async def page(self) -> EncodedPage:
        """Return all members.

        Raises:
            Refused: `overloaded` while the history is read, or if too many ask; `store-failed`.
        """
        if self._page is not None and not self._is_due():
            return self._page
        if self._waiting_count >= MAX_PAGE_WAITING:
            raise Refused(Refusal.OVERLOADED, f"{MAX_PAGE_WAITING} requests for the members wait; try again soon")
        self._waiting_count += 1
        try:
            async with self._turn:
                if self._page is None or self._is_due():
                    self._page = await self._made_page()
                return self._page
        finally:
            self._waiting_count -= 1

    def _is_due(self) -> bool:
        age_s = time.monotonic() - self._made_s
        if age_s < max(MIN_PAGE_AGE_S, PAGE_AGE_PER_COST * self._cost_s):
            return False
        return age_s >= MAX_PAGE_AGE_S or self._of is not self._insight.run

    async def _made_page(self) -> EncodedPage:
        insight = self._insight
        history, run, now_s, published = insight.projection, insight.run, insight.now_s(), insight.published
        silent_s = {client_id: insight.silent_s(client_id, now_s) for client_id in run.members.by_id}
        details, gone = history.details, history.book.gone(MAX_MEMBERS_GONE)
        self._made_count += 1
        name = f"{run.identity.lineage}-{int(self._insight.since_s * 1000)}-members-{self._made_count}"

        def work() -> tuple[EncodedPage, float]:
            started_s = time.thread_time()
            rows, left = member_rows(
                run.with_parts(replace(run.clock, now_s=now_s)), details, history.book, silent_s, gone
            )
            page = MembersPage(
                run_id=run.state_file.run_id,
                lineage=run.identity.lineage,
                version=published.version,
                at_s=round(now_s, _PLACES),
                rounds=len(details),
                members=MemberColumns.of(rows),
                gone=MemberColumns.of(left),
            )
            return encoded_page(name, canonical_json(page), _LEVEL), time.thread_time() - started_s

        made, cost_s = await self._worker.run(work)
        self._of, self._made_s, self._cost_s = run, time.monotonic(), cost_s
        return made

    def verification(self) -> VerificationView:
        """Return the verification of the members' results."""
        return verification_of(self._insight.run)

    def detail(self, client_id: str) -> MemberDetail:
        """Return one member, present or former.

        Raises:
            Refused: `not-found` if it was never a member, or left long ago; `overloaded` while the history is read.
        """
        insight = self._insight
        history, now_s = insight.projection, insight.now_s()
        run = insight.run.with_parts(replace(insight.run.clock, now_s=now_s))
        found = ClientId(client_id)
        member, known = run.members.by_id.get(found), history.book.get(found)
        if member is None and known is None:
            raise Refused(Refusal.NOT_FOUND, f"no member {client_id[:64]!r} is known; allowed: 32 hex digits of one")
        details, is_member = history.details, member is not None
        silent_s = {found: insight.silent_s(found, now_s)} if is_member else {}
        gone = () if is_member or known is None else (known,)
        rows, left = member_rows(run, details, history.book, silent_s, gone)
        return MemberDetail(
            run_id=run.state_file.run_id,
            lineage=run.identity.lineage,
            version=insight.published.version,
            at_s=round(now_s, _PLACES),
            figures=(rows or left)[0],
            rounds=tuple(_figures_in(details, client_id)),
            refusals=() if known is None else counts_of(known.refusals),
            last_refusals=() if known is None else known.last_refusals,
            quarantined=tuple(item.batch_id for item in run.work.quarantined if found in item.against),
        )


def _figures_in(details: Iterable[RoundDetail], client_id: str) -> Iterable[MemberRound]:
    for detail in details:
        row = detail.figures
        for figures in detail.clients:
            if figures.client_id == client_id:
                yield MemberRound(row.number, row.epoch, row.step, row.attempt, row.started_s, row.ended_s, figures)
