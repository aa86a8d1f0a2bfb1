"""The page's table of 10,000 members in a real browser: frames a second while it scrolls, sorting, and filtering.

The coordinator and its members are real, but the members do nothing. Frames are counted by the browser itself
(`requestAnimationFrame`), in turn at rest and while the table scrolls, so that both see the same load of the machine.
"""

import asyncio
import shutil
from collections import defaultdict
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure
from epochal.coordinator.machine.stimuli import ClientJoined
from epochal.coordinator.run.service import CoordinatorService
from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from epochal.state.codecs.codecs_by_name import SPOKEN
from epochal.state.messages.requests import Capabilities
from epochal.state.wire import client_id_of
from tests.support.browser.browser import ARGUMENTS, opened
from tests.support.data.states import state_file

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

MEMBERS = 10_000
AT_ONCE = 500
TURNS = 4
TURN_MS = 2_000
ROW_PX = 36
REST = "at rest"
SPEEDS = {REST: 0, "by 1 row a frame": ROW_PX, "by a window a frame": 12 * ROW_PX, "by its bar, to its end": 3_000}
"""Pixels by which the table scrolls in each frame."""

FRAMES = """([pixels, milliseconds]) => new Promise((resolve) => {
    const grid = document.querySelector(".grid"), times = [];
    grid.scrollTop = 0;
    const until = performance.now() + milliseconds;
    requestAnimationFrame(function frame(now) {
        times.push(now);
        if (pixels) grid.scrollTop = (grid.scrollTop + pixels) % (grid.scrollHeight - grid.clientHeight);
        if (now < until) requestAnimationFrame(frame); else resolve(times);
    });
})"""
CLICKED = """(title) => {
    const button = [...document.querySelectorAll(".grid button")].find((found) => found.textContent.startsWith(title));
    const began = performance.now();
    button.click();
    document.querySelector(".grid").getBoundingClientRect();
    return performance.now() - began;
}"""
FILTERED = """(text) => {
    const field = document.querySelector("input[type=search]");
    const began = performance.now();
    field.value = text;
    field.dispatchEvent(new Event("input"));
    document.querySelector(".grid").getBoundingClientRect();
    return performance.now() - began;
}"""


async def measure(folder: Path) -> list[Figure]:
    """Return the figures; without a browser, one that says so."""
    program = shutil.which("chromium")
    if program is None or find_spec("playwright") is None:
        missing = "chromium is not installed" if program is None else "playwright is not installed"
        return [Figure("frames a second while 10,000 members scroll", None, "1/s", "60", None, missing)]
    from playwright.async_api import async_playwright

    state = state_file(config__init_min_clients=MEMBERS, config__client_timeout_s=600)
    async with serving(state, ServeOptions(str(folder / "run"), Endpoint(port=0))) as running:
        await _join(running.handlers.service)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
            try:
                async with opened(browser) as (page, _):
                    return await _figures(page, running.url)
            finally:
                await browser.close()


async def _join(service: CoordinatorService) -> None:
    capabilities = Capabilities(trainer="torch", codecs=SPOKEN)
    for first in range(0, MEMBERS, AT_ONCE):
        async with asyncio.TaskGroup() as tasks:
            for number in range(first, first + AT_ONCE):
                key = number.to_bytes(32, "big")
                name = f"lab-{number}" if number % 3 else ""
                joined = ClientJoined(
                    client_id_of(key), key.hex(), capabilities, f"nonce-{number}", 1e12, name=name, software="1.0"
                )
                tasks.create_task(service.submit(joined))


async def _figures(page: "Page", url: str) -> list[Figure]:
    metrics = await page.context.new_cdp_session(page)
    await metrics.send("Performance.enable")
    await page.goto(f"{url}/#/members")
    await page.get_by_text(f"{MEMBERS:,} members", exact=True).wait_for()
    frames: dict[str, list[float]] = defaultdict(list)
    worked_ms: dict[str, list[float]] = defaultdict(list)
    for _ in range(TURNS):
        for speed, pixels in SPEEDS.items():
            before_s = await _busy_s(metrics)
            times = await page.evaluate(FRAMES, [pixels, TURN_MS])
            worked_ms[speed].append((await _busy_s(metrics) - before_s) * 1000 / len(times))
            frames[speed] += [after - before for before, after in pairwise(times)]
    found = [figure for speed in SPEEDS if speed != REST for figure in _scrolled(speed, frames, worked_ms)]
    for title in ("Member", "Last seen"):
        took = median([await page.evaluate(CLICKED, title) for _ in range(TURNS)])
        found.append(Figure(f"{MEMBERS:,} members sorted by {title!r}, until they are shown", took, "ms", "≤ 100"))
    took = median([await page.evaluate(FILTERED, text) for text in ("lab-77", "", "1.0 lab", "")])
    return [*found, Figure(f"{MEMBERS:,} members filtered by a word, until they are shown", took, "ms", "≤ 100")]


def _scrolled(speed: str, frames: dict[str, list[float]], worked_ms: dict[str, list[float]]) -> list[Figure]:
    rest = f"the same page {REST}, in turn"
    what = f"while {MEMBERS:,} members scroll {speed}"
    return [
        Figure(f"frames a second {what}", _per_s(frames[speed]), "1/s", "60", _per_s(frames[REST]), rest, 1),
        Figure(
            f"time between frames, 95 of 100 within, {what}", _late(frames[speed]), "ms", "", _late(frames[REST]), rest
        ),
        Figure(f"work of the page's thread in a frame {what}", median(worked_ms[speed]), "ms", "≤ 16.7 ms", None, rest),
    ]


def _per_s(intervals_ms: list[float]) -> float:
    return 1000 * len(intervals_ms) / sum(intervals_ms)


def _late(intervals_ms: list[float]) -> float:
    return sorted(intervals_ms)[int(len(intervals_ms) * 0.95)]


async def _busy_s(metrics: "CDPSession") -> float:
    """Return the seconds for which the page's main thread has worked."""
    found: Any = await metrics.send("Performance.getMetrics")
    return float(next(metric["value"] for metric in found["metrics"] if metric["name"] == "TaskDuration"))
