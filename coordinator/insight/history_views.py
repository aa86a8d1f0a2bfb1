"""The run's history as viewers are sent it: pages that are encoded once for all who ask.

Encoding takes milliseconds to a second, so it is done in a thread, for a bounded number of requests at a time.
"""

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from epochal.coordinator.insight.present import moment_of, with_slowest
from epochal.coordinator.insight.projection import Projection
from epochal.coordinator.insight.read_side import ReadSide
from epochal.coordinator.run.long_polls import Reader
from epochal.runtime.connections.token_buckets import TokenBuckets
from epochal.runtime.worker_thread import Worker
from epochal.state.errors import Refused
from epochal.state.messages.history_rows import (
    HistoryPage,
    Moment,
    RoundColumns,
    RoundDetail,
    RoundFigures,
    slowest_first,
    thinned,
)
from epochal.state.refusals import Refusal
from epochal.state.wire import ClientId, canonical_json, sha256_hex

DEFAULT_POINTS = 1024
MAX_POINTS = 4096
"""Maximum number of rows in a page."""
USUAL_POINTS = (512, DEFAULT_POINTS, MAX_POINTS)
"""Maximum numbers of rows for which the run's page, the terminal's and notebooks ask."""
FREE_ROWS = 1024
"""Number of rows of which a page takes so little time, some milliseconds, that a stranger's is not counted."""
STRANGERS_PARTS_AT_ONCE = 32
STRANGERS_PART_PERIOD_S = 2.0
"""After them, one part of a long history is merged for strangers in each period: some percent of a processor."""
MAX_ENCODED_PAGES = 32
"""Maximum number of pages that are kept as they were encoded."""
MAX_ENCODED_PAGE_BYTES = 16 * 1024 * 1024
"""Maximum size of all of them together, unless a single one is larger."""
MAX_ENCODING = 64
"""Maximum number of requests for which a page is being encoded, or waits for that."""
MIN_COMPRESSED_BYTES = 1024
_LEVEL = 5


REST_PER_WORK = 10.0
"""Multiple of the time that it took to show the present, for which the same is shown again."""
SAME_PRESENT_S = 0.5
"""Minimum time for which the present is sent again, whatever happens."""
MAX_PRESENT = 8
"""Maximum number of forms in which the present is kept."""


Kind = TypeVar("Kind", Moment, RoundDetail)


@dataclass(frozen=True, slots=True)
class EncodedPage:
    """A page as it is sent: as JSON, and the same compressed with gzip, or None if it is short."""

    etag: str
    plain: bytes
    compressed: bytes | None


@dataclass(frozen=True, slots=True)
class _Present:
    """The present as it was sent, and until when it is sent again."""

    lineage: str
    until_s: float
    page: EncodedPage


