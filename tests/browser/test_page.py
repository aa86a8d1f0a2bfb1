"""The page in a browser: it shows the run as the API tells it, live, and to whom it may."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.support.browser.browser import SIZES, opened
from tests.support.drive.played_rounds import Watched, play_round
from tests.support.drive.served import GENESIS, served_over_sockets, training
from tests.support.drive.shown_run import shown_run
from tests.support.thinned import thinned

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

ROUNDS = 3
"""Few enough that the time limit of the round under way does not follow them yet: it waits for its clients."""
PARTS = {
    "round": ".waterfall li",
    "members": ".grid [role=gridcell] a",
    "join": "dl.facts",
    "operate": "input[type=password]",
}
"""Parts of the page, and an element of each that is there once the coordinator has answered."""
PATIENT = {"config__total_steps": 1000, "config__max_round_train_time": 200, "config__client_timeout_s": 200}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    folder: Path = tmp_path_factory.mktemp("watched")
    async with served_over_sockets(folder, GENESIS, **PATIENT) as run:
        clients = await training(run, 3)
        for _ in range(ROUNDS):
            await play_round(run, clients)
        yield Watched(run, clients, f"{run.http.base_url}/")


async def figure(page: "Page", word: str) -> str:
    """The value that stands at a word."""
    return str(await page.locator(f'[data-figure="{word}"]').inner_text())


async def until_shown(page: "Page", word: str, text: str) -> None:
    await page.locator(f'[data-figure="{word}"]').filter(has_text=re.compile(text)).wait_for()


@thinned(("size", "scheme"), [("phone", "dark"), ("laptop", "light"), ("4k", "dark")])
async def test_page_loads_without_a_complaint(browser: "Browser", watched: Watched, size: str, scheme: str) -> None:
    async with opened(browser, size, color_scheme=scheme) as (page, complaints):
        await page.goto(watched.url)
        await page.locator(".chart canvas").first.wait_for()
        await until_shown(page, "step", "done")
        assert complaints.unexpected == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]


async def test_figures_are_those_of_the_api(browser: "Browser", watched: Watched) -> None:
    async with opened(browser) as (page, _):
        await page.goto(watched.url)
        await until_shown(page, "member", r"^3\s*3 ready")
        document, rounds = await watched.asked(""), (await watched.asked("/history"))["rounds"]
        assert (await figure(page, "phase")).startswith(document["run_state"])
        assert (await figure(page, "step")).startswith(f"{document['step'] - 1} of 1,000\n")
        assert await figure(page, "epoch") == str(document["epoch"])
        assert await figure(page, "tokens") == f"{rounds['tokens_total'][-1]:,}"
        assert await figure(page, "training loss") == f"{rounds['loss'][-1]:g}\nnats/token"
        assert await figure(page, "learning rate") == f"{rounds['learning_rate'][-1]:g}"
        assert await figure(page, "checkpoint") == f"step 0, {document['checkpoint']['size_bytes']} B"
        assert document["reason"] in await figure(page, "phase")
        assert await page.title() == f"{document['run_id']} · Run · Epochal"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("zone", "words"), [("Asia/Kolkata", "Asia/(Kolkata|Calcutta) \\(UTC\\+5:30\\)"), ("UTC", "UTC")]
)
async def test_footer_says_in_which_time_zone_times_are(
    browser: "Browser", watched: Watched, zone: str, words: str
) -> None:
    async with opened(browser, timezone_id=zone) as (page, _):
        await page.goto(watched.url)
        await page.locator("footer").get_by_text(re.compile(f"Times are of your time zone, {words}\\.")).wait_for()


@pytest.mark.nightly
async def test_chart_as_a_table_has_the_rounds_losses(browser: "Browser", watched: Watched) -> None:
    async with opened(browser) as (page, _):
        await page.goto(watched.url)
        chart = page.locator("figure.chart", has_text="Loss, nats per token")
        await chart.locator("canvas").wait_for()
        await chart.locator("summary").click()
        rounds = (await watched.asked("/history"))["rounds"]
        rows = await chart.locator("tbody tr").all_inner_texts()
        assert [row.split("\t")[:2] for row in rows[::-1]] == [
            [str(step), f"{loss:g}"] for step, loss in zip(rounds["step"], rounds["loss"], strict=True)
        ]


async def in_two_rows(route: "Route") -> None:
    """Ask for the whole history as two rows."""
    await route.continue_(url=route.request.url.replace("points=512", "points=2"))


@pytest.mark.nightly
async def test_zoom_shows_each_round_where_rows_stand_for_several(browser: "Browser", watched: Watched) -> None:
    async with opened(browser) as (page, _):
        await page.route("**/history?points=512", in_two_rows)
        await page.goto(watched.url)
        chart = page.locator("figure.chart", has_text="Tokens per second")
        await chart.locator("canvas").wait_for()
        await chart.locator("summary").click()
        rows = chart.locator("tbody tr")
        count = len((await watched.asked("/history"))["rounds"]["number"])
        await rows.nth(1).wait_for()
        assert await rows.count() == 2 < count
        await chart.get_by_role("button", name="Zoom in").click()
        await rows.nth(count - 1).wait_for()
        assert await rows.count() == count
        await chart.get_by_role("button", name="Show all").click()
        await rows.nth(2).wait_for(state="detached")


async def test_round_that_ends_is_shown_without_a_reload(browser: "Browser", watched: Watched) -> None:
    async with opened(browser) as (page, _):
        await page.goto(watched.url)
        step = watched.coordinator.service.run.progress.step
        await until_shown(page, "step", f"^{step - 1} of")
        await play_round(watched.coordinator, watched.clients)
        await until_shown(page, "step", f"^{step} of")


@pytest.mark.nightly
async def test_run_without_rounds_says_so_and_what_it_waits_for_once(browser: "Browser", tmp_path: Path) -> None:
    async with shown_run(tmp_path, client_count=0) as run, opened(browser) as (page, complaints):
        await page.goto(run.url)
        await page.get_by_text("The run waits for members: 0 of ").wait_for()
        assert (await page.locator("main").inner_text()).count("waits for members") == 1
        assert await page.locator(".chart .readout").all_inner_texts() == ["No values yet."] * 4
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_page_says_how_far_the_run_is_through_its_data(browser: "Browser", watched: Watched) -> None:
    async def knows(route: "Route") -> None:
        told = await (await route.fetch()).json()
        told |= {"passes": 3.75, "pass_samples": 23_414}
        await route.fulfill(json=told)

    async with opened(browser) as (page, _):
        await page.goto(watched.url)
        await until_shown(page, "applied", "samples$")  # no member has described its data
        await page.route("**/history/present?*", knows)
        await until_shown(page, "applied", "samples; pass 4 over 23,414: 75 % of it begun$")


@pytest.mark.nightly
async def test_part_that_was_left_before_it_was_loaded_is_not_shown(browser: "Browser", watched: Watched) -> None:
    async with opened(browser) as (page, _):
        asked, free = asyncio.Event(), asyncio.Event()

        async def waits(route: "Route") -> None:
            asked.set()
            await free.wait()
            await route.continue_()

        await page.route("**/panels/join.js", waits)
        await page.goto(watched.url)
        await until_shown(page, "step", "done")
        await page.goto(f"{watched.url}#/join")
        await asked.wait()
        await page.goto(f"{watched.url}#/")
        async with page.expect_response("**/panels/join.js"):
            free.set()
        await page.evaluate("import('./dashboard/panels/join.js')")
        await page.locator(".what").wait_for()
        assert await page.get_by_role("heading", name="Join", exact=True).count() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "nowhere"])
async def test_unknown_panel_is_named_as_text(browser: "Browser", watched: Watched, name: str) -> None:
    async with opened(browser) as (page, complaints):
        await page.goto(f"{watched.url}#/{name}")
        await page.get_by_role("heading", name="There is no such page").wait_for()
        assert f"“{name}”" in await page.locator("main").inner_text()
        assert complaints.unexpected == []


@pytest.mark.nightly
@thinned("rule", ["admin", "members"], kept=1)
async def test_whole_page_works_with_the_token_that_opens_it(browser: "Browser", tmp_path: Path, rule: str) -> None:
    async with shown_run(tmp_path, rounds=2, access__dashboard=rule) as run, opened(browser) as (page, complaints):
        complaints.expected = ["401"]
        token = run.admin_token if rule == "admin" else run.clients[0].token
        assert token is not None
        await page.goto(run.url)
        await page.get_by_label("Token", exact=True).fill(token)
        refused = list[str]()
        page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None)
        await page.keyboard.press("Enter")
        await until_shown(page, "member", r"^3\s*3 ready")
        for part, element in PARTS.items():
            await run.open(page, part)
            await page.locator("main").locator(element).first.wait_for()
        assert refused == []
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_private_run_asks_for_a_token_that_stays_in_memory(browser: "Browser", tmp_path: Path) -> None:
    overrides = {**PATIENT, "access__dashboard": "members"}
    async with served_over_sockets(tmp_path, GENESIS, **overrides) as run, opened(browser) as (page, complaints):
        complaints.expected = ["401"]
        (client, *_) = await training(run, 2)
        await page.goto(f"{run.http.base_url}/")
        field = page.get_by_label("Token", exact=True)
        await field.fill("no token of anybody")
        await page.get_by_role("button", name="Use this token").click()
        await page.get_by_text("This is no token").wait_for()
        await field.fill("wrong")
        await page.get_by_role("button", name="Use this token").click()
        await page.get_by_text("did not accept the token").wait_for()
        assert client.token is not None
        await field.fill(client.token)
        await page.keyboard.press("Enter")
        await until_shown(page, "member", r"^2\s*2 ready")
        kept = await page.evaluate(
            "JSON.stringify([location.href, {...localStorage}, {...sessionStorage}, document.cookie])"
        )
        assert client.token not in kept
        await page.reload()
        await field.wait_for()
        assert complaints.unexpected == []
