"""The page and its connection: a coordinator that is started again, a tab that is hidden, memory that stays flat."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from epochal.coordinator.serve import ServeOptions, serving
from epochal.runtime.http.http_server import Endpoint
from tests.support.bounds import BOUND_S
from tests.support.browser.browser import opened
from tests.support.data.states import state_file
from tests.support.drive.restarted_run import restarted_run
from tests.support.drive.served import GENESIS
from tests.support.servers.certificates import self_signed
from tests.support.servers.nginx import with_locations
from tests.support.servers.ports import free_port

if TYPE_CHECKING:
    from playwright.async_api import Browser

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "dashboard.md"


async def test_page_says_that_the_coordinator_is_gone_and_comes_back(browser: "Browser", tmp_path: Path) -> None:
    state, options = state_file(), ServeOptions(str(tmp_path / "run"), Endpoint(port=free_port()), genesis=GENESIS)
    async with opened(browser) as (page, complaints):
        complaints.expected = ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "503"]  # while it starts
        connection = page.locator("#connection")
        async with serving(state, options) as running:
            await page.goto(running.url)
            await connection.get_by_text("Connected").wait_for()
        await connection.get_by_text("Connection lost").wait_for()
        async with serving(state, options) as running:
            await connection.get_by_text("Connected").wait_for()
            await page.locator(".lead").get_by_text("The run waits for members").wait_for()
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_page_of_a_run_that_goes_back_reads_its_history_again(browser: "Browser", tmp_path: Path) -> None:
    async with (
        restarted_run(tmp_path / "run", config__client_timeout_s=BOUND_S) as run,
        opened(browser) as (page, told),
    ):
        told.expected = ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "503", "404"]
        await run.play(2)
        await run.stop()
        run.copy_to(tmp_path / "copy")
        await run.start()
        await run.play(2)
        await page.goto(run.url)
        steps = page.locator("[data-figure=step]")
        await steps.get_by_text("4 of 1,000").wait_for()
        await run.stop()
        run.go_back_to(tmp_path / "copy")
        await run.start(is_restored=True)
        await steps.get_by_text("2 of 1,000").wait_for()
        await run.play(3)
        await steps.get_by_text("5 of 1,000").wait_for()
        assert told.unexpected == []


@pytest.mark.nightly
async def test_page_works_below_a_path_behind_a_proxy_with_tls(browser: "Browser", tmp_path: Path) -> None:
    documented = re.findall(
        r"^```nginx\n(.*?)^```", DOCUMENTATION.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    async with serving(state_file(), ServeOptions(str(tmp_path / "run"), Endpoint(port=0), genesis=GENESIS)) as running:
        locations = documented[0].replace("http://127.0.0.1:8000", running.url)
        with with_locations(tmp_path / "nginx", locations, self_signed(tmp_path)) as proxy:
            async with opened(browser) as (page, complaints):
                await page.goto(f"{proxy.url}/my-run#/round")
                await page.locator("#connection").get_by_text("Connected").wait_for()
                await page.get_by_text("No round has ended yet").first.wait_for()
                assert page.url.startswith(f"{proxy.url}/my-run/")
                assert complaints.unexpected == []


@pytest.mark.nightly
async def test_rows_that_the_page_keeps_have_a_maximum(browser: "Browser", tmp_path: Path) -> None:
    async with (
        serving(state_file(), ServeOptions(str(tmp_path / "run"), Endpoint(port=0), genesis=GENESIS)) as running,
        opened(browser) as (page, _),
    ):
        await page.goto(running.url)
        grown = """async () => {
            const { MAX_ROWS, Rounds } = await import("./dashboard/rounds.js");
            let rounds = new Rounds(), count = 0;
            const row = (number) => ({ number: [number], rounds: [1], step: [number + 7] });
            for (let number = 0; number < 3 * MAX_ROWS && rounds !== null; number += 1) {
                rounds = rounds.with(row(number));
                if (rounds !== null) count = rounds.length;
            }
            const some = [0, 1, 2].reduce((rows, number) => rows.with(row(number)), new Rounds());
            return [rounds, count === MAX_ROWS, some.with(row(4)), some.with(row(2)) === some];
        }"""
        assert await page.evaluate(grown) == [None, True, None, True]


async def test_events_are_told_from_pieces_however_they_are_cut(browser: "Browser", tmp_path: Path) -> None:
    async with (
        serving(state_file(), ServeOptions(str(tmp_path / "run"), Endpoint(port=0), genesis=GENESIS)) as running,
        opened(browser) as (page, _),
    ):
        await page.goto(running.url)
        cut = """async () => {
            const { EventParser } = await import("./dashboard/events.js");
            const text = [": alive", 'event: a\\nid: 1\\ndata: {"b":"c\\u2028: d"}', "retry: 5",
                "event: e\\ndata: [1]", ""].join("\\n\\n");
            const whole = JSON.stringify(new EventParser().take(text));
            for (let place = 0; place <= text.length; place += 1) {
                const parser = new EventParser();
                const told = [...parser.take(text.slice(0, place)), ...parser.take(text.slice(place))];
                if (JSON.stringify(told) !== whole) return `cut at ${place}`;
            }
            return JSON.parse(whole).map(({ kind, id }) => [kind, id]);
        }"""
        assert await page.evaluate(cut) == [["a", "1"], ["e", None]]
