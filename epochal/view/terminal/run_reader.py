"""Reads a run for its view: rounds as they end, and the rest as often as it is shown. Reading continues over restarts.

The rule kept here: whatever the run and its members do, requests are bounded in number and in time, and an answer that
fails is said and asked for again, within the policy.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from epochal.coordinator_client.round_feed import OtherLineage, RoundFeed
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import CoordinatorUnreachable, Refused
from epochal.state.refusals import Refusal, Retry
from epochal.state.wire import ClientId
from epochal.view.terminal.view_state import RunPicture

STATUS_S = 1.0
"""Time between two requests for the status."""
MEMBERS_S = 3.0
RECORDS_S = 5.0
"""Time between two requests for evaluations, checkpoints and actions."""
EXPLANATION_S = 3.0
PRESENT_S = 2.0
"""Time between two requests for the clients of the round under way, and for where the batches are."""
GUIDE_S = 30.0
DETAIL_S = 0.5
"""Shortest time between two requests for the last round."""
FIRST_POINTS = 1024
SHOWN_CLIENTS = 200
"""Number of clients of a round that are asked for, the slowest."""

T = TypeVar("T")

NOT_NOW = frozenset({Refusal.NOT_FOUND})
"""Refusals of what is not stored, which the page shows in its place."""


class RunReader:
    """Keeps a picture of a run. `run` must run beside the view.

    Args:
        client: the coordinator.
        policy: how long to retry when it does not answer.
        picture: to be kept.

    Attributes:
        shown: name of the page that is inspected: its data are read more often.
    """

    def __init__(self, client: ViewerClient, policy: RetryPolicy, picture: RunPicture) -> None:
        self._client = client
        self._policy = policy
        self.picture = picture
        self.shown = "run"
        self._wanted_version: int | None = None
        self._wanted_member: ClientId | None = None
        self._hurried = asyncio.Event()
        self._is_asked = asyncio.Event()
        self._round_ended = asyncio.Event()
        self._silent_since_s: float | None = None
        self._not_now: dict[object, str] = {}  # what it says of requests that it answers later, by request

    async def run(self) -> None:
        """Read until cancelled.

        Raises:
            CoordinatorUnreachable: it did not answer for as long as the policy allows.
            Refused: the coordinator shows the run to others only.
            InvalidDocument: something else answers.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow_rounds())
            group.create_task(self._repeat(self._read_status, STATUS_S))
            group.create_task(self._repeat(self._read_members, MEMBERS_S))
            group.create_task(self._repeat(self._read_member, MEMBERS_S))
            group.create_task(self._repeat(self._read_trust, MEMBERS_S))
            group.create_task(self._repeat(self._read_present, PRESENT_S))
            group.create_task(self._repeat(self._read_records, RECORDS_S))
            group.create_task(self._repeat(self._read_explanation, EXPLANATION_S))
            group.create_task(self._repeat(self._read_guide, GUIDE_S))
            group.create_task(self._repeat(self._read_round, DETAIL_S))
            group.create_task(self._look_back())

    def show(self, name: str) -> None:
        """Read what this page shows."""
        self.shown = name
        self._round_ended.set()
        self.hurry()

    def hurry(self) -> None:
        """Read at once, instead of when it is time: the user asked for something else."""
        hurried, self._hurried = self._hurried, asyncio.Event()
        hurried.set()

    def select(self, number: int | None) -> None:
        """Show the clients of this round; None for the last one."""
        self.picture.selected = number
        self._round_ended.set()

    def look_at_member(self, client_id: ClientId | None) -> None:
        """Read this member's own page from now on; None reads none."""
        self._wanted_member, self.picture.member = client_id, None
        self.hurry()

    def look_at(self, place: int | None) -> None:
        """Show the run as it was at the end of this row; None for the present."""
        picture = self.picture
        if place == picture.place:
            return
        picture.look_at(place)
        self._wanted_version = None if place is None else picture.rows[place].version
        self._is_asked.set()
        self.hurry()

    async def _follow_rounds(self) -> None:
        feed, picture = RoundFeed(self._client, self._policy), self.picture
        page = await self._answered(lambda: self._client.history(points=FIRST_POINTS))
        picture.add(page)
        feed.seek(page.next, page.lineage)
        async with contextlib.aclosing(feed.all()) as news:
            async for one in news:
                if isinstance(one, OtherLineage):
                    picture.forget_rows()
                    self._wanted_version = None
                    picture.note = "The run went back to an earlier state: its history is read again."
                else:
                    picture.add(one.page)
                    self._round_ended.set()

    async def _repeat(self, read: Callable[[], Awaitable[None]], period_s: float) -> None:
        while True:
            hurried = self._hurried
            await read()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await hurried.wait()

    async def _read_status(self) -> None:
        self.picture.status = await self._answered(self._client.status)
        self.picture.document = await self._answered(lambda: self._client.run_document(None, 0.0))

    async def _read_trust(self) -> None:
        if self.shown == "trust" and not (self.picture.is_past and self.picture.trust):
            await self._read_then(self._client.trust, partial(setattr, self.picture, "trust"))

    async def _read_members(self) -> None:
        if self.shown == "members" and not (self.picture.is_past and self.picture.members):
            await self._read_then(self._client.members, partial(setattr, self.picture, "members"))

    async def _read_then(self, ask: Callable[[int | None], Awaitable[T]], keep: Callable[[T], None]) -> None:
        """Keep the answer at the shown version, if it is still shown."""
        version = self._wanted_version
        try:
            answer = await self._answered(partial(ask, version))
        except Refused as refusal:
            if refusal.kind not in NOT_NOW:
                raise
            self.picture.note = refusal.message
            return
        if version == self._wanted_version:
            keep(answer)

    async def _read_present(self) -> None:
        picture = self.picture
        if self.shown not in ("run", "round") or picture.is_past:
            return
        moment = await self._answered(partial(self._client.present, SHOWN_CLIENTS))
        if not picture.is_past:
            picture.moment = moment

    async def _read_member(self) -> None:
        wanted = self._wanted_member
        if wanted is None or self.shown != "members":
            return
        try:
            found = await self._answered(partial(self._client.member, wanted))
        except Refused as refusal:
            if refusal.kind not in NOT_NOW:
                raise
            self.picture.note, self._wanted_member = refusal.message, None
            return
        if self._wanted_member == wanted:
            self.picture.member = found

    async def _read_records(self) -> None:
        if self.shown == "run" or self.picture.evaluations is None:
            self.picture.evaluations = await self._answered(self._client.evaluations)
            self.picture.checkpoints = await self._answered(self._client.checkpoints)
        if self.shown == "operate":
            self.picture.actions = await self._answered(self._client.actions)

    async def _read_explanation(self) -> None:
        if self.shown == "round" and not (self.picture.is_past and self.picture.explanation):
            await self._read_then(self._client.explanation, partial(setattr, self.picture, "explanation"))

    async def _read_guide(self) -> None:
        self.picture.guide = await self._answered(self._client.join_guide)

    async def _read_round(self) -> None:
        await self._round_ended.wait()
        self._round_ended.clear()
        picture = self.picture
        number = picture.next - 1 if picture.selected is None else picture.selected
        if self.shown != "round" or number < 0:
            return
        try:
            picture.detail = await self._answered(partial(self._client.round_detail, number, SHOWN_CLIENTS))
        except Refused as refusal:
            if refusal.kind not in NOT_NOW:
                raise
            picture.detail, picture.note = None, refusal.message

    async def _look_back(self) -> None:
        while True:
            await self._is_asked.wait()
            self._is_asked.clear()
            version = self._wanted_version
            if version is None:
                continue
            try:
                moment = await self._answered(partial(self._client.moment, version, SHOWN_CLIENTS))
            except Refused as refusal:
                if refusal.kind not in NOT_NOW:
                    raise
                self.picture.moment, self.picture.note = None, refusal.message
                continue
            if self._wanted_version == version:
                self.picture.moment = moment

    async def _answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer; repeat the request while the coordinator does not answer or asks to retry later."""
        backoff, request = self._policy.begin(), object()
        try:
            while True:
                try:
                    answer = await ask()
                except CoordinatorUnreachable as error:
                    self._is_silent()
                    await backoff.wait(error)
                except Refused as refusal:
                    if refusal.kind.retry is not Retry.LATER:
                        raise
                    self._answers()
                    self._not_now[request] = refusal.message
                    self._say_problem()
                    await backoff.wait(refusal, float(refusal.context.get("retry_after_s", 0.0)))
                else:
                    self._answers()
                    return answer
        finally:
            if self._not_now.pop(request, None) is not None:
                self._say_problem()

    def _is_silent(self) -> None:
        if self._silent_since_s is None:
            self._silent_since_s = time.monotonic()
        self._say_problem()

    def _answers(self) -> None:
        if self._silent_since_s is not None:
            silent_s = time.monotonic() - self._silent_since_s
            self._silent_since_s = None
            self.picture.note = f"The coordinator answers again, after {silent_s:.0f} s."
            self._say_problem()

    def _say_problem(self) -> None:
        if self._silent_since_s is not None:
            silent_s = time.monotonic() - self._silent_since_s
            self.picture.problem = f"The coordinator does not answer, for {silent_s:.0f} s; trying again."
        else:
            self.picture.problem = next(iter(self._not_now.values()), "")
