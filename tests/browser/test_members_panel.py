"""The table of members and a member's own page, beside what the API tells; sorting, filtering, and many rows."""

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from epochal.cli.output.client_log import member_page
from epochal.state.messages.verification_views import ClassDistances, VerificationView
from epochal.state.shown.verification_words import NOT_VERIFIED, verification_words
from epochal.state.wire import parse_document
from tests.support.browser.browser import opened
from tests.support.browser.played_answers import play
from tests.support.drive.shown_run import ShownRun, shown_run
from tests.support.simulate.many_members import many_members

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

MANY = 10_000
COLUMNS = ("Member", "State", "Batches", "Loss", "Results applied", "Results lost", "Version", "Id")
IN_SIGHT = ".grid-body .grid-row:not([hidden])"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ShownRun]:
    async with shown_run(tmp_path_factory.mktemp("members"), rounds=3) as shown:
        yield shown


@pytest.fixture(scope="module")
def many() -> dict[str, Any]:
    return many_members(MANY)


async def rows(page: "Page") -> list[dict[str, str]]:
    """The rows in sight as dictionaries by the columns' titles, from the top to the bottom."""
    heads = await page.get_by_role("columnheader").all_inner_texts()
    titles = [head.split("\n")[0].strip(" ▲▼") for head in heads]
    found = await page.evaluate(
        """(rows) => [...document.querySelectorAll(rows)]
            .map((row) => [Number(row.ariaRowIndex), [...row.children].map((cell) => cell.textContent)])
            .sort((first, second) => first[0] - second[0]).map(([, cells]) => cells)""",
        IN_SIGHT,
    )
    return [dict(zip(titles, cells, strict=True)) for cells in found]


async def said(page: "Page", text: str) -> None:
    await page.locator("main").get_by_text(text, exact=True).wait_for()


async def test_table_shows_what_the_api_tells(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, complaints):
        await run.open(page, "members")
        await said(page, "3 members")
        told = (await run.asked("members"))["members"]
        shown = {row["Id"]: row for row in await rows(page)}
        assert set(shown) == set(told["client_id"])
        for place, client_id in enumerate(told["client_id"]):
            row = shown[client_id]
            assert row["Member"] == (told["name"][place] or client_id[:12])
            assert row["State"] == ("in the round" if told["in_roster"][place] else "ready")
            assert row["Batches"] == f"{told['share'][place]:g}"
            assert row["Loss"] == f"{told['last_loss'][place]:g}"
            assert row["Results applied"] == str(told["applied"][place])
            assert row["Results lost"] == str(told["lost"][place])
            assert row["Version"] == told["software"][place]
            assert row["Trainer"] == told["trainer"][place] == "by hand"
        assert complaints.unexpected == []


async def test_verification_is_shown_in_its_sentences(browser: "Browser", run: ShownRun) -> None:
    """Those of the run, and those of one in which somebody was convicted and classes have tolerances."""
    told = (await run.asked("verification")) | {"percent": 5, "drawn": 9, "passed": 8, "convicted": 1, "verifiers": 1}
    told["classes"] = [asdict(ClassDistances("bf16/gpu", "float32/cpu", 8, 0.02, 0.04, 8, 0.01, 0.03))]
    told |= {"convictions": [{"client_id": "ab" * 16, "found": "1.2 (of 0.04) by one"}], "false_alarms_below": 0.375}
    view = parse_document(VerificationView, json.dumps(told).encode())
    words = verification_words(view)
    assert {word.split(":")[0] for word in words} > {"False alarms", "Convicted"}
    async with opened(browser) as (page, complaints):
        await run.open(page, "members")
        await page.get_by_role("listitem").get_by_text(NOT_VERIFIED, exact=True).wait_for()
        await play(page, {"verification": {"sentences": list(words)}})
        await page.reload()
        for word in words:
            await page.get_by_role("listitem").get_by_text(word, exact=True).wait_for()
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_round_that_ends_is_in_the_table_without_a_reload(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, _):
        await run.open(page, "members")
        await said(page, "3 members")
        before = int((await rows(page))[0]["Results applied"])
        await run.play()
        await page.locator(IN_SIGHT).first.get_by_text(str(before + 1), exact=True).wait_for()


@pytest.mark.nightly
async def test_each_column_sorts_both_ways(browser: "Browser", run: ShownRun, many: dict[str, Any]) -> None:
    async with opened(browser, "4k") as (page, _):
        await play(page, {"members": many})
        await run.open(page, "members")
        await said(page, "10,000 members")
        columns = many["members"]
        for title, name in (("Speed (tokens/s)", "tokens_per_s"), ("Loss", "last_loss"), ("Results lost", "lost")):
            known = sorted(value for value in columns[name] if value is not None)
            button = page.get_by_role("button", name=title)
            for edge in (known[-1], known[0]):  # numbers: the largest first
                await button.click()
                row = (await rows(page))[0]
                place = columns["client_id"].index(row["Id"])
                assert columns[name][place] == edge, title
        await page.get_by_role("button", name="Id", exact=True).click()
        assert (await rows(page))[0]["Id"] == min(columns["client_id"])
        head = page.get_by_role("columnheader", name="Id", exact=True)
        assert await head.get_attribute("aria-sort") == "ascending"


