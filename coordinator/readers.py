"""Readers of a run: what is shown to them, and how they wait for it to change. They never wait for the writer."""

import asyncio

from coordinator.machine.run import Run, config_json
from coordinator.publication import Published, RoundDocuments, results_page
from runtime.broadcast import Broadcast
from runtime.clock import RunClock
from state.messages import ResultsPage
from state.wire import Sha256, canonical_json


class Readers:
    """Shows immutable values, replaced after each commit, and wakes those who wait for others.

    Attributes:
        run: the run as it is kept.
        published: the document that it publishes.
    """

    def __init__(self, run: Run, published: Published, clock: RunClock) -> None:
        self.run = run
        self.published = published
        self._clock = clock
        self._news = Broadcast()
        self._results_news = Broadcast()
        self._documents = RoundDocuments()
        self._is_released = False
        self._documents.remember(run)

    def show(self, run: Run, published: Published) -> None:
        """Show a run that is kept, and its document."""
        before, self.run = self.run, run
        if run.round is not before.round or run.phase is not before.phase:
            self._documents.remember(run)
            self._results_news.notify()
        if published is not self.published:
            self.published = published
            self._news.notify()

    def release(self) -> None:
        """Answer everyone who waits, because the service stops."""
        self._is_released = True
        self._news.close()
        self._results_news.close()

    async def wait_published(self, after: int, lineage: str | None, timeout_s: float) -> Published | None:
        """Return what is published once its version is above `after` or its lineage another; None when time is over."""
        if self.published.is_news(after, lineage):
            return self.published
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return None
        return self.published if self.published.is_news(after, lineage) else None

    async def wait_results(self, step: int, attempt: int, after: int, timeout_s: float) -> ResultsPage:
        """Return the round's verified results from number `after` on: when there is one, all are in, or time is over.

        Raises:
            Refused: `stale-round`.
        """
        deadline_s = self._clock.now_s() + timeout_s
        while True:
            page = results_page(self.run, step, attempt, after)
            remaining_s = deadline_s - self._clock.now_s()
            if page.results or page.complete or remaining_s <= 0 or self._is_released:
                return page
            try:
                async with asyncio.timeout(remaining_s):
                    await self._results_news.wait()
            except TimeoutError:
                return results_page(self.run, step, attempt, after)

    def immutable(self, sha256: Sha256) -> bytes | None:
        """Return the canonical JSON of the configuration, or a recent roster or work list, of this digest."""
        if sha256 == self.run.config_sha256:
            return canonical_json(config_json(self.run.state_file))
        return self._documents.get(sha256)
