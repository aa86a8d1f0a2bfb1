"""All members of a run, and one of them, as viewers are sent them.

A page of ten thousand members takes some tenths of a second of a processor. It is made for all viewers together, in a
thread, and not again before a time that is many times as long: however many ask, it costs a small part of a core.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Self

from epochal.coordinator.insight.figures import lowered_factors, parts_of
from epochal.coordinator.insight.history_views import EncodedPage, encoded_page
from epochal.coordinator.insight.member_book import KnownMember, MemberBook, counts_of
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.machine.parts.member import Member, share_units
from epochal.coordinator.machine.run import Run
from epochal.runtime.metrics.refusal_counts import RefusalCounts
from epochal.runtime.worker_thread import Worker
from epochal.state.documents import SHARE_UNITS_PER_BATCH
from epochal.state.errors import Refused
from epochal.state.messages.history_rows import ClientFigures, RoundDetail
from epochal.state.messages.member_rows import (
    MAX_MEMBERS_GONE,
    MemberColumns,
    MemberDetail,
    MemberFigures,
    MemberRound,
    MembersPage,
)
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
        refused: counts the requests that were refused.
    """

    def __init__(self, insight: ReadSide, worker: Worker, refused: RefusalCounts) -> None:
        self._insight = insight
        self._worker = worker
        self._refused = refused
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
        details = history.details
        lately = tuple(_figures_in(details, client_id))
        if member is not None:
            silent_s = insight.silent_s(found, now_s)
            figures = _row(run, member, known, [one.figures for one in lately], silent_s, _Weights.of(run))
        else:
            assert known is not None, "one of both is known"
            figures = _gone_row(known, [one.figures for one in lately], now_s)
        return MemberDetail(
            run_id=run.state_file.run_id,
            lineage=run.identity.lineage,
            version=insight.published.version,
            at_s=round(now_s, _PLACES),
            figures=figures,
            last_miss="" if member is None else member.conduct.last_miss,
            rounds=lately,
            refusals=() if known is None else counts_of(known.refusals),
            last_refusals=() if known is None else tuple(known.last_refusals),
            refused_requests=counts_of(self._refused.of_sender(client_id)),
            refused_since_s=round(self._insight.since_s, _PLACES),
            quarantined=tuple(item.batch_id for item in run.work.quarantined if found in item.against),
        )


def member_rows(
    run: Run,
    details: Iterable[RoundDetail],
    book: MemberBook,
    silent_s: Mapping[ClientId, float],
    gone: Iterable[KnownMember],
) -> tuple[list[MemberFigures], list[MemberFigures]]:
    """Return the rows of the present members, and of some that have left.

    Args:
        run: at the present time.
        details: its last rounds.
        book: what its history says of its members.
        silent_s: seconds since each member was last heard.
        gone: those that have left.
    """
    lately, weights = _lately_of(details), _Weights.of(run)
    rows = [
        _row(run, member, book.get(client_id), lately.get(client_id, ()), silent_s[client_id], weights)
        for client_id, member in run.members.by_id.items()
    ]
    left = [_gone_row(known, lately.get(known.client_id, ()), run.clock.now_s) for known in gone]
    return rows, [row for row in left if row.client_id not in run.members]


def _figures_in(details: Iterable[RoundDetail], client_id: str) -> Iterable[MemberRound]:
    for detail in details:
        row = detail.figures
        for figures in detail.clients:
            if figures.client_id == client_id:
                yield MemberRound(row.number, row.epoch, row.step, row.attempt, row.started_s, row.ended_s, figures)


def _lately_of(details: Iterable[RoundDetail]) -> dict[str, list[ClientFigures]]:
    """Return each client's figures in the last rounds."""
    found: dict[str, list[ClientFigures]] = defaultdict(list)
    for detail in details:
        for figures in detail.clients:
            found[figures.client_id].append(figures)
    return found


@dataclass(frozen=True, slots=True)
class _Weights:
    """The members' parts of the round under way, and the factors below 1 of their last results."""

    parts: Mapping[ClientId, float]
    factors: Mapping[ClientId, float]

    @classmethod
    def of(cls, run: Run) -> Self:
        return cls(parts_of(run), lowered_factors(run))


def _row(
    run: Run,
    member: Member,
    known: KnownMember | None,
    lately: Sequence[ClientFigures],
    silent_s: float,
    weights: _Weights,
) -> MemberFigures:
    """Return the row of a present member.

    Args:
        run: at the present time.
        member: of the run.
        known: what its history says of it.
        lately: its part of the last rounds.
        silent_s: seconds since it was last heard.
        weights: of all members.
    """
    known = known or KnownMember(member.client_id)
    rest_s = member.conduct.rest_s(run.clock.now_s)
    return MemberFigures(
        client_id=member.client_id,
        name=member.name,
        software=member.software,
        trainer=member.trainer,
        ready=run.is_ready(member),
        in_roster=run.round is not None and member.client_id in run.round.tasks.plan.positions,
        share=share_units(member) / SHARE_UNITS_PER_BATCH,
        part=weights.parts.get(member.client_id, 0.0),
        factor=weights.factors.get(member.client_id),
        claim=member.share,
        missed=member.conduct.misses,
        rest_s=None if rest_s is None else round(rest_s, _PLACES),
        silent_s=round(silent_s, _PLACES),
        joined_s=known.joined_s,
        left="",
        **_counted(known, lately),
        last_loss=known.last_loss,
        data_wait=None if known.data_waits is None else known.data_waits.view().share,
    )


def _gone_row(known: KnownMember, lately: Sequence[ClientFigures], now_s: float) -> MemberFigures:
    """Return the row of a former member."""
    return MemberFigures(
        client_id=known.client_id,
        name=known.name,
        software=known.software,
        trainer=known.trainer,
        ready=False,
        in_roster=False,
        share=0.0,
        part=0.0,
        factor=None,
        claim=0,
        missed=0,
        rest_s=None,
        silent_s=round(max(0.0, now_s - (known.left_s or now_s)), _PLACES),
        joined_s=known.joined_s,
        left=known.left or "unknown",
        **_counted(known, lately),
        last_loss=next((one.loss for one in reversed(lately) if one.loss is not None), None),
        data_wait=None,
    )


def _counted(known: KnownMember, lately: Sequence[ClientFigures]) -> dict[str, Any]:
    """Return the fields of a row that its history gives."""
    trained = [one.train_s for one in lately if one.train_s is not None]
    return {
        "applied": known.applied,
        "lost": known.lost,
        "tokens": known.tokens,
        "tokens_per_s": _per_s(sum(one.tokens for one in lately if one.train_s is not None), math.fsum(trained)),
        "data_wait_s": round(known.data_wait_s, _PLACES),
        "train_s": round(median(trained), _PLACES) if trained else None,
        "result_bytes": known.result_bytes,
        "uploaded_bytes": known.uploaded_bytes,
        "downloaded_bytes": known.downloaded_bytes,
    }


def _per_s(tokens: int, train_s: float) -> float | None:
    """Return tokens per second; None of no time, or where a client's claims are absurd."""
    speed = tokens / train_s if train_s > 0 and math.isfinite(train_s) else math.inf
    return round(speed, 1) if math.isfinite(speed) else None
