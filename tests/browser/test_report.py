"""The report of a run with hostile words, opened in a browser from its file."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.figures.report import write_report
from tests.browser.test_accessibility import violations
from tests.support.browser import opened
from tests.support.recorded_run import evaluated, hostile, recorded_run

if TYPE_CHECKING:
    from playwright.async_api import Browser


@pytest.mark.parametrize("size", ["phone", "laptop"])
async def test_report_opens_and_obeys_nothing(browser: "Browser", tmp_path: Path, size: str) -> None:
    record = await recorded_run(tmp_path / "run")
    plain, bad = tmp_path / "plain.html", tmp_path / "bad.html"
    write_report(evaluated(record), plain)
    write_report(hostile(record), bad)
    async with opened(browser, size) as (page, complaints):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for file in (plain, bad):
            await page.goto(file.as_uri())
            assert await page.locator("svg").count() == 6
            assert await page.locator("svg").first.is_visible()
            assert await page.evaluate("window.owned") is None
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert asked == [plain.as_uri(), bad.as_uri()]
        assert complaints.unexpected == []


async def test_report_breaks_no_rule_in_light_or_dark(browser: "Browser", tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    write_report(evaluated(await recorded_run(tmp_path / "run")), file)
    async with opened(browser, bypass_csp=True) as (page, _):  # axe is a script
        await page.goto(file.as_uri())
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            assert await violations(page) == []
