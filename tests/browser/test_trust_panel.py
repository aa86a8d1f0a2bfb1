"""What the page says of trust, beside what the API tells: audits, vouched replicas, quarantine, refusals."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from epochal.runtime.explanations import explanations
from tests.support.browser.browser import opened
from tests.support.browser.played_answers import play
from tests.support.drive.shown_run import ShownRun, shown_run

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Route

AUDIT: dict[str, Any] = {
    "rounds": 3, "applied": 1234, "duplicates": 0, "missing": 0, "quarantined": 0, "unapplied": 12,
    "replay_identical": True, "record_chain": "ab" * 32, "replica_chain": "cd" * 32, "blobs": 4, "wrong_blobs": 0,
    "recomputed_steps": None, "replicas_identical": None, "problems": [], "remarks": ["the run goes on"],
}  # fmt: skip
WRONG_TOKEN = "not-a-token"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ShownRun]:
    async with shown_run(tmp_path_factory.mktemp("trust"), rounds=2) as shown:
        yield shown


async def shown(page: "Page", run: ShownRun) -> str:
    await run.open(page, "trust")
    await page.get_by_role("heading", name="Refusals", exact=True).wait_for()
    return str(await page.locator("main").inner_text())


async def test_replica_is_shown_with_those_who_vouched_for_it(browser: "Browser", run: ShownRun) -> None:
    told = (await run.asked("trust"))["vouched"]
    async with opened(browser) as (page, complaints):
        text = await shown(page, run)
        assert told["replica_digest"] in text
        assert f"{told['vouched']} of {told['witnesses']} witnesses; {told['quorum']} had to agree" in text
        assert told["quorum"] <= told["vouched"] <= told["witnesses"] == 3
        assert "None was reported." in text
        assert "No data left the run" in text
        assert complaints.unexpected == []


async def test_past_shows_the_explanation_of_then_and_says_that_trust_is_of_now(
    browser: "Browser", run: ShownRun
) -> None:
    version = (await run.asked("history"))["rounds"]["version"][0]
    async with opened(browser) as (page, complaints):
        await run.open(page, f"trust?version={version}")
        await page.get_by_text("The slider shows the past: this page is of now.").wait_for()
        await run.open(page, f"?version={version}")
        explained = (await run.asked(f"history/versions/{version}"))["explanation"]
        await page.get_by_text(explained).wait_for()
        assert complaints.unexpected == []


async def test_witnesses_of_long_ago_are_not_known(browser: "Browser", run: ShownRun) -> None:
    async def forgets(route: "Route") -> None:
        answer = await route.fetch()
        told = await answer.json() | {"vouched": None, "is_vouched_known": False}
        await route.fulfill(response=answer, json=told)

    async with opened(browser) as (page, _):
        await page.route("**/trust", forgets)
        await run.open(page, "trust")
        await page.get_by_text("who vouched for the last replica is not known").wait_for()
        assert (
            "not known: the last applied round is in a part of the journal" in await page.locator("main").inner_text()
        )


async def test_audit_is_shown_once_it_was_reported(browser: "Browser", run: ShownRun) -> None:
    headers = {"Authorization": f"Bearer {run.admin_token}"}
    async with opened(browser) as (page, _):
        await shown(page, run)
        url = f"{run.coordinator.run_url}/audits"
        assert (await run.coordinator.http.post(url, json=AUDIT, headers=headers)).status_code == 204
        await page.get_by_text("1,234 applied, 0 twice, 0 missing, 0 quarantined, 12 not yet applied").wait_for()
        text = await page.locator("main").inner_text()
        assert "no problem was found" in text
        assert AUDIT["record_chain"] in text
        assert "the run goes on" in text


async def test_every_refusal_is_counted_by_kind(browser: "Browser", run: ShownRun) -> None:
    headers = {"Authorization": f"Bearer {WRONG_TOKEN}"}
    for _ in range(2):
        answer = await run.coordinator.http.post(f"{run.coordinator.run_url}/pause", headers=headers)
        assert answer.status_code == 403
    told = {found["kind"]: found["count"] for found in (await run.asked("trust"))["refused_requests"]}
    assert told["forbidden"] == 2
    async with opened(browser) as (page, _):
        await shown(page, run)
        rows = await page.locator("[data-part=requests] tbody tr").all_inner_texts()
        rows += await page.locator("[data-part=usual] tbody tr").all_inner_texts()
        assert {row.split("\t")[0]: int(row.split("\t")[1]) for row in rows} == told


async def test_usual_refusals_stand_apart_and_each_kind_is_explained(browser: "Browser", run: ShownRun) -> None:
    view = await run.asked("trust")
    counts = {"stale-round": 19, "forbidden": 2, "rate-limited": 40, "of-a-later-version": 1}
    view |= {"refused_requests": [{"kind": kind, "count": count} for kind, count in counts.items()]}
    async with opened(browser) as (page, complaints):
        await play(page, {"trust": view})
        await shown(page, run)
        parts = ("requests", "usual")
        rows = {part: await page.locator(f"[data-part={part}] tbody tr").all_inner_texts() for part in parts}
        assert [row.split("\t")[:2] for row in rows["usual"]] == [["rate-limited", "40"], ["stale-round", "19"]]
        assert [row.split("\t")[0] for row in rows["requests"]] == ["forbidden", "of-a-later-version"]
        assert explanations()["forbidden"].summary in rows["requests"][0]
        assert rows["requests"][1].split("\t")[2] == ""
        async with page.context.expect_page() as opening:
            await page.get_by_role("link", name="stale-round").click()
        explained = await opening.value
        await explained.get_by_role("heading", name="stale round").wait_for()
        assert complaints.unexpected == []


async def test_quarantine_names_batches_reasons_and_members(browser: "Browser", run: ShownRun) -> None:
    client_id, other = "ab" * 16, "cd" * 16
    failed = {
        "batch_id": {"start": 17, "end": 20},
        "clients": [client_id, other],
        "message": "corrupt: bad <b>shard</b>",
    }
    view = await run.asked("trust")
    view |= {"quarantined_batches": 5, "quarantined": [failed], "names": {client_id: "lab 1"}}
    view |= {"refusals": [{"kind": "result-invalid", "count": 2}, {"kind": "corrupt", "count": 7}]}
    async with opened(browser) as (page, _):
        await play(page, {"trust": view})
        text = await shown(page, run)
        row = await page.locator("[data-part=quarantine] tbody tr").inner_text()
        assert row == f"17 to 20\tcorrupt: bad <b>shard</b>\tlab 1, {other[:12]}"
        assert await page.get_by_role("link", name="lab 1").get_attribute("href") == f"#/member/{client_id}"
        assert "5 batches left the run" in text
        kinds = await page.locator("[data-part=refusals] tbody tr").all_inner_texts()
        assert [row.split("\t")[:2] for row in kinds] == [["corrupt", "7"], ["result-invalid", "2"]]
        assert explanations()["corrupt-data"].summary in kinds[0]


async def test_problems_of_an_audit_are_said_first(browser: "Browser", run: ShownRun) -> None:
    report = AUDIT | {"problems": ["batch 7 was applied twice"], "duplicates": 1}
    view = await run.asked("trust")
    view |= {"audit": {"report": report, "step": 2, "recorded_s": view["at_s"] - 60}}
    async with opened(browser) as (page, _):
        await play(page, {"trust": view})
        text = await shown(page, run)
        assert "The last audit found 1 problem, 1 min ago" in text
        assert "batch 7 was applied twice" in text
