"""The run's page says what is trained, shows the configuration, and at the end who took part and what came of it."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browser.browser import opened
from tests.support.browser.played_answers import play
from tests.support.drive.shown_run import shown_run
from tests.support.simulate.many_members import many_members

if TYPE_CHECKING:
    from playwright.async_api import Browser

GB = 1_000_000_000


def without_nothing(value: Any) -> Any:
    """JSON as TOML holds it: without what is not set, and whole numbers as such."""
    if isinstance(value, dict):
        return {name: without_nothing(found) for name, found in value.items() if found is not None}
    return [without_nothing(found) for found in value] if isinstance(value, list) else value


async def test_what_is_trained_stands_first(browser: "Browser", tmp_path: Path) -> None:
    location = {"Server": "data.example:9000"}
    async with (
        shown_run(tmp_path, rounds=1, model__LLM__data_location=location, model__LLM__tokenizer="ab" * 32) as run,
        opened(browser) as (page, complaints),
    ):
        await page.goto(run.url)
        guide = await run.asked("join")
        what = page.locator(".what")
        await what.get_by_text(f"n-gram of {guide['room']['parameter_count']} parameters").wait_for()
        said = await what.inner_text()
        assert "data server data.example:9000 · 16 tokens a sample · tokenizer abababababab…" in said
        assert await page.get_by_text(re.compile(r"^Since 20\d\d-")).is_visible()
        figures, chart = (
            await page.locator(".figures").bounding_box(),
            await page.locator("figure.chart").first.bounding_box(),
        )
        top = await what.bounding_box()
        assert top is not None
        assert figures is not None
        assert chart is not None
        assert top["y"] < figures["y"] < chart["y"]
        assert await page.get_by_label("Steps done").evaluate("(bar) => bar.value") == 1 / 1000
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_configuration_is_shown_as_a_state_file_has_it(browser: "Browser", tmp_path: Path) -> None:
    access = {"mode": "invitations", "invitations": ["ab" * 32]}
    async with shown_run(tmp_path, client_count=0, access=access) as run, opened(browser) as (page, complaints):
        await page.goto(run.url)
        await page.locator("summary", has_text="The run's configuration").click()
        await page.get_by_text("Without who may join").wait_for()
        shown = tomllib.loads(await page.get_by_label("Configuration as TOML").inner_text())
        document = (await run.asked("history/present"))["document"]
        assert shown == without_nothing(await run.asked(f"config/{document['config_sha256']}"))
        assert "access" not in shown
        written = await page.evaluate(
            """async () => {
                const { tomlOf } = await import("./dashboard/what_is_trained.js");
                const inner = { d: [1, "x\\"y"], e: {} };
                return tomlOf({ a: null, "b c": inner, at: "s3://name:word@host/place", n: { m: [{ k: 1.5 }] } });
            }"""
        )
        assert tomllib.loads(written) == {
            "b c": {"d": [1, 'x"y'], "e": {}}, "at": "s3://…@host/place", "n": {"m": [{"k": 1.5}]},
        }  # fmt: skip
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_finished_run_shows_who_took_part_and_what_came_of_it(browser: "Browser", tmp_path: Path) -> None:
    ending: dict[str, Any] = {"config__total_steps": 2, "config__cooldown_time": 0.2}
    async with shown_run(tmp_path, rounds=2, **ending) as run, opened(browser) as (page, complaints):
        await page.goto(run.url)
        await page.get_by_role("heading", name="What came of it").wait_for()
        assert (await page.locator(".lead").inner_text()).startswith("The run is finished: all 2 steps are done")
        told = await run.asked("members")
        tokens = {
            client_id[:12]: count
            for part in ("members", "gone")
            for client_id, count in zip(told[part]["client_id"], told[part]["tokens"], strict=True)
        }
        table = page.get_by_role("region", name="Who took part").locator("tbody tr")
        await table.nth(2).wait_for()
        shown = [row.split("\t") for row in await table.all_inner_texts()]
        assert {cells[0]: int(cells[1].replace(",", "")) for cells in shown} == tokens
        assert [cells[1] for cells in shown] == sorted((cells[1] for cells in shown), reverse=True)
        words = shlex.split(await page.get_by_label("Command that exports the model").inner_text())
        assert words == ["epochal", "export", run.url.rstrip("/"), "--out", "model"]
        last = (await run.asked("history"))["rounds"]["tokens_total"][-1]
        assert f"for {last:,} tokens" in await page.locator("section", has_text="What came of it").inner_text()
        await run.open(page, "members")
        await page.locator(".grid [role=gridcell] a").nth(2).wait_for()
        head = page.get_by_role("columnheader", name="Tokens", exact=True)
        assert await head.get_attribute("aria-sort") == "descending"
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_columns_of_gpus_are_there_where_they_are_reported(browser: "Browser", tmp_path: Path) -> None:
    async with shown_run(tmp_path, rounds=1) as run, opened(browser) as (page, complaints):
        few = many_members(3)
        for part in ("members", "gone"):
            for name in ("gpu_utilisation", "gpu_memory_bytes", "gpu_memory_total_bytes"):
                few[part].pop(name, None)
        await play(page, {"members": few})
        await run.open(page, "members")
        await page.locator(".grid [role=gridcell] a").first.wait_for()
        assert await page.get_by_role("columnheader", name="GPU").count() == 0
        some = {"gpu_utilisation": [0.5, None, 0.25], "gpu_memory_bytes": [GB, None, 2 * GB]}
        totals = {"gpu_memory_total_bytes": [4 * GB, None, 4 * GB]}
        await play(page, {"members": few | {"members": few["members"] | some | totals}})
        await page.get_by_role("columnheader", name="GPU use").wait_for()
        cells = page.locator(".grid-body .grid-row:not([hidden])", has_text=few["members"]["client_id"][0]).locator(
            "> *"
        )
        assert {"50 %", "1 GB of 4 GB"} <= set(await cells.all_inner_texts())
        assert complaints.unexpected == []


@pytest.mark.nightly
async def test_members_page_draws_its_rounds_and_its_gpus(browser: "Browser", tmp_path: Path) -> None:
    async with shown_run(tmp_path, rounds=3) as run, opened(browser) as (page, complaints):
        client_id = run.clients[0].client_id
        told = await run.asked(f"members/{client_id}")
        for found in told["rounds"]:
            found["figures"] |= {"gpu_utilisation": 0.5, "gpu_memory_bytes": GB, "gpu_memory_total_bytes": 4 * GB}
        await play(page, {f"members/{client_id}": told})
        await run.open(page, f"member/{client_id}")
        titles = page.locator("figure.chart figcaption")
        await titles.filter(has_text="GPU memory").wait_for()
        assert await titles.all_inner_texts() == [
            "Tokens per second", "Loss, nats per token", "Gradient norm", "GPU use", "GPU memory",
        ]  # fmt: skip
        facts = page.locator("dl.facts")
        await facts.get_by_text("of the run's").wait_for()
        await facts.get_by_text("rank 1 of 3").wait_for()
        assert complaints.unexpected == []