@pytest.mark.nightly
async def test_unknown_values_are_last_either_way(browser: "Browser", run: ShownRun, many: dict[str, Any]) -> None:
    async with opened(browser) as (page, _):
        await play(page, {"members": many})
        await run.open(page, "members")
        await said(page, "10,000 members")
        for _ in range(2):
            await page.get_by_role("button", name="Speed").click()
            assert (await rows(page))[0]["Speed (tokens/s)"] != "–"
            await page.get_by_role("grid").press("Control+End")
            assert (await rows(page))[-1]["Speed (tokens/s)"] == "–"


@pytest.mark.nightly
async def test_filter_finds_by_name_id_version_and_state(
    browser: "Browser", run: ShownRun, many: dict[str, Any]
) -> None:
    columns = many["members"]
    async with opened(browser) as (page, _):
        await play(page, {"members": many})
        await run.open(page, "members")
        await said(page, "10,000 members")
        field = page.get_by_label("Find by")
        await field.fill("LAB-77")
        wanted = sum("lab-77" in name for name in columns["name"])
        await said(page, f"{wanted} shown; 10,000 members in all")
        await field.fill(f"0.9.1 {columns['client_id'][1][:16]}")
        await said(page, "1 shown; 10,000 members in all")
        await field.fill("nobody has this name")
        await page.get_by_text("No member is found here.").wait_for()
        await field.fill("")
        await page.get_by_label("State").select_option("resting")
        wanted = sum(rest is not None for rest in columns["rest_s"])
        await said(page, f"{wanted:,} shown; 10,000 members in all")
        await page.get_by_label("State").select_option("training ahead")
        wanted = sum(step is not None for step in columns["ahead_step"])  # none of them rests
        await said(page, f"{wanted:,} shown; 10,000 members in all")
        assert {row["State"] for row in await rows(page)} == {"training ahead, step 7"}


@pytest.mark.nightly
async def test_those_that_have_left_are_shown_if_wanted(
    browser: "Browser", run: ShownRun, many: dict[str, Any]
) -> None:
    few = {name: values[:4] for name, values in many["members"].items()}
    gone = {name: values[4:6] for name, values in many["members"].items()} | {"left": ["withdrew", "fell silent"]}
    async with opened(browser) as (page, complaints):
        await play(page, {"members": many | {"members": few, "gone": gone}})
        await run.open(page, "members")
        await said(page, "4 members")
        await page.get_by_label("Show those that have left").check()
        await said(page, "6 shown; 4 members in all")
        assert {row["State"] for row in await rows(page)} >= {"withdrew", "fell silent"}
        await page.get_by_label("Show those that have left").uncheck()
        await said(page, "4 members")
        await play(page, {"members": many | {"members": {name: [] for name in few}, "gone": gone}})
        await page.reload()
        await said(page, "No member is present; those that took part have left")
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_few_elements_show_ten_thousand_rows(browser: "Browser", run: ShownRun, many: dict[str, Any]) -> None:
    async with opened(browser) as (page, _):
        await play(page, {"members": many})
        await run.open(page, "members")
        await said(page, "10,000 members")
        grid = page.get_by_role("grid")
        assert await grid.get_attribute("aria-rowcount") == "10001"
        await grid.press("Control+End")
        last = (await rows(page))[-1]
        assert await page.locator(".grid-row").count() < 60
        columns = many["members"]
        unnamed = [found for found, name in zip(columns["client_id"], columns["name"], strict=True) if not name]
        assert last["Id"] == max(unnamed)
        indices = await page.evaluate(
            "(rows) => [...document.querySelectorAll(rows)].map((row) => Number(row.getAttribute('aria-rowindex')))",
            IN_SIGHT,
        )
        assert max(indices) == MANY + 1
        for key, moved in (("PageUp", -1), ("ArrowUp", -1), ("Home", 0), ("Control+Home", -1)):
            before = await grid.get_attribute("aria-activedescendant")
            await grid.press(key)
            after = await grid.get_attribute("aria-activedescendant")
            assert moved == 0 or before != after, key
        assert await page.evaluate("document.querySelector('.grid').scrollTop") == 0


@pytest.mark.nightly
async def test_clients_page_is_the_address_in_its_log(browser: "Browser", run: ShownRun) -> None:
    client = run.clients[0]
    async with opened(browser) as (page, complaints):
        await page.goto(member_page(run.url, client.client_id))
        await page.get_by_role("heading", name=f"Member {client.client_id[:12]}").wait_for()
        told = await run.asked(f"members/{client.client_id}")
        facts = await page.locator("dl.facts").inner_text()
        assert client.client_id in facts
        assert f"{told['figures']['applied']} applied, {told['figures']['lost']} lost" in facts
        assert f"{told['figures']['tokens']:,} applied" in facts
        shown = await page.get_by_role("region", name="Its last rounds").locator("tbody tr").all_inner_texts()
        assert [text.split("\t")[0] for text in shown] == [str(found["step"]) for found in told["rounds"]][::-1]
        assert all("applied" in text for text in shown)
        assert await page.get_by_text("Nothing of it was refused.").count() == 1
        assert complaints.unexpected == []


async def test_unknown_member_is_said_to_be_unknown(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, complaints):
        complaints.expected.append("404")
        await run.open(page, f"member/{'ab' * 16}")
        await page.get_by_text("it has not joined this run, or left long ago").wait_for()
