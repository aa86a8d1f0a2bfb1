"""A run of three clients, looked at while it trains and while one of them is killed: each part beside the API."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browser.browser import SIZES, opened
from tests.support.drive.processes import RealRun, in_training, real_run

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

SILENCE_S = 4
"""Silence after which the coordinator drops a client."""
RUN_ID = "test-run"
STEP = """() => {
    const word = [...document.querySelectorAll("dl.figures dt")].find((found) => found.textContent === "step");
    return word ? parseInt(word.nextSibling.textContent.replaceAll(",", "")) : -1;
}"""
PARTS = {
    "": "canvas",
    "round": "h2:has-text('The last round:')",
    "members": ".grid [role=gridcell]",
    "join": "dl.facts",
    "operate": "input[type=password]",
}
"""Each part of the page, and an element that is there once the coordinator has answered."""
FELL_SILENT = "fell silent"


async def asked(run: RealRun, place: str) -> Any:
    answer = await run.http.get(f"/v1/runs/{RUN_ID}{place}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def check_run(page: "Page", run: RealRun) -> None:
    """The step that is shown lies between those that the API tells before and after it."""
    least = (await asked(run, ""))["step"] - 1
    await page.wait_for_function(f"(least) => ({STEP})() >= least", arg=least)
    assert least <= await page.evaluate(STEP) <= (await asked(run, ""))["step"]


async def check_members(page: "Page", run: RealRun, count: int) -> None:
    """The table shows the answer that the page was given last, and it is of the run's members."""
    async with page.expect_response(re.compile("/members$")) as asking:
        pass
    told = (await (await asking.value).json())["members"]
    assert set(told["client_id"]) <= set((await asked(run, "/members"))["members"]["client_id"])
    await page.locator("main").get_by_text(f"{count} members", exact=True).wait_for()
    for place, client_id in enumerate(told["client_id"]):
        row = page.locator(".grid-body .grid-row:not([hidden])", has_text=client_id)
        applied, lost = f"{told['applied'][place]:,}", f"{told['lost'][place]:,}"
        cells = row.locator("[role=gridcell]")
        await cells.nth(11).get_by_text(applied, exact=True).wait_for()
        shown = await cells.all_text_contents()
        assert shown[11:13] == [applied, lost]
        assert shown[14:16] == [told["software"][place], "numpy"]


async def check_round(page: "Page", run: RealRun) -> None:
    """The waterfall of the last round names each of its clients."""
    last = (await asked(run, "/history"))["next"] - 1
    detail = await asked(run, f"/history/rounds/{last}")
    await page.goto(f"{run.url}/#/round/{last}")
    for client in detail["clients"]:
        await page.locator("main").get_by_text(client["client_id"][:12]).first.wait_for()


async def check_widths(page: "Page", run: RealRun) -> None:
    """No part is wider than the screen, whatever its size."""
    for part, element in PARTS.items():
        await page.goto(f"{run.url}/#/{part}")
        await page.locator("main").locator(element).first.wait_for()
        for width, height in SIZES.values():
            await page.set_viewport_size({"width": width, "height": height})
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, part


@pytest.mark.nightly
async def test_each_part_shows_the_run_while_a_client_is_killed(browser: "Browser", tmp_path: Path) -> None:
    overrides = {"config__init_min_clients": 3, "config__total_steps": 10_000, "config__client_timeout_s": SILENCE_S}
    async with real_run(tmp_path, **overrides) as run, opened(browser) as (page, complaints):
        for name in ("North lab", "Süd 2", "Lab 3"):
            await run.start_client("--name", name)
        victim = run.clients[1]
        await run.until(in_training(3))
        members, own = await page.context.new_page(), await page.context.new_page()
        await page.goto(f"{run.url}/")
        await members.goto(f"{run.url}/#/members")
        await own.goto((await run.until_logged(victim, "joined"))["page"])
        await own.get_by_role("heading", name="Its last rounds").wait_for()
        assert run.client_id_of(victim) in await own.locator("dl.facts").inner_text()
        await check_run(page, run)
        await check_members(members, run, 3)
        await check_round(page, run)
        await check_widths(page, run)
        await page.goto(f"{run.url}/")
        victim.kill()
        await members.locator("main").get_by_text("2 members", exact=True).wait_for()
        assert len((await asked(run, "/members"))["members"]["client_id"]) == 2
        await own.get_by_text(FELL_SILENT).wait_for()
        await members.get_by_label("State").select_option("left")
        row = members.locator(".grid-body .grid-row:not([hidden])")
        await row.get_by_text(FELL_SILENT, exact=True).wait_for()
        assert run.client_id_of(victim) in await row.inner_text()
        await members.get_by_label("State").select_option("")
        await check_members(members, run, 2)
        await check_run(page, run)
        await page.locator("#connection", has_text="Connected").wait_for()
        guide = await asked(run, "/join")
        await page.goto(f"{run.url}/#/join")
        await page.locator("dl.facts", has_text=f"{guide['room']['parameter_count']:,} parameters").wait_for()
        assert run.url in await page.get_by_label("Command that joins", exact=True).inner_text()
        assert complaints.unexpected == []
