"""The report of a run with hostile words, opened in a browser from its file."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from epochal.view.figures.report_page import write_report
from epochal.view.figures.run_record import RunRecord
from tests.browser.test_accessibility import violations
from tests.support.browser.browser import SIZES, opened
from tests.support.data.recorded_run import evaluated, hostile, recorded_run

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def record(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunRecord]:
    yield await recorded_run(tmp_path_factory.mktemp("recorded") / "run")


async def test_report_opens_and_obeys_nothing(browser: "Browser", record: RunRecord, tmp_path: Path) -> None:
    plain, bad = tmp_path / "plain.html", tmp_path / "bad.html"
    write_report(evaluated(record), plain)
    write_report(hostile(record), bad)
    async with opened(browser) as (page, complaints):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for file in (plain, bad):
            await page.goto(file.as_uri())
            assert await page.locator("img").count() == 7
            assert await page.locator("img").evaluate_all("all => all.every((one) => one.naturalWidth > 0)")
            assert await page.evaluate("window.owned") is None
            for size in ("phone", "laptop"):
                width, height = SIZES[size]
                await page.set_viewport_size({"width": width, "height": height})
                assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert asked == [plain.as_uri(), bad.as_uri()]
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_report_breaks_no_rule_in_light_or_dark(browser: "Browser", record: RunRecord, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_report(evaluated(record), file)
    async with opened(browser, bypass_csp=True) as (page, _):  # axe is a script
        await page.goto(file.as_uri())
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            assert await violations(page) == []
