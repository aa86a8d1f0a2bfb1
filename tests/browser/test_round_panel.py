"""The round in a browser: a waterfall of its clients that says what the API says, and who is slow at what."""

import re
from collections.abc import AsyncIterator
from decimal import ROUND_HALF_UP, Context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from epochal.state.shown.glossary import NOT_REPORTED, PARTS
from tests.support.browser.browser import opened
from tests.support.drive.played_rounds import Watched, play_round
from tests.support.drive.served import DIFFERENCE, GENESIS, REPLICA, served_over_sockets, training

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page, Route

ROUNDS = 3
PATIENT = {"config__total_steps": 1000, "config__max_round_train_time": 200, "config__client_timeout_s": 200}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    folder: Path = tmp_path_factory.mktemp("watched")
    async with served_over_sockets(folder, GENESIS, **PATIENT) as run:
        clients = await training(run, 3)
        for _ in range(ROUNDS):
            await play_round(run, clients)
        assert (await clients[0].commit(clients[0].result(REPLICA, DIFFERENCE))).status_code == 200
        yield Watched(run, clients, f"{run.http.base_url}/")


def section(page: "Page", title: str) -> "Locator":
    return page.locator("section", has=page.get_by_role("heading", name=title))


async def shown_clients(of: "Locator") -> list[str]:
    rows = of.locator(".waterfall li")
    await rows.first.wait_for()
    return [str(one) for one in await rows.evaluate_all("all => all.map(li => li.dataset.client)")]


def seconds(value: float) -> str:
    return f"{rounded(value * 1000, 2)} ms" if value < 0.9995 else f"{rounded(value, 3)} s"


def rounded(value: float, digits: int) -> str:
    """A value with so many digits, halves away from zero as JavaScript does."""
    return f"{float(Context(digits, ROUND_HALF_UP).create_decimal_from_float(value)):g}"


@pytest.mark.nightly
async def test_ended_round_has_the_clients_of_the_api_slowest_first(browser: "Browser", watched: Watched) -> None:
    async with opened(browser) as (page, complaints):
        await page.goto(f"{watched.url}#/round/{ROUNDS - 1}")
        shown = section(page, f"Step {ROUNDS}")
        detail = await watched.asked(f"/history/rounds/{ROUNDS - 1}")
        slowest = sorted(detail["clients"], key=lambda client: -client["delivered_s"])
        assert await shown_clients(shown) == [client["client_id"] for client in slowest]
        text = await shown.inner_text()
        assert f"{detail['figures']['applied_batches']} of {detail['figures']['batches']} batches applied" in text
        first = shown.locator(".waterfall li").first
        assert f"result after {seconds(slowest[0]['delivered_s'])}" in await first.inner_text()
        assert "✓ applied" in await first.inner_text()
        said = str(await first.locator(".bars").get_attribute("aria-label"))
        assert f"training {seconds(slowest[0]['train_s'])}" in said
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_bars_have_the_colours_and_patterns_of_the_table(browser: "Browser", watched: Watched) -> None:
    known = {name: part.colour for name, part in PARTS.items()} | {"unknown": NOT_REPORTED.colour}
    async with opened(browser) as (page, _):
        await page.goto(f"{watched.url}#/round")
        await page.locator(".waterfall li").first.wait_for()
        made = await page.evaluate(
            """[...document.querySelectorAll("pattern")].map(({ id, firstChild: ground, lastChild: lines }) =>
                [id.slice("part-".length), ground.getAttribute("fill"), lines.getAttribute("d")])"""
        )
        assert {name: colour for name, colour, _ in made} == known
        lines = [line for _, _, line in made]
        assert len(set(lines)) == len(lines), "parts differ without their colours"
        assert all(re.fullmatch(r"([MLHVhvz0-9 -]+)?", line) for line in lines)


@pytest.mark.nightly
async def test_links_lead_from_round_to_round(browser: "Browser", watched: Watched) -> None:
    async with opened(browser) as (page, _):
        await page.goto(f"{watched.url}#/round")
        await page.get_by_role("link", name="‹ the round before").click()
        await section(page, f"Step {ROUNDS - 1}").locator(".waterfall li").first.wait_for()
        await page.get_by_role("link", name="the round after ›").click()
        await section(page, f"Step {ROUNDS}").locator(".waterfall li").first.wait_for()
        assert await page.get_by_role("link", name="›").count() == 0