class HistoryViews:
    """The history of one coordinator's run, for viewers.

    Args:
        insight: of the coordinator.
        worker: encodes pages.
    """

    def __init__(self, insight: ReadSide, worker: Worker) -> None:
        self._insight = insight
        self._worker = worker
        self._pages: OrderedDict[str, EncodedPage] = OrderedDict()
        self._kept_bytes = 0
        self._asking_count = 0
        self._turn = asyncio.Lock()
        self._strangers = TokenBuckets[None](STRANGERS_PARTS_AT_ONCE, STRANGERS_PART_PERIOD_S)
        self._last_present: dict[int | None, _Present] = {}
        """The present as it was sent last, by the number of clients that were asked for."""

    def page_of(self, rows: list[RoundFigures]) -> HistoryPage:
        """Return a page with these rows."""
        run, projection = self._insight.run, self._insight.projection
        return HistoryPage(
            run_id=run.state_file.run_id,
            lineage=run.identity.lineage,
            next=projection.next,
            detailed_from=projection.detailed_from,
            rounds=RoundColumns.of(rows),
        )

    async def page(self, viewer: Reader, first: int, last: int | None, points: int) -> EncodedPage:
        """Return the rows of some rounds, merged into at most `points`.

        Each part of a long history is merged by itself. The whole, which opens every page, is merged once for all.

        Args:
            viewer: who asks.
            first, last: numbers of the first and the last round; None for the last of all.
            points: maximum number of rows.

        Raises:
            Refused: `invalid-parameter`; `overloaded` while the history is read, or if too many ask; `store-failed`;
                `rate-limited` for a stranger, if strangers asked for many parts of a long history.
        """
        if not 1 <= points <= MAX_POINTS:
            raise Refused(Refusal.INVALID_PARAMETER, f"points={points}; allowed: 1 to {MAX_POINTS}")
        if last is not None and last < first:
            raise Refused(Refusal.INVALID_PARAMETER, f"to={last} lies before from={first}")
        history = self._history()
        until = history.next - 1 if last is None else min(last, history.next - 1)
        empty = self.page_of([])
        name = f"{empty.lineage}-{empty.next}-{first}-{until}-{points}"

        rows, is_whole = history.between(first, until), first == 0 and last is None

        async def encode() -> bytes:
            def work() -> bytes:
                return canonical_json(replace(empty, rounds=RoundColumns.of(thinned(rows, points))))

            return await self._worker.run(work)

        is_free = len(rows) <= FREE_ROWS or (is_whole and points in USUAL_POINTS) or name in self._pages
        if viewer.is_stranger and not is_free:
            wait_s = self._strangers.take(None, _loop_s())
            if wait_s:
                message = "strangers ask for too many parts of a long history; ask again later"
                raise Refused(Refusal.RATE_LIMITED, message, retry_after_s=wait_s)
        return await self.encoded(name, encode)

    async def round(self, number: int, slowest: int | None = None) -> EncodedPage:
        """Return a round with its clients.

        Args:
            number: of the round.
            slowest: maximum number of clients; None for all.

        Raises:
            Refused: `not-found` if they are not held; and as `page`.
        """
        history = self._history()
        detail = history.detail(number)
        if detail is None:
            held = (
                f"{history.detailed_from} to {history.next - 1}" if history.detailed_from < history.next else "none yet"
            )
            raise Refused(Refusal.NOT_FOUND, f"the clients' figures of round {number} are not held; held: {held}")
        lineage = self._insight.run.identity.lineage
        name = f"{lineage}-round-{number}-{detail.figures.version}-{history.told_count(number)}-{_named(slowest)}"

        async def encode() -> bytes:
            return await self._worker.run(lambda: canonical_json(_few(detail, slowest)))

        return await self.encoded(name, encode)

    async def explanation(self) -> EncodedPage:
        """Return why the run is not faster. Raises as `page`."""
        insight = self._insight
        found = await insight.history.explanations.refresh(self._history(), insight.run)
        said = insight.history.explanations.sentence(self._history(), insight.run, insight.health.problem)
        body = canonical_json(replace(found, sentence=said) if found.rounds else found)

        async def encode() -> bytes:
            return body

        return await self.encoded(f"{insight.run.identity.lineage}-explanation-{sha256_hex(body)[:16]}", encode)

    async def present(self, slowest: int | None = None) -> EncodedPage:
        """Return the run as it is, or was up to `SAME_PRESENT_S` ago, or for longer if it takes long to show it.

        Args:
            slowest: maximum number of clients of each round; None for all.

        Raises:
            Refused: as `page`.
        """
        insight, history = self._insight, self._history()
        run, published, at_s, now_s = insight.run, insight.published, insight.now_s(), _loop_s()
        last = self._last_present.get(slowest)
        if last is not None and last.lineage == run.identity.lineage and now_s < last.until_s:
            return last.page

        async def encode() -> bytes:
            last_round, loss, problem = history.detail(history.next - 1), history.loss, insight.health.problem
            await insight.history.explanations.refresh(history, run)
            why = insight.history.explanations.sentence(history, run, problem)

            def silent_s(client_id: ClientId) -> float:
                return insight.silent_s(client_id, at_s)

            def work() -> bytes:
                has_clients = slowest != 0
                moment = moment_of(
                    run, published.document, last_round, at_s, loss, why, problem, silent_s, has_clients=has_clients
                )
                return canonical_json(_few(moment, slowest))

            return await self._worker.run(work)

        page = await self.encoded(f"{published.etag[1:-1]}-at-{at_s:.6f}-{_named(slowest)}", encode)
        until_s = now_s + max(SAME_PRESENT_S, REST_PER_WORK * (_loop_s() - now_s))
        if len(self._last_present) >= MAX_PRESENT:
            self._last_present.clear()
        self._last_present[slowest] = _Present(run.identity.lineage, until_s, page)
        return page

    def _history(self) -> Projection:
        return self._insight.projection

    async def encoded(self, name: str, encode: Callable[[], Awaitable[bytes]]) -> EncodedPage:
        """Return a page of this name; encode it if it is not kept. Others who ask for it meanwhile wait."""
        if name in self._pages:
            self._pages.move_to_end(name)
            return self._pages[name]
        if self._asking_count >= MAX_ENCODING:
            raise Refused(Refusal.OVERLOADED, f"{MAX_ENCODING} requests for the run's history wait; try again soon")
        self._asking_count += 1
        try:
            async with self._turn:
                if name not in self._pages:
                    plain = await encode()
                    self._keep(name, await self._worker.run(lambda: encoded_page(name, plain)))
                return self._pages[name]
        finally:
            self._asking_count -= 1

    def _keep(self, name: str, page: EncodedPage) -> None:
        self._pages[name] = page
        self._kept_bytes += _size(page)
        while len(self._pages) > 1 and (
            len(self._pages) > MAX_ENCODED_PAGES or self._kept_bytes > MAX_ENCODED_PAGE_BYTES
        ):
            self._kept_bytes -= _size(self._pages.popitem(last=False)[1])


def encoded_page(name: str, plain: bytes, level: int = _LEVEL) -> EncodedPage:
    """Return a page as it is sent. It takes milliseconds to a second.

    Args:
        name: names its content among all pages of its address.
        plain: its JSON.
        level: of gzip.
    """
    packed = gzip.compress(plain, level, mtime=0) if len(plain) >= MIN_COMPRESSED_BYTES else None
    return EncodedPage(f'"{name}"', plain, packed)


def _loop_s() -> float:
    return asyncio.get_running_loop().time()


def _named(slowest: int | None) -> str:
    return "all" if slowest is None else str(slowest)


def _few(found: Kind, slowest: int | None) -> Kind:
    """Return a moment, or a round, with the slowest of its clients only."""
    if slowest is None:
        return found
    if isinstance(found, Moment):
        return with_slowest(found, slowest)
    return replace(found, clients=slowest_first(found.clients, slowest))


def _size(page: EncodedPage) -> int:
    return len(page.plain) + len(page.compressed or b"")
