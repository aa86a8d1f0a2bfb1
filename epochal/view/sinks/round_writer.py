"""Writes a run's rounds to sinks as they end, each sink from where it had got to.

Theory of operation. Every sink has a feed of its own, so a slow one holds nobody up, and one that is behind catches up
alone. A row is written, kept, and only then is the next one asked for. What happens at a kill is thus the sink's own
matter: it knows how far it has got.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from epochal.coordinator_client.round_feed import OtherLineage, RoundFeed
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.messages.history_rows import RoundFigures, without
from epochal.view.sinks.sink import FigureSink, Mark


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Options for following a run.

    Attributes:
        first: number of the first round, for sinks that hold nothing of the run.
        is_once: whether to end with the rounds that have ended, instead of with the run.
        policy: how long to retry when the coordinator does not answer.
        say: is told in lines what happens.
    """

    first: int
    is_once: bool
    policy: RetryPolicy
    say: Callable[[str], None]


async def follow_into(client: ViewerClient, sinks: Sequence[FigureSink], options: FollowOptions) -> None:
    """Write the run's rounds to each of the sinks until it has finished.

    Raises:
        InvalidInput: a sink belongs to another run, or another follower writes to it.
        SinkFailed: one cannot keep a row.
        CoordinatorUnreachable, Refused, InvalidDocument: as `RoundFeed.all`.
    """
    lineage = await RoundFeed(client, options.policy, options.say).run_lineage()
    async with asyncio.TaskGroup() as tasks:
        for sink in sinks:
            tasks.create_task(_Following(client, sink, options).run(lineage))


class _Following:
    """One sink that follows a run."""

    def __init__(self, client: ViewerClient, sink: FigureSink, options: FollowOptions) -> None:
        self._client = client
        self._sink = sink
        self._options = options
        self._feed = RoundFeed(client, options.policy, options.say)
        self._next = 0
        """Number of the round that the sink lacks."""
        self._written = 0

    async def run(self, lineage: str) -> None:
        """Follow the run to its end, or as far as it has come."""
        try:
            await self._follow(lineage)
        finally:
            await asyncio.to_thread(self._sink.close)
        self._say(f"rounds written: {self._written}; the next one is {self._next}")

    async def _follow(self, lineage: str) -> None:
        kept = await asyncio.to_thread(self._sink.open, self._client.run_id, lineage)
        self._go_on(self._options.first if kept is None else kept.next, None if kept is None else kept.lineage)
        if kept is not None:
            self._say(f"continues with round {kept.next}")
        news = self._feed.present() if self._options.is_once else self._feed.all()
        async with aclosing(news):
            async for one in news:
                if isinstance(one, OtherLineage):
                    await self._go_back()
                else:
                    await self._write(one.page.lineage, one.page.rounds.rows())

    def _go_on(self, first: int, lineage: str | None) -> None:
        self._next = first
        self._feed.seek(first, lineage)

    async def _write(self, lineage: str, rows: list[RoundFigures]) -> None:
        await asyncio.to_thread(self._write_fitted, lineage, rows)
        self._written += rows[-1].next_number - max(self._next, rows[0].number)
        self._next = rows[-1].next_number

    def _write_fitted(self, lineage: str, rows: list[RoundFigures]) -> None:
        """Write rows, of the first one what the sink lacks: it may have been merged with rounds that the sink has."""
        if rows[0].number < self._next:
            known = self._sink.known(rows[0].number)
            if known is not None:
                rest = without(rows[0], known)
                rows = [replace(rest, rounds=rows[0].next_number - rest.number), *rows[1:]]
        self._sink.write(lineage, rows)

    async def _go_back(self) -> None:
        """Go back to the last round that the sink has in common with the run's new history."""
        feed = RoundFeed(self._client, self._options.policy, self._options.say)
        marks: list[Mark] = []
        async with aclosing(feed.present()) as news:
            async for one in news:
                if isinstance(one, OtherLineage):
                    marks.clear()
                else:
                    marks += [Mark(row.next_number, row.ended_s) for row in one.page.rounds.rows()]
        assert feed.lineage is not None, "a page was read"
        first = await asyncio.to_thread(self._sink.go_back, feed.lineage, marks)
        self._go_on(self._options.first if first is None else first, feed.lineage)
        self._say(f"the run went back and has another lineage; continues with round {self._next}")

    def _say(self, text: str) -> None:
        self._options.say(f"{self._sink.name}: {text}")
