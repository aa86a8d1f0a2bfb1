"""A page that reads too slowly says why it was dropped, and comes back."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from epochal.state.wire import canonical_json
from tests.support.browser.browser import opened
from tests.support.drive.shown_run import shown_run

if TYPE_CHECKING:
    from playwright.async_api import Browser, Route

SOON = "dispatchEvent(new Event('online'))"
"""Lets the page come back at once."""


def _event(kind: str, data: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), canonical_json(data))


@pytest.mark.nightly
async def test_page_that_is_dropped_says_why_and_comes_back(browser: "Browser", tmp_path: Path) -> None:
    dropped = _event("dropped", {"detail": "you read too slowly for the run; come back"})

    async def drops(route: "Route") -> None:
        await route.fulfill(status=200, headers={"content-type": "text/event-stream"}, body=dropped)

    async with shown_run(tmp_path, client_count=2, rounds=2) as run, opened(browser) as (page, _):
        await page.route("**/events", drops)
        await run.open(page, "")
        connection = page.locator("#connection")
        await connection.get_by_text("Connection lost (you read too slowly for the run; come back)").wait_for()
        await page.unroute("**/events")
        await page.evaluate(SOON)
        await connection.get_by_text("Connected").wait_for()
