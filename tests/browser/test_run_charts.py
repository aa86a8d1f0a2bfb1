"""The run's charts: figures as a file and back, another run beside, marks, controls that wait, axes from zero."""

import asyncio
import csv
import io
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from epochal.state.model.replica import replica_digest
from epochal.state.shown.smoothing import smoothed
from tests.support.browser.browser import SIZES, opened
from tests.support.drive.served import REPLICA
from tests.support.drive.shown_run import ShownRun, shown_run

if TYPE_CHECKING:
    from playwright.async_api import Browser, Locator, Page, Route

ROUNDS = 4
SEED = 7
CASES = 40
LOSS = "Loss, nats per token"
NARROW_PX = 320


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ShownRun]:
    async with shown_run(tmp_path_factory.mktemp("charts"), rounds=ROUNDS) as shown:
        yield shown


def chart_of(page: "Page", title: str) -> "Locator":
    return page.locator("figure.chart", has_text=title)


async def drawn(page: "Page", run: ShownRun) -> None:
    await page.goto(run.url)
    await page.locator("figure.chart canvas").first.wait_for()
    await page.locator("[data-figure='training loss']", has_text="nats").wait_for()


async def saved(page: "Page", title: str = LOSS) -> str:
    """The text of the file that a chart's button makes."""
    async with page.expect_download() as downloading:
        await chart_of(page, title).get_by_role("button", name="Figures as a file").click()
    path = await (await downloading.value).path()
    return await asyncio.to_thread(path.read_text, "utf-8")


@pytest.mark.nightly
async def test_figures_of_a_chart_are_a_file_that_spreadsheets_read(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, complaints):
        await drawn(page, run)
        rows = list(csv.DictReader(io.StringIO(await saved(page))))
        told = (await run.asked("history"))["rounds"]
        for name, column in (
            ("step", "step"),
            ("tokens_total", "tokens_total"),
            ("ended_s", "ended_s"),
            ("loss", "training"),
        ):
            assert [float(row[column]) for row in rows] == told[name]
        speeds = list(csv.DictReader(io.StringIO(await saved(page, "Tokens per second"))))
        assert [float(row["step"]) for row in speeds] == told["step"]
        assert complaints.unexpected == []


async def chosen(page: "Page", name: str, text: str) -> None:
    await page.locator("summary", has_text="Compare").click()
    await page.locator("input[type=file]").set_input_files({"name": name, "mimeType": "", "buffer": text.encode()})


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["csv", "json"])
async def test_another_run_is_a_line_beside(browser: "Browser", run: ShownRun, kind: str) -> None:
    async with opened(browser) as (page, complaints):
        await drawn(page, run)
        text = await saved(page) if kind == "csv" else json.dumps(await run.asked("history"))
        beside = chart_of(page, "Members")
        await beside.locator("summary").click()
        await chosen(page, f"other <b>.{kind}", text)
        await page.get_by_text(f"{ROUNDS} rows of other <b>.{kind}").wait_for()
        chart = chart_of(page, LOSS)
        assert f"training of other <b>.{kind}" in await chart.locator(".legend").inner_text()
        assert await beside.locator("tbody tr").count() == ROUNDS, "the other charts stay as they are"
        await chart.locator("summary").click()
        cells = [row.split("\t") for row in await chart.locator("tbody tr").all_inner_texts()]
        heads = await chart.locator("thead th").all_inner_texts()
        theirs = heads.index(f"training of other <b>.{kind}")
        assert [row[theirs] for row in cells] == [row[heads.index("training")] for row in cells], "the same run"
        await page.get_by_role("button", name="Take it away").click()
        await chart.locator(".legend", has_text="other").wait_for(state="detached")
        assert complaints.unexpected == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no column “training”"),
        ("step,loss\n", "it has 0 rows; allowed: 1 to 200000"),
        ("step,loss\n1,2,3\n", "row 1 of it has 3 fields, its first line 2"),
        ("step,loss\n1,much\n", "“much” in row 1 of its column “loss” is no number"),
        ("step,speed\n1,2\n", "no column “training”; allowed: the CSV of a loss chart"),
        ("loss,training\n1,2\n", "no column “step”"),
        ("step,loss\n,2\n", "a row of it has no step"),
        ('{"rounds": {"step": [1], "loss": [1, 2]}}', "its column “loss” is not as long"),
        ('{"step": [1], "loss": ["<img src=x>"]}', "“<img src=x>” in row 1"),
        ("{", "it begins as JSON and is none"),
        ("x" * 5000, "a line of it has more than 4000 characters"),
    ],
)
async def test_file_that_is_none_is_said_to_be(browser: "Browser", run: ShownRun, text: str, why: str) -> None:
    async with opened(browser) as (page, complaints):
        await drawn(page, run)
        await chosen(page, "bad.csv", text)
        said = page.get_by_role("status").filter(has_text="bad.csv cannot be compared")
        assert why in await said.inner_text()
        assert "bad.csv" not in await chart_of(page, LOSS).locator(".legend").inner_text()
        assert complaints.unexpected == []


