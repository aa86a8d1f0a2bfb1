"""A page that is left open for long: its memory stays flat, however much it is told; and it says why it was dropped."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal.state.wire import canonical_json
from tests.support.browser.browser import opened
from tests.support.drive.shown_run import ShownRun, shown_run
from tests.support.servers.event_stream import viewing

if TYPE_CHECKING:
    from playwright.async_api import Browser, CDPSession, Page, Route

ROUNDS = 1_200
"""Number of rounds that one stream tells: fewer than the page's rows, so that it keeps all of them."""
WARMING_STREAMS = 2
STREAMS = 4
MAX_GROWN_BYTES = 1_000_000
"""Less than a tenth of what the further streams tell, and some times what Chromium's own caches grow by."""
MAX_GROWN_NODES = 200
SOON = "dispatchEvent(new Event('online'))"
"""Lets the page come back at once."""


class PlayedEvents:
    """Answers each request for events by one stream of many, made of a real round's."""

    def __init__(self, rounds: dict[str, Any], document: dict[str, Any], now: dict[str, Any]) -> None:
        self._rounds, self._document, self._now = rounds, document, now
        self.told_count = 0
        self.told_bytes = 0
        self.allowed_count = 0
        """Number of streams that are answered; the next one is refused."""
        self.dropped = b""
        """What streams after those end with."""

    @property
    def _end(self) -> str:
        return f"has told {self.told_count} streams"

    def stream(self) -> bytes:
        """Return the next stream: the history is to be read again, and many rounds follow it."""
        self.told_count += 1
        first = self._rounds["next"]
        parts = [_event("reset", {"detail": "read the history again"})]
        for number in range(first, first + ROUNDS):
            columns = {name: values[-1:] for name, values in self._rounds["rounds"].items()} | {"number": [number]}
            parts.append(_event("rounds", self._rounds | {"next": number + 1, "rounds": columns}))
            parts.append(_event("document", self._document | {"step": number}))
            parts.append(_event("now", self._now | {"waiting": f"waits for round {number}"}))
        parts.append(_event("now", self._now | {"waiting": self._end}))
        found = b"".join(parts)
        self.told_bytes += len(found)
        return found

    async def answer(self, route: "Route") -> None:
        headers = {"content-type": "text/event-stream", "cache-control": "no-store"}
        if self.told_count < self.allowed_count:
            await route.fulfill(status=200, headers=headers, body=self.stream())
        elif self.dropped:
            await route.fulfill(status=200, headers=headers, body=self.dropped)
        else:
            await route.fulfill(status=503, body="{}")

    async def play(self, page: "Page", streams: int) -> None:
        """Let the page be told so many further streams; return once it shows the end of the last."""
        self.allowed_count += streams
        while self.told_count < self.allowed_count:
            ended = f"the run has told {self.told_count + 1} streams"
            await page.evaluate(SOON)
            await page.get_by_text(ended).first.wait_for()


def _event(kind: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), canonical_json(data))


async def played(run: ShownRun) -> PlayedEvents:
    """Return events like those of the run."""
    async with viewing(run.coordinator) as viewer:
        document = (await viewer.until("document")).data
        now = (await viewer.until("now")).data
    return PlayedEvents(await run.asked("history"), document, now)


async def held(memory: "CDPSession") -> tuple[int, int]:
    """Return the bytes of the page's objects, and the number of its nodes, after a collection."""
    for _ in range(2):
        await memory.send("HeapProfiler.collectGarbage")
    found: Any = await memory.send("Performance.getMetrics")
    values = {metric["name"]: int(metric["value"]) for metric in found["metrics"]}
    return values["JSHeapUsedSize"], values["Nodes"]


@pytest.mark.nightly
async def test_memory_of_a_page_stays_flat_over_many_events(browser: "Browser", tmp_path: Path) -> None:
    async with shown_run(tmp_path, client_count=2, rounds=2) as run, opened(browser) as (page, _):
        events = await played(run)
        await page.route("**/events", events.answer)
        await run.open(page, "")
        await page.locator(".chart canvas").first.wait_for()
        memory = await page.context.new_cdp_session(page)
        await memory.send("Performance.enable")
        await events.play(page, WARMING_STREAMS)
        before_bytes, before_nodes = await held(memory)
        told_bytes = events.told_bytes
        await events.play(page, STREAMS)
        after_bytes, after_nodes = await held(memory)
        assert events.told_bytes - told_bytes > 10 * MAX_GROWN_BYTES
        assert after_bytes - before_bytes < MAX_GROWN_BYTES
        assert after_nodes - before_nodes < MAX_GROWN_NODES


async def test_page_that_is_dropped_says_why_and_comes_back(browser: "Browser", tmp_path: Path) -> None:
    async with shown_run(tmp_path, client_count=2, rounds=2) as run, opened(browser) as (page, _):
        events = await played(run)
        events.dropped = _event("dropped", {"detail": "you read too slowly for the run; come back"})
        await page.route("**/events", events.answer)
        await run.open(page, "")
        connection = page.locator("#connection")
        await connection.get_by_text("Connection lost (you read too slowly for the run; come back)").wait_for()
        await page.unroute("**/events")
        await page.evaluate(SOON)
        await connection.get_by_text("Connected").wait_for()