@pytest.mark.nightly
async def test_round_under_way_tells_who_is_awaited(browser: "Browser", watched: Watched) -> None:
    async with opened(browser) as (page, _):
        await page.goto(f"{watched.url}#/round")
        shown = section(page, "The round under way")
        assert set(await shown_clients(shown)) == {client.client_id for client in watched.clients}
        bars = shown.locator(f"[data-client='{watched.clients[0].client_id}'] .bars")
        assert "upload" in str(await bars.get_attribute("aria-label"))
        awaited = shown.locator(f"[data-client='{watched.clients[1].client_id}']")
        assert "… awaited: nothing has come yet" in await awaited.inner_text()
        await awaited.get_by_text("usually there after").wait_for()
        assert "nothing reported yet" in str(await awaited.locator(".bars").get_attribute("aria-label"))
        assert (
            "its result is being sent"
            in await shown.locator(f"[data-client='{watched.clients[0].client_id}']").inner_text()
        )
        said = await shown.locator("p").first.inner_text()
        assert all(client.client_id[:12] in said for client in watched.clients), "all three are awaited"
        await page.get_by_role("heading", name=f"The round under way: step {ROUNDS + 1}", exact=True).wait_for()
        await section(page, f"The last round: step {ROUNDS}").wait_for()


@pytest.mark.nightly
async def test_more_clients_are_offered_where_not_all_are_shown(browser: "Browser", watched: Watched) -> None:
    async def has_forty(route: "Route") -> None:
        told = await (await route.fetch()).json()
        told["document"]["round"]["roster_count"] = 40
        shown = 30 if route.request.url.endswith("=30") else 40
        awaited = told["under_way"][1]
        told["under_way"] = [awaited | {"client_id": f"{number:032x}"} for number in range(shown)]
        await route.fulfill(json=told)

    async with opened(browser) as (page, _):
        await page.goto(f"{watched.url}#/round")
        shown, more = section(page, "The round under way"), page.get_by_role("button", name="Show up to 300 clients")
        assert len(await shown_clients(shown)) == 3
        assert await more.count() == 0
        await page.route("**/history/present?*", has_forty)
        await shown.get_by_text(" and at least 27 more. Shown are the slowest 30.").wait_for()
        await more.click()
        await shown.get_by_text(" and 37 more.").wait_for()
        assert len(await shown_clients(shown)) == 40
        assert await more.count() == 0


async def test_page_says_why_the_run_is_not_faster(browser: "Browser", watched: Watched) -> None:
    explanation = await watched.asked("/history/explanation")
    async with opened(browser) as (page, _):
        await page.goto(f"{watched.url}#/round")
        why = section(page, "Why is this run not faster?")
        await why.get_by_text(explanation["sentence"]).wait_for()
        shares = await why.locator(".shares li").all_inner_texts()
        assert len(shares) == len([part for part in explanation["parts"] if part["share"] >= 0.01])
        medians = section(page, "Medians over the last rounds").locator("tbody tr")
        ids = [client["client_id"][:12] for client in explanation["clients"]]
        assert [row.split("\t")[0] for row in await medians.all_inner_texts()] == ids
        await page.goto(watched.url)
        await page.locator("main").get_by_text(explanation["sentence"]).wait_for()


@pytest.mark.nightly
async def test_waterfall_as_a_table_has_the_same_figures(browser: "Browser", watched: Watched) -> None:
    async with opened(browser) as (page, _):
        await page.goto(f"{watched.url}#/round/0")
        shown = section(page, "Step 1")
        await shown.locator(".waterfall li").first.wait_for()
        await shown.get_by_text("As a table").click()
        await shown.locator("tbody tr").first.wait_for()
        rows = await shown.locator("tbody tr").all_inner_texts()
        detail = await watched.asked("/history/rounds/0?slowest=3")
        for row, client in zip(rows, detail["clients"], strict=True):
            cells = row.split("\t")
            assert (cells[0], cells[4], cells[-1]) == (client["client_id"][:12], seconds(client["train_s"]), "applied")


@pytest.mark.nightly
@pytest.mark.parametrize("word", ["99", "x"])
async def test_round_that_is_not_held_is_said_so(browser: "Browser", watched: Watched, word: str) -> None:
    async with opened(browser) as (page, complaints):
        complaints.expected = ["404"]
        await page.goto(f"{watched.url}#/round/{word}")
        expected = "are not held; held: 0 to 2" if word == "99" else "The last round"
        await page.get_by_text(expected).first.wait_for()
        assert complaints.unexpected == []