async def test_smoothed_loss_is_that_of_the_reports(browser: "Browser", run: ShownRun) -> None:
    made = random.Random(SEED)
    cases: list[Any] = []
    for _ in range(CASES):
        xs = sorted(made.sample(range(1000), made.randint(1, 60)))
        losses = [None if made.random() < 0.1 else made.uniform(0, 10) for _ in xs]
        cases.append([xs, losses, [made.randint(1, 9) for _ in xs], made.uniform(0, 200)])
    async with opened(browser) as (page, _):
        await drawn(page, run)
        found = await page.evaluate(
            """async (cases) => {
                const { smoothed } = await import("./dashboard/widgets/chart.js");
                return cases.map((given) => smoothed(...given));
            }""",
            cases,
        )
    for given, means in zip(cases, found, strict=True):
        for mean, expected in zip(means, smoothed(*given), strict=True):
            assert mean == (None if expected is None else pytest.approx(expected))


@pytest.mark.nightly
async def test_figures_survive_the_way_through_a_file(browser: "Browser", run: ShownRun) -> None:
    made = random.Random(SEED)
    tables = [
        {
            "step": [made.randint(0, 10**9) for _ in range(count)],
            "tokens_total": [made.randint(0, 2**53) for _ in range(count)],
            "ended_s": [made.uniform(0, 2e9) for _ in range(count)],
            "training": [
                None if made.random() < 0.2 else made.gauss(0, 10 ** made.randint(-9, 9)) for _ in range(count)
            ],
            'held-out: a, "b"': [None] * count,
        }
        for count in range(1, CASES)
    ]
    async with opened(browser) as (page, _):
        await drawn(page, run)
        found = await page.evaluate(
            """async (tables) => {
                const { csvOf, figuresIn } = await import("./dashboard/figures_file.js");
                return tables.map((table) => figuresIn(csvOf(table)));
            }""",
            tables,
        )
    for table, read in zip(tables, found, strict=True):
        expected = {"loss": table["training"]} | {name: table[name] for name in ("step", "tokens_total", "ended_s")}
        assert read == expected


async def test_what_happened_is_marked(browser: "Browser", run: ShownRun) -> None:
    rows = {
        "step": [1, 2, 3, 4, 5, 6], "epoch": [0, 0, 0, 0, 0, 1], "members": [2, 4, 3, 3, 3, 3], "rounds": [1] * 6,
        "started_s": [0, 1, 2, 103, 203, 300], "ended_s": [1, 2, 3, 104, 204, 301],
    }  # fmt: skip
    async with opened(browser) as (page, _):
        await drawn(page, run)
        found = await page.evaluate(
            """async ([rows, checkpoints, actions]) => {
                const { marksOf } = await import("./dashboard/run_marks.js");
                return marksOf(rows, checkpoints, actions).map(({ place, text }) => [place, text]);
            }""",
            [rows, [{"step": 0}, {"step": 4}], [{"name": "genesis", "at_s": 0}, {"name": "pause", "at_s": 2.5}]],
        )
    assert sorted(found) == [
        [1, "2 members joined"], [2, "1 member left"], [2, "paused for 1 min 40 s"], [3, "checkpoint of step 4"],
    ]  # fmt: skip


@pytest.mark.nightly
async def test_time_without_rounds_is_marked_unless_an_epoch_ended(browser: "Browser", run: ShownRun) -> None:
    starts = [float(place) for place in range(30)] + [130.0, 131.0, 232.0]
    rows = {
        "step": list(range(1, 34)), "epoch": [0] * 32 + [1], "members": [2] * 33, "rounds": [1] * 33,
        "started_s": starts, "ended_s": [start + 1 for start in starts],
    }  # fmt: skip
    async with opened(browser) as (page, _):
        await drawn(page, run)
        found = await page.evaluate(
            """async (rows) => (await import("./dashboard/run_marks.js")).marksOf(rows, [], [])""", rows
        )
    assert found == [{"place": 29, "kind": "stood", "text": "no rounds for 1 min 40 s"}]


@pytest.mark.nightly
async def test_member_that_left_is_in_the_charts_table(browser: "Browser", tmp_path: Path) -> None:
    async with shown_run(tmp_path, rounds=2) as run, opened(browser) as (page, _):
        leaver = run.clients.pop()
        assert (await leaver.send("DELETE", "/clients/me")).status_code == 204
        await run.play()
        await drawn(page, run)
        chart = chart_of(page, LOSS)
        await chart.get_by_text("members left").wait_for()
        await chart.locator("summary").click()
        await chart.get_by_role("cell", name="1 member left").wait_for()


