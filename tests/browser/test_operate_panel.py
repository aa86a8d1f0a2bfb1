"""An operator's actions on the page: each asks first, says how it went, and leaves the token in memory only."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from epochal.state.phase_names import RunState
from tests.support.bounds import BOUND_S
from tests.support.browser.browser import opened
from tests.support.browser.played_answers import Requests
from tests.support.drive.shown_run import ShownRun, shown_run

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

KEPT = """async () => JSON.stringify([
    {...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state, window.name,
    await indexedDB.databases(), await caches.keys(), document.documentElement.outerHTML,
    [...document.querySelectorAll("input")].map((input) => input.value),
])"""
"""Everything of a page that lasts, or that others can read."""


@pytest_asyncio.fixture(loop_scope="session")
async def run(tmp_path: Path) -> AsyncIterator[ShownRun]:
    async with shown_run(tmp_path, client_count=2) as shown:
        yield shown


async def enter(page: "Page", run: ShownRun, token: str) -> None:
    await run.open(page, "operate")
    await page.get_by_label("Token").fill(token)
    await page.keyboard.press("Enter")
    await page.get_by_text("The coordinator accepts the admin token").wait_for()


async def act(page: "Page", name: str, answer: str) -> None:
    """Press an action's button, and answer the question."""
    await page.get_by_role("button", name=name).click()
    await page.get_by_role("dialog").get_by_role("button", name=answer, exact=True).click()


async def until(run: ShownRun, phase: RunState) -> None:
    async with asyncio.timeout(BOUND_S):
        service = run.coordinator.service
        while service.run.clock.phase is not phase:
            await service.readers.wait_published(service.published.version, None, 1.0)


async def test_run_is_paused_and_resumed_after_a_question(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, complaints):
        await enter(page, run, run.admin_token)
        await act(page, "Pause…", "Pause")
        await page.get_by_text("The run pauses after this round.").wait_for()
        assert run.coordinator.service.run.progress.pause_pending
        await act(page, "Resume…", "Resume")
        await page.get_by_text("The run goes on.").wait_for()
        assert not run.coordinator.service.run.progress.pause_pending
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_run_is_ended_after_a_step_and_that_is_taken_back(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, _):
        await enter(page, run, run.admin_token)
        await page.get_by_label("Last step").fill("7")
        await act(page, "End after this step…", "End the run")
        await page.get_by_text("The run ends after step 7.").wait_for()
        assert (await run.asked("status"))["finish_after"] == 7
        await act(page, "Take the end back…", "Take it back")
        await page.get_by_text("The run ends as its state file says.").wait_for()
        await page.get_by_role("cell", name="the end taken back").wait_for()
        assert (await run.asked("status"))["finish_after"] is None
        await page.get_by_label("Last step").fill("0")
        await page.get_by_role("button", name="End after this step…").click()
        await page.get_by_text("must be a whole number, 1 or more").wait_for()


@pytest.mark.nightly
async def test_invitation_is_shown_once_with_the_command(browser: "Browser", tmp_path: Path) -> None:
    access = {"mode": "invitations", "invitations": ["ab" * 32]}
    async with shown_run(tmp_path, client_count=0, access=access) as run, opened(browser) as (page, _):
        await enter(page, run, run.admin_token)
        await page.get_by_label("How many clients").fill("2")
        await act(page, "Invite…", "Invite")
        code = await page.get_by_label("Invitation code").inner_text()
        command = await page.get_by_label("Command that joins with the invitation").inner_text()
        assert f"--invitation {code}" in command
        told = (await run.asked("invitations", run.admin_token))["invitations"]
        assert [(found["uses"], found["used"]) for found in told] == [(2, 0)]
        assert told[0]["expires_s"] - told[0]["made_s"] == pytest.approx(24 * 3600, abs=1)
        await page.reload()
        await page.get_by_role("heading", name="Actions so far").wait_for()
        assert code not in await page.locator("main").inner_text()


@pytest.mark.nightly
async def test_every_action_is_listed_with_its_time(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, _):
        await enter(page, run, run.admin_token)
        await act(page, "Pause…", "Pause")
        await page.get_by_text("The run pauses after this round.").wait_for()
        await act(page, "Resume…", "Resume")
        rows = page.get_by_role("region", name="Actions so far").locator("tbody tr")
        await rows.nth(2).wait_for()
        told = (await run.asked("actions"))["actions"]
        shown = [text.split("\t") for text in await rows.all_inner_texts()]
        assert (
            [cells[1] for cells in shown] == [found["name"] for found in told][::-1] == ["resume", "pause", "genesis"]
        )
        for cells, found in zip(shown, reversed(told), strict=True):
            assert await page.evaluate("(at) => new Date(at).getTime() / 1000", cells[0]) == int(found["at_s"])


async def test_nothing_is_sent_unless_the_question_is_answered(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, _):
        await enter(page, run, run.admin_token)
        requests = Requests(page)
        await page.get_by_role("button", name="Pause…").click()
        await page.keyboard.press("Escape")
        await page.get_by_text("Nothing was done.").wait_for()
        await act(page, "Pause…", "Cancel")
        await page.get_by_role("dialog").wait_for(state="detached")
        assert [request.url for request in requests.made if request.method != "GET"] == []
        assert not run.coordinator.service.run.progress.pause_pending


@pytest.mark.nightly
async def test_focus_is_in_the_question_and_then_where_it_was(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, _):
        await enter(page, run, run.admin_token)
        focused = "document.activeElement.textContent"
        await page.get_by_role("button", name="Pause…").press("Enter")
        assert await page.evaluate(focused) == "Cancel"
        for _ in range(5):  # the browser keeps the focus within the question, or gives it its own tools
            await page.keyboard.press("Tab")
            assert await page.evaluate("document.activeElement.closest('dialog, body').tagName") in ("DIALOG", "BODY")
            assert await page.evaluate("document.activeElement.closest('main')") is None
        await page.keyboard.press("Escape")
        assert await page.evaluate(focused) == "Pause…"


@pytest.mark.nightly
async def test_only_what_can_be_done_now_can_be_pressed(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, _):
        await enter(page, run, run.admin_token)
        enabled = page.locator("section.action button:enabled")
        await page.get_by_role("button", name="Take the end back…", disabled=True).wait_for()
        await page.get_by_text("nobody needs an invitation").wait_for()
        assert await enabled.all_inner_texts() == ["Pause…", "End after this step…", "Eject…"]
        await page.get_by_role("button", name="Pause…").focus()
        await act(page, "Pause…", "Pause")
        await page.get_by_role("button", name="Pause…", disabled=True).wait_for()
        assert "Resume…" in await enabled.all_inner_texts()
        assert await page.evaluate("document.activeElement.textContent") == "Resume…"
        await page.get_by_role("button", name="Eject…").click()
        await page.get_by_text("Choose a member first.").wait_for()


async def test_wrong_token_is_refused_in_words(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, complaints):
        complaints.expected.append("403")
        await run.open(page, "operate")
        await page.get_by_label("Token").fill("not-the-token")
        await page.keyboard.press("Enter")
        await page.get_by_text("This is not the run's admin token.").wait_for()
        assert await page.get_by_role("button", name="Pause…").count() == 0
        assert await page.get_by_label("Token").is_visible()


@pytest.mark.nightly
async def test_member_is_ejected_from_its_own_page(browser: "Browser", run: ShownRun) -> None:
    client_id = run.clients[1].client_id
    async with opened(browser) as (page, _):
        await enter(page, run, run.admin_token)
        await run.open(page, f"operate/eject/{client_id}")
        await page.locator(f"option[value='{client_id}']:checked").wait_for(state="attached")
        await act(page, "Eject…", "Eject")
        await page.get_by_text("was ejected").wait_for()
        assert client_id not in run.coordinator.service.run.members


@pytest.mark.nightly
async def test_token_that_opened_the_page_can_be_used_again(browser: "Browser", tmp_path: Path) -> None:
    async with (
        shown_run(tmp_path, client_count=2, access__dashboard="admin") as run,
        opened(browser) as (page, complaints),
    ):
        complaints.expected.append("401")
        await run.open(page, "operate")
        await page.get_by_role("heading", name="Who are you?").wait_for()
        await page.get_by_label("Token").fill(run.admin_token)
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Use the token that opened this page").click()
        await act(page, "Pause…", "Pause")
        await page.get_by_text("The run pauses after this round.").wait_for()
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_token_is_in_no_storage_address_log_or_trace(
    browser: "Browser", run: ShownRun, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = run.admin_token
    async with opened(browser) as (page, _):
        await browser.start_tracing(page=page)
        requests = Requests(page)
        await enter(page, run, token)
        await act(page, "Pause…", "Pause")
        await page.get_by_text("The run pauses after this round.").wait_for()
        await run.open(page, "join")
        await run.open(page, "operate")
        await page.get_by_text("The coordinator accepts the admin token").wait_for()
        kept, state = await page.evaluate(KEPT), await page.context.storage_state()
        traced = await browser.stop_tracing()
        shown = [request for request in requests.made if "authorization" in await request.all_headers()]
        assert [request.url.rpartition("/")[2] for request in shown] == ["invitations", "pause"]
        assert not [
            request.url for request in requests.made if token in request.url or token in (request.post_data or "")
        ]
    assert token not in kept
    assert token not in str(state)
    assert token.encode() not in traced
    assert len(traced) > 1000
    assert token not in caplog.text
