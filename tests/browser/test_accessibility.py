"""Every part of the page by axe (WCAG 2 A and AA), in a light and a dark scheme, and by keyboard alone."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.support.browser.browser import opened
from tests.support.drive.shown_run import ShownRun, shown_run
from tests.support.heavy import need_module
from tests.support.thinned import thinned

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
PARTS = {
    "": "canvas",
    "round": "svg",
    "members": ".grid [role=gridcell]",
    "member": "dl.facts",
    "join": "dl.facts",
    "operate": "input[type=password]",
    "nowhere": "h1",
}
"""An element of each part that is there once the coordinator has answered."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ShownRun]:
    async with shown_run(tmp_path_factory.mktemp("accessible"), rounds=3) as shown:
        yield shown


async def violations(page: "Page") -> list[str]:
    """Each broken rule, with the elements that break it."""
    need_module("axe_playwright_python")
    from axe_playwright_python.async_playwright import Axe

    found: Any = await Axe().run(page, options={"runOnly": RULES, "resultTypes": ["violations"]})
    return [
        f"{broken['id']}: {[node['html'][:200] for node in broken['nodes']]}" for broken in found.response["violations"]
    ]


async def in_both_schemes(page: "Page") -> list[str]:
    found = []
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        found += [f"{scheme}: {broken}" for broken in await violations(page)]
    return found


@thinned("place", PARTS, kept=1)
async def test_part_breaks_no_rule_in_light_or_dark(browser: "Browser", run: ShownRun, place: str) -> None:
    async with opened(browser) as (page, complaints):
        await run.open(page, f"member/{run.clients[0].client_id}" if place == "member" else place)
        await page.locator(PARTS[place]).first.wait_for()
        assert await in_both_schemes(page) == []
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_question_and_narrow_table_break_no_rule(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser, "phone") as (page, _):
        await run.open(page, "members")
        await page.locator(PARTS["members"]).first.wait_for()
        assert await in_both_schemes(page) == []
        await run.open(page, "operate")
        await page.get_by_label("Token").fill(run.admin_token)
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Pause…").wait_for()
        assert await in_both_schemes(page) == []
        await page.get_by_role("button", name="Pause…").press("Enter")
        assert await in_both_schemes(page) == []


@pytest.mark.nightly
async def test_every_control_is_reached_by_tab(browser: "Browser", run: ShownRun) -> None:
    """All that can be used is reached by Tab, in the page's order, shows that it has the focus, and is in sight."""
    async with opened(browser, "phone") as (page, _):
        for place in ("members", "join", "operate"):
            await run.open(page, place)
            await page.locator(PARTS[place]).first.wait_for()
            await page.evaluate("document.activeElement.blur(), getSelection().removeAllRanges()")
            wanted = await page.evaluate(REACHABLE)
            reached = []
            for _ in range(wanted + 3):
                await page.keyboard.press("Tab")
                reached.append(await page.evaluate(FOCUSED))
            places = [found["place"] for found in reached if found["place"] >= 0]
            assert set(places) >= set(range(wanted)), place
            assert [found for found in reached if found["place"] >= 0 and not found["outlined"]] == []


@pytest.mark.nightly
async def test_table_is_walked_and_sorted_by_keyboard(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, _):
        await run.open(page, "members")
        grid = page.get_by_role("grid")
        await page.locator(PARTS["members"]).first.wait_for()
        await grid.focus()
        active = (
            "document.getElementById(document.querySelector('.grid').getAttribute('aria-activedescendant')).textContent"
        )
        first = await page.evaluate(active)
        await page.keyboard.press("ArrowDown")
        second = await page.evaluate(active)
        assert first != second
        await page.keyboard.press("Control+Home")
        assert await page.evaluate(active) == first
        await page.get_by_role("button", name="Member").press("Enter")
        assert await page.get_by_role("columnheader", name="Member").get_attribute("aria-sort") == "descending"
        await grid.focus()
        await page.keyboard.press("Control+Home")
        await page.keyboard.press("Enter")
        await page.locator(PARTS["member"]).wait_for()
        assert "#/member/" in page.url


REACHABLE = """() => {
    window.controls = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
        .filter((found) => found.tabIndex >= 0 && !found.disabled && found.checkVisibility());
    return window.controls.length;
}"""
FOCUSED = """() => {
    const style = getComputedStyle(document.activeElement);
    return {
        place: window.controls.indexOf(document.activeElement),
        outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
    };
}"""
