"""Hostile text in every field that a client may choose is shown as text, and nothing of it is obeyed."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from epochal.state.client_names import name_mistake
from epochal.state.messages.member_rows import MEMBER_FIGURES
from epochal.state.messages.requests import Capabilities, FailureReport
from tests.support.browser.browser import opened
from tests.support.browser.played_answers import Requests, play
from tests.support.data import hostile_texts
from tests.support.data.hostile_texts import TEXTS, assert_only_text
from tests.support.drive.served import WireClient
from tests.support.drive.shown_run import ShownRun, shown_run
from tests.support.thinned import thinned

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

ID = "{:032x}".format
FIGURES = {
    "ready": True, "in_roster": True, "share": 1.0, "claim": 1, "missed": 1, "rest_s": None, "silent_s": 1.0,
    "joined_s": 1.7e9, "left": "", "applied": 1, "lost": 1, "tokens": 1, "tokens_per_s": 1.0, "last_loss": 1.0,
    "data_wait": 0.5, "data_wait_s": 1.0, "train_s": 1.0, "result_bytes": 1, "uploaded_bytes": None,
    "gpu_memory_bytes": None, "gpu_memory_total_bytes": None, "gpu_utilisation": None,
    "downloaded_bytes": None, "part": 0.5, "factor": 0.5, "ahead_step": None,
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ShownRun]:
    async with shown_run(tmp_path_factory.mktemp("hostile"), client_count=2) as shown:
        yield shown


def row(number: int, text: str) -> dict[str, Any]:
    return {"client_id": ID(number), "name": text, "software": text, "trainer": text, "last_miss": text, **FIGURES}


def columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [found[name] for found in rows] for name in MEMBER_FIGURES}


def members_page() -> dict[str, Any]:
    rows = [row(number, text) for number, text in enumerate(TEXTS)]
    return {"members": columns(rows), "gone": columns([{**rows[0], "client_id": ID(99), "left": hostile_texts.SCRIPT}])}


def detail(text: str) -> dict[str, Any]:
    figures = {
        "client_id": ID(1), "batches": 1, "fate": "failed", "detail": text, "loss": None,
    }  # fmt: skip
    one = {"number": 1, "epoch": 1, "step": 1, "attempt": 0, "started_s": 1.0, "ended_s": 2.0, "figures": figures}
    return {
        "figures": row(1, text), "rounds": [one], "refusals": [{"kind": text, "count": 1}],
        "last_refusals": [{"kind": text, "detail": text, "step": 1, "at_s": 1.0}],
        "quarantined": [],
    }  # fmt: skip


async def check(page: "Page", run: ShownRun, requests: Requests) -> None:
    await assert_only_text(page, urlsplit(run.url).netloc, requests.hosts)


@thinned("size", ["phone", "laptop"], kept=1)
async def test_hostile_names_in_the_table_are_text(browser: "Browser", run: ShownRun, size: str) -> None:
    async with opened(browser, size) as (page, complaints):
        requests = Requests(page)
        await play(page, {"members": members_page()})
        await run.open(page, "members")
        await page.get_by_text(f"{len(TEXTS)} members", exact=True).wait_for()
        await check(page, run, requests)
        shown = await page.locator(".grid-body .grid-row:visible").all_inner_texts()
        assert len(shown) == len(TEXTS)
        assert any(hostile_texts.SCRIPT in text for text in shown)
        heights = await page.evaluate(
            "[...document.querySelectorAll('.grid-body .grid-row:not([hidden]) > *')].map((cell) => cell.offsetHeight)"
        )
        assert len(set(heights)) == 1, "marks and long words stay within their row"
        await page.get_by_label("Find by").fill("<script>")
        await page.get_by_text("1 shown;").wait_for()
        await page.get_by_label("State").select_option("left")
        await page.get_by_text("1 shown;").wait_for()
        await check(page, run, requests)
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_hostile_words_on_a_members_page_are_text(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser, "phone") as (page, complaints):
        requests = Requests(page)
        for number, text in enumerate(TEXTS):
            await page.unroute_all()
            await play(page, {f"members/{ID(number)}": detail(text)})
            await run.open(page, f"member/{ID(number)}")
            await page.get_by_role("heading", name="Its last rounds").wait_for()
            await check(page, run, requests)
        assert complaints.unexpected == []


async def test_hostile_address_of_a_member_is_text(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, complaints):
        requests = Requests(page)
        for text in (hostile_texts.SCRIPT, hostile_texts.BIDI, "..%2F..%2Fpause"):
            await run.open(page, f"member/{text}")
            await page.get_by_text("is no member's id").wait_for()
            await check(page, run, requests)
        assert not [request.url for request in requests.made if "members/" in request.url]
        assert complaints.unexpected == []


async def test_hostile_words_through_the_real_api_are_text(browser: "Browser", run: ShownRun) -> None:
    """The API takes names, trainers and failures with every text whose characters are all seen, and no others."""
    for number, text in enumerate(TEXTS, start=100):
        client = WireClient(run.coordinator, number)
        client.capabilities = Capabilities(trainer=text[:64], codecs=client.capabilities.codecs)
        asked = await client.join_request()
        expected = 200 if name_mistake(text[:64]) is None else 422
        joined = await client.send("POST", "/clients", replace(asked, name=None))
        assert joined.status_code == expected, joined.text
        client.capabilities = Capabilities(codecs=client.capabilities.codecs)
        assert (await client.send("POST", "/clients", await client.join_request())).status_code == 200
        answer = await client.send("POST", "/clients", replace(await client.join_request(), name=text[:64]))
        assert answer.status_code == expected
    current = run.coordinator.service.run.round
    assert current is not None
    failure = FailureReport(
        current.number.step,
        current.number.attempt,
        "trainer",
        " ".join(text for text in TEXTS if text.isprintable())[:500],
    )
    assert (await run.clients[0].send("POST", "/failures", failure)).status_code == 200
    async with opened(browser) as (page, complaints):
        requests = Requests(page)
        await run.open(page, "members")
        await page.get_by_text(f"{len(TEXTS) + 2} members", exact=True).wait_for()
        await check(page, run, requests)
        await run.open(page, f"member/{run.clients[0].client_id}")
        await page.get_by_role("heading", name="Refusals and failures").wait_for()
        await check(page, run, requests)
        for place in ("", "round", "operate", "join"):
            await run.open(page, place)
            await page.get_by_role("heading", level=1).wait_for()
            await check(page, run, requests)
        assert complaints.unexpected == []
