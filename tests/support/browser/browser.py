"""A real browser that looks at a coordinator's page: Debian's Chromium, driven by Playwright.

Without windows (`chromium-headless-shell`) it needs half the processor time; the program with windows does as well.

A test that needs it says so by its fixtures (`tests/browser/conftest.py`); without Playwright or Chromium it skips, and
fails in CI.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.support.heavy import need_module, need_program

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

WITHOUT_WINDOWS = "chromium-headless-shell"
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--ignore-certificate-errors",  # those of a test's own; excused one by one (`ignore_https_errors`), a request may
    # begin anew for each connection that is opened meanwhile, and end after 32 as ERR_TOO_MANY_RETRIES
)
SHOWN_BOUND_S = 40.0
"""Maximum seconds until a page shows what a test waits for; a selector that finds nothing fails after this time."""
SIZES = {"phone": (360, 740), "laptop": (1280, 800), "4k": (3840, 2160)}
"""Width and height, in CSS pixels, of the screens at which the page must work."""


@asynccontextmanager
async def chromium() -> AsyncIterator["Browser"]:
    """Start Chromium without a window, and end it with the context. Skips if it is not there."""
    need_module("playwright")
    from playwright.async_api import async_playwright

    program = shutil.which(WITHOUT_WINDOWS) or need_program("chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            await browser.close()


class Complaints:
    """Errors of a page: exceptions that nobody caught, and what the browser refused, such as by the policy.

    Attributes:
        found: their texts.
        expected: parts of those that a test provokes.
    """

    def __init__(self, page: "Page") -> None:
        self.found: list[str] = []
        self.expected: list[str] = []
        page.on("pageerror", lambda error: self.found.append(str(error)))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.found.append(f"{message.type}: {message.text}")

    @property
    def unexpected(self) -> list[str]:
        """Those that the test did not provoke."""
        return [text for text in self.found if not any(part in text for part in self.expected)]


@asynccontextmanager
async def opened(browser: "Browser", size: str = "laptop", **options: Any) -> AsyncIterator[tuple["Page", Complaints]]:
    """Open a page with nothing in it yet, in a context of its own, and its complaints.

    Args:
        browser: opens it.
        size: a name in `SIZES`.
        options: of Playwright's `new_context`, such as `color_scheme="dark"`.
    """
    width, height = SIZES[size]
    context = await browser.new_context(viewport={"width": width, "height": height}, **options)
    try:
        context.set_default_timeout(SHOWN_BOUND_S * 1000)
        page = await context.new_page()
        yield page, Complaints(page)
    finally:
        await context.close()