@pytest.mark.nightly
async def test_controls_of_a_chart_appear_when_it_is_used(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, _):
        await drawn(page, run)
        for chart, use in (
            (chart_of(page, "Members"), "hover"),
            (chart_of(page, "Learning rate"), "focus"),
            (chart_of(page, LOSS), "touch"),
        ):
            tools = chart.locator(".tools")
            assert await tools.evaluate("(found) => getComputedStyle(found).opacity") == "0"
            if use == "hover":
                await chart.hover()
            elif use == "touch":
                await chart.dispatch_event("pointerdown")
            else:
                await chart.get_by_role("checkbox").focus()
                await page.keyboard.press("Tab")
                assert await page.evaluate("document.activeElement.title") == "Zoom in"
            assert await tools.evaluate("(found) => getComputedStyle(found).opacity") == "1"
            await page.mouse.move(0, 0)


@pytest.mark.nightly
async def test_rates_and_counts_begin_at_zero(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser) as (page, _):
        await drawn(page, run)
        await page.evaluate(
            """() => {
                window.made = [];
                const Real = uPlot;
                window.uPlot = function (...given) {
                    window.made.push(new Real(...given));
                    return window.made.at(-1);
                };
            }"""
        )
        await page.emulate_media(color_scheme="dark")  # charts are drawn anew
        await page.wait_for_function("window.made.length >= 4")
        lows = await page.evaluate("made.map((plot) => [plot.series[1].label, plot.scales.y.min])")
        assert {label: low for label, low in lows if label != "training"} == {
            "tokens/s": 0, "members": 0, "learning rate": 0, "gradient norm": 0,
        }  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("has_norms", [False, True])
async def test_gradient_norm_has_a_chart_where_it_is_reported(
    browser: "Browser", run: ShownRun, has_norms: bool
) -> None:
    async def told(route: "Route") -> None:
        page: Any = await (await route.fetch()).json()
        page["rounds"]["gradient_norm"] = [0.5 + number if has_norms else None for number in page["rounds"]["number"]]
        await route.fulfill(json=page)

    async with opened(browser) as (page, complaints):
        await page.route("**/history?points=512", told)
        await drawn(page, run)
        figure = page.locator("[data-figure='gradient norm']")
        if has_norms:
            await chart_of(page, "Gradient norm").locator("canvas").wait_for()
            await figure.get_by_text(f"{ROUNDS - 0.5:g}").wait_for()
        else:
            assert await chart_of(page, "Gradient norm").count() == 0
            assert await figure.is_hidden()
        assert complaints.unexpected == []


async def test_links_to_the_parts_are_one_row_on_a_telephone(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser, "phone") as (page, _):
        await drawn(page, run)
        boxes = [box for link in await page.locator("nav a").all() if (box := await link.bounding_box()) is not None]
        assert (len(boxes), len({box["y"] for box in boxes})) == (5, 1)
        assert max(box["x"] + box["width"] for box in boxes) <= SIZES["phone"][0]


@pytest.mark.nightly
async def test_nothing_is_wider_than_a_small_telephone(browser: "Browser", run: ShownRun) -> None:
    async with opened(browser, "phone") as (page, _):
        await page.set_viewport_size({"width": NARROW_PX, "height": 568})
        await drawn(page, run)
        for summary in await page.locator("main summary").all():
            await summary.click()
        await page.get_by_label("Configuration as TOML").wait_for()
        await chart_of(page, LOSS).dispatch_event("pointerdown")
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW_PX
        figure, tools = chart_of(page, LOSS), chart_of(page, LOSS).locator(".tools")
        outer, inner = await figure.bounding_box(), await tools.bounding_box()
        assert outer is not None
        assert inner is not None
        assert outer["x"] <= inner["x"]


@pytest.mark.nightly
async def test_benchmarks_have_a_chart_of_their_own(browser: "Browser", run: ShownRun) -> None:
    digest = replica_digest(REPLICA)
    for name, metric, value in (("arc", "acc", 0.25), ("arc", "acc_norm", 0.5)):
        figure = {"metric": metric, "value": value, "stderr": 0.01, "higher_is_better": True}
        sent: dict[str, Any] = {"name": name, "step": 0, "replica_digest": digest, "samples": 9, "benchmark": figure}
        sent |= {"loss": None, "tokens": None, "data_fingerprint": "ab" * 32}
        headers = {"Authorization": f"Bearer {run.admin_token}"}
        to = f"{run.coordinator.run_url}/evaluations"
        answer = await run.coordinator.http.post(to, json=sent, headers=headers)
        assert answer.status_code == 204, answer.text
    async with opened(browser) as (page, complaints):
        await drawn(page, run)
        chart = chart_of(page, "Benchmarks")
        await chart.locator("canvas").wait_for()
        await chart.locator("summary").click()
        assert await chart.locator("thead th").all_inner_texts() == ["step", "arc acc", "arc acc_norm"]
        rows = [row.split("\t") for row in await chart.locator("tbody tr").all_inner_texts()]
        assert len(rows) == ROUNDS
        assert rows[-1] == ["1", "0.25", "0.5"], "with the first round that ended after it"
        assert "arc" not in await chart_of(page, LOSS).locator(".legend").inner_text(), "no losses"
        assert complaints.unexpected == []
