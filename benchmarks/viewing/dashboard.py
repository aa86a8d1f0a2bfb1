"""The run's page in a real browser, over a run of 10,000 rounds: its first paint, and what is sent for it.

The run is played by the machine alone (`benchmarks/viewing/history.py`), then served from its directory as any
other.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure
from benchmarks.viewing.history import played, state_of
from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from tests.support.browser.browser import ARGUMENTS, WITHOUT_WINDOWS, opened

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

ROUNDS = 10_000
LOADS = 9

PAINTED_WHOLE, PAINTED_TARGET = "first paint of the page with the run's figures, median", "≤ 0.5"
SENT, SENT_TARGET = "sent for the page, with its charts and their data", "≤ 150"

WATCH = """
new MutationObserver((changes, observer) => {
    if (!document.querySelector('[data-figure="step"]')?.textContent.includes("done")) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.shownMs = performance.now(); }));
}).observe(document, { childList: true, subtree: true, characterData: true });
"""
"""Notes the time at which the run's figures were painted."""
WHOLE = """async () => {
    const isWhole = () => window.shownMs && document.querySelector(".chart canvas");
    while (!isWhole()) await new Promise(requestAnimationFrame);
}"""
"""Waits for the figures and the charts. (The page's policy forbids `wait_for_function`, which calls eval.)"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


async def measure(folder: Path, rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures; without a browser, those with a target, which say so."""
    program = shutil.which(WITHOUT_WINDOWS) or shutil.which("chromium")
    wanted = ((PAINTED_WHOLE, "s", PAINTED_TARGET), (SENT, "KB", SENT_TARGET))
    if program is None or find_spec("playwright") is None:
        missing = "chromium is not installed" if program is None else "playwright is not installed"
        return [Figure(name, None, unit, target, None, missing) for name, unit, target in wanted]
    from playwright.async_api import async_playwright

    await played(folder / "run", rounds)
    async with serving(state_of(rounds), ServeOptions(str(folder / "run"), Endpoint(port=0))) as running:
        await running.handlers.insight.history.is_read.wait()
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
            try:
                return await _loads(browser, running.url)
            finally:
                await browser.close()


async def _loads(browser: "Browser", url: str) -> list[Figure]:
    painted, shown, sizes = list[float](), list[float](), list[int]()
    for _ in range(LOADS):
        async with opened(browser) as (page, _):
            sent = await _sent_bytes(page)
            await page.add_init_script(WATCH)
            await page.goto(url)
            await page.evaluate(WHOLE)
            shown.append(await page.evaluate("window.shownMs"))
            painted.append(await page.evaluate(PAINTED))
            sizes.append(sum(sent))
    return [
        Figure("first paint of the page, median", median(painted) / 1000, "s"),
        Figure(PAINTED_WHOLE, median(shown) / 1000, "s", PAINTED_TARGET),
        Figure("first paint of the page with the run's figures, worst", max(shown) / 1000, "s"),
        Figure(SENT, max(sizes) / 1000, "KB", SENT_TARGET, digits=0),
    ]


async def _sent_bytes(page: "Page") -> list[int]:
    """Return a list that grows by the size of each piece of an answer, headers included, as it went over the wire."""
    sent = list[int]()
    network = await page.context.new_cdp_session(page)

    def received(event: Any) -> None:
        sent.append(event["encodedDataLength"])

    network.on("Network.responseReceived", lambda event: sent.append(event["response"]["encodedDataLength"]))
    network.on("Network.dataReceived", received)
    await network.send("Network.enable")
    return sent
