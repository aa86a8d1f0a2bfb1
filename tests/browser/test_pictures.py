"""The pictures of the run's page in the documentation: the demo's run while it trains, in a light and a dark scheme."""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.state.messages.requests import RunStatus
from epochal.tools.testnet.local_run import LocalRun, LocalRunOptions
from tests.support.browser.browser import opened

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

PICTURES = "EPOCHAL_SCREENSHOTS"
"""Environment variable with the folder that keeps the pictures; without it they go with the test's other files."""
ROUNDS = 180
SHOWN_FROM_STEP = 100
"""After one client was killed, another has joined, and two checkpoints were evaluated."""
BOUND_S = 500.0
WIDTHS = (360, 768, 1280)
HEIGHT = 1000
OTHERS = {
    "round": ("round", "h2:has-text('last round')", 1280),
    "members": ("members", ".grid [role=gridcell]", 360),
    "operate": ("operate", "input[type=password]", 1280),
}
"""Name of each other picture: its part of the page, an element that is there once it has been asked for, its width."""


async def take(page: "Page", path: Path, width: int) -> None:
    """Take a picture; nothing is wider than the screen."""
    await page.set_viewport_size({"width": width, "height": HEIGHT})
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    assert len(await page.screenshot(path=path)) > 5_000, "there is something to see"


@pytest.mark.nightly
@pytest.mark.timeout(BOUND_S + 60)
async def test_pictures_of_a_run_while_it_trains(browser: "Browser", tmp_path: Path) -> None:
    folder = Path(os.environ.get(PICTURES) or tmp_path / "pictures")
    has_enough, address = asyncio.Event(), list[str]()

    def show(status: RunStatus, _: list[str]) -> None:
        if status.step >= SHOWN_FROM_STEP and len(status.evaluations) > 1:
            has_enough.set()

    run = asyncio.create_task(
        LocalRun(LocalRunOptions(tmp_path / "run", round_count=ROUNDS), show, address.append).run()
    )
    try:
        async with asyncio.timeout(BOUND_S), opened(browser) as (page, complaints):
            waiting = asyncio.ensure_future(has_enough.wait())
            await asyncio.wait((run, waiting), return_when=asyncio.FIRST_COMPLETED)
            assert has_enough.is_set(), run
            await page.goto(f"{address[0]}/")
            await page.locator("canvas").first.wait_for()
            await page.locator('[data-figure="held-out loss"]', has_text="step").wait_for()
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme)
                for width in WIDTHS:
                    await take(page, folder / f"run-{scheme}-{width}.png", width)
            await page.emulate_media(color_scheme="light")
            for name, (part, element, width) in OTHERS.items():
                await page.goto(f"{address[0]}/#/{part}")
                await page.locator("main").locator(element).first.wait_for()
                await take(page, folder / f"{name}.png", width)
            assert complaints.unexpected == []
    finally:
        run.cancel()
        await asyncio.wait((run,))
