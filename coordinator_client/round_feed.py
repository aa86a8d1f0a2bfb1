"""Following the rounds of a run: each once and in order, from any round on, through restarts of the coordinator.

Theory of operation. A reader is at a place: the lineage of the run document, and the number of the next round. Rounds
that have ended before come as pages of the history, later ones as events of one stream. Whenever the two do not join,
because events were missed, the stream ended or the coordinator was restarted, pages are read again from the place on.
If the lineage changes, the run went back: the reader is notified, and may go back too (`seek`).
"""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from epochal.coordinator_client.viewer_client import MAX_PAGE_ROUNDS, ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.documents import RunDocument
from epochal.state.errors import CoordinatorUnreachable, InvalidDocument, Refused
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import HistoryPage
from epochal.state.phase_names import RunState
from epochal.state.refusals import Retry
from epochal.state.wire import parse_document

RECONNECT_S = 2.0
"""Minimum time between the beginnings of two streams, if the coordinator or a proxy ends them."""

ReportLine: TypeAlias = Callable[[str], None]
"""Receives a line when the coordinator does not answer, and when it answers again."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EndedRounds:
    """Rounds that have ended, in the order of their numbers, the first of which is the reader's next one.

    If the reader has been away for long, older rounds may have been merged with ones that it has (`HistoryPage`).
    """

    page: HistoryPage


@dataclass(frozen=True, slots=True)
class OtherLineage:
    """The run went back, and goes on differently: rounds that the reader has may not be the run's any more.

    Attributes:
        lineage: the new one. Unless the reader seeks another place, its rounds come from number 0 on.
    """

    lineage: str


class RoundFeed:
    """The rounds of one run.

    Args:
        client: the coordinator.
        policy: how long to go on when it does not answer.
        report: receives a line about that.

    Attributes:
        next: number of the round that comes next.
        lineage: of the run document; None before the first answer.
        ended: number of the round that ends next, by the last answer.
        document: the last run document that came in the stream.
    """

    def __init__(self, client: ViewerClient, policy: RetryPolicy, report: ReportLine = lambda _: None) -> None:
        self._client = client
        self._policy = policy
        self._backoff = policy.begin()
        self._report = report
        self._silent_since_s: float | None = None
        self._is_stream_broken = False
        self.ended = 0
        self.next = 0
        self.lineage: str | None = None
        self.document: RunDocument | None = None

    def seek(self, first: int, lineage: str | None) -> None:
        """Go on with round `first` of this lineage; None takes any."""
        self.next, self.lineage = first, lineage

    async def run_lineage(self) -> str:
        """Return the lineage of the run document now. Raise as `all`."""
        return (await self._page(0, 0)).lineage

    async def evaluations(self) -> tuple[Evaluation, ...]:
        """Return the run's evaluations by now. Raise as `all`."""
        return await self._asked(self._client.evaluations)

    async def present(self) -> AsyncGenerator[EndedRounds | OtherLineage, None]:
        """Yield the rounds that have ended by now. Raise as `all`."""
        while True:
            page = await self._page(self.next, self.next + MAX_PAGE_ROUNDS - 1)
            if self.lineage not in (None, page.lineage):
                self.seek(0, page.lineage)
                yield OtherLineage(page.lineage)
                continue
            self.lineage, self.ended = page.lineage, page.next
            if page.rounds.number:
                self.next = page.rounds.number[-1] + page.rounds.rounds[-1]
                yield EndedRounds(page)
            if self.next >= page.next:
                return

    async def all(self) -> AsyncGenerator[EndedRounds | OtherLineage, None]:
        """Yield the rounds that have ended, and each that ends from then on, until the run has finished.

        Raises:
            CoordinatorUnreachable: it did not answer for as long as the policy allows.
            Refused: the coordinator shows the run to others only.
            InvalidDocument: something else answers.
        """
        while True:
            async with aclosing(self.present()) as present:
                async for news in present:
                    yield news
            if self.document is not None and self.document.run_state is RunState.FINISHED:
                return
            async with aclosing(self._streamed()) as streamed:
                async for rounds in streamed:
                    yield rounds

    async def _streamed(self) -> AsyncGenerator[EndedRounds, None]:
        """Yield rounds from one stream of events, until pages must be read again."""
        assert self.lineage is not None, "pages were read"
        began_s = time.monotonic()
        try:
            async with aclosing(self._client.events(self._last_seen())) as events:
                async for event in events:
                    self._is_stream_broken = False
                    self._answered()
                    if event.kind == "document":
                        self.document = parse_document(RunDocument, event.data)
                        if self.document.lineage != self.lineage or self.document.run_state is RunState.FINISHED:
                            return
                    elif event.kind == "rounds":
                        page: HistoryPage = parse_document(HistoryPage, event.data)
                        self.ended = page.next
                        if page.lineage == self.lineage and page.next <= self.next:
                            continue  # the reader's place lies ahead
                        if page.lineage != self.lineage or page.rounds.number[:1] != (self.next,):
                            return
                        self.next = page.next
                        yield EndedRounds(page)
                    elif event.kind == "reset":
                        return
        except (CoordinatorUnreachable, Refused) as error:
            self._is_stream_broken = True
            await self._failed(error)
        else:
            await self._policy.sleep(max(0.0, began_s + RECONNECT_S - time.monotonic()))

    def _last_seen(self) -> str:
        """Return the id of the last event that the reader has seen, for any document."""
        return f"{self.lineage}-0-{min(self.next, self.ended)}"

    async def _page(self, first: int, last: int) -> HistoryPage:
        return await self._asked(lambda: self._client.history(first, last))

    async def _asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                found = await ask()
            except (CoordinatorUnreachable, Refused, InvalidDocument) as error:
                await self._failed(error)
            else:
                if not self._is_stream_broken:
                    self._answered()
                return found

    async def _failed(self, error: CoordinatorUnreachable | Refused | InvalidDocument) -> None:
        """Wait after a failure that may pass; raise the error if it does not, or has lasted too long."""
        if isinstance(error, InvalidDocument) or (isinstance(error, Refused) and error.kind.retry is not Retry.LATER):
            raise error
        if self._silent_since_s is None:
            self._silent_since_s = time.monotonic()
            self._report(f"{error.message}; trying again for up to {self._policy.bound_s:.0f} s")
        await self._backoff.wait(error, float(error.context.get("retry_after_s", 0.0)))

    def _answered(self) -> None:
        if self._silent_since_s is not None:
            self._report(f"the coordinator answers again, after {time.monotonic() - self._silent_since_s:.1f} s")
            self._silent_since_s = None
        self._backoff.reset()
