"""`epochal report`: a run as one page, from its store and from its coordinator."""

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import pytest_asyncio

from epochal.state.messages.evaluation_reports import Benchmark
from epochal.state.wire import ClientId
from epochal.view.figures.charts import MAX_MARKS, LineChart, charts_of
from epochal.view.figures.report_page import report_html
from epochal.view.figures.run_record import RunRecord, read_record
from epochal.view.waterfall import waterfall
from tests.support.bounds import BOUND_S
from tests.support.data.figure_rows import as_one, rows
from tests.support.data.hostile_texts import OBEYED, TEXTS
from tests.support.data.recorded_run import evaluated, hostile, recorded_run
from tests.support.drive.cli import run_main, run_main_in_thread
from tests.support.drive.restarted_run import restarted_run

CHARTS = 7


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    """A run of three rounds in a folder."""
    place = tmp_path_factory.mktemp("recorded") / "run"
    await recorded_run(place)
    yield place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def record(folder: Path) -> RunRecord:
    return await read_record(str(folder), audits=True)


class Read(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.pictures: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.pictures += [(value or "").partition(",")[0] for name, value in attrs if name == "src"]

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_report_has_all_of_the_run(record: RunRecord) -> None:
    page = Read(report_html(evaluated(record)))
    for expected in (
        "Run test-run",
        record.explanation.sentence,
        "All checks passed.",
        record.audit.record_chain if record.audit else "",
        *(member.client_id[:12] for member in record.members),
        "held-out",
        "max_round_train_time = 500",
        "loss [nats/token]: ",
        "tokens/s: ",
        "Round 2 (step 3), client by client",
    ):
        assert expected in page.text, expected
    assert "[access]" not in page.text
    assert page.tags.isdisjoint({"script", "link", "iframe", "object", "a"})
    assert page.pictures == ["data:image/svg+xml;base64"] * CHARTS


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let matplotlib be missing, where pages are read for their words: drawing takes a second."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.usefixtures("undrawn")
async def test_report_without_matplotlib_says_what_is_missing(record: RunRecord) -> None:
    page = Read(report_html(record))
    assert "The charts are missing, because they need matplotlib: pip install 'epochal[plot]'" in page.text
    assert (page.pictures, "All checks passed." in page.text) == ([], True)


@pytest.mark.usefixtures("undrawn")
async def test_report_says_what_became_of_the_data_and_who_left(record: RunRecord) -> None:
    assert record.audit is not None
    lost = replace(record.rows[-1], carried_batches=3, quarantined_batches=2)
    remarked = replace(record.audit, remarks=("quarantined, and not trained on: 2 batches",))
    gone = replace(record.members[0], left="fell silent")
    shown = replace(record, rows=(*record.rows[:-1], lost), audit=remarked, gone=(gone,))
    page = report_html(shown)
    applied = sum(row.applied_batches for row in record.rows)
    assert f"<td>{applied:,} batches applied, 3 wait, 2 quarantined</td>" in page
    assert '<p class="noted">quarantined, and not trained on: 2 batches</p>' in page
    assert 'class="wrong"' not in page, "a remark is no failed check"
    assert "and 1 that left. Names" in page
    assert "<td>left: fell silent</td>" in page


async def test_many_evaluations_hide_no_curve(record: RunRecord) -> None:
    one = evaluated(record).evaluations[0]
    for count, has_marks in ((MAX_MARKS, True), (MAX_MARKS + 1, False)):
        many = replace(record, evaluations=tuple(replace(one, step=step) for step in range(count)))
        loss = charts_of(many)[0]
        assert isinstance(loss, LineChart)
        assert loss.lines[-1].has_marks is has_marks


async def test_hostile_words_are_text(record: RunRecord) -> None:
    page = report_html(hostile(record))
    read = Read(page)
    assert read.tags <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "table", "thead", "tbody", "tr", "th",
        "td", "figure", "figcaption", "img", "pre", "code",
    }  # fmt: skip
    assert not {name for name in read.attributes if name.startswith("on")}
    assert OBEYED.findall(page) == []
    assert TEXTS[0] in read.text


@pytest.mark.nightly
async def test_same_record_gives_the_same_page(record: RunRecord, folder: Path) -> None:
    again = await read_record(str(folder), audits=True)
    assert report_html(again) == report_html(record)


@pytest.mark.usefixtures("undrawn")
async def test_coordinator_gives_the_same_charts_as_the_store(tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run") as run:
        await run.play(2)
        served = await read_record(run.url)
        await run.stop()
    stored = await read_record(str(tmp_path / "run"))
    assert charts_of(served) == charts_of(stored)
    assert served.config == stored.config
    assert (served.audit, stored.audit) == (None, None)
    assert "Not audited" in report_html(served)


async def test_report_of_a_run_without_rounds_is_a_page(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run:
        ran = await run_main_in_thread("report", run.url, "--out", str(tmp_path / "r.html"), environment={})
        ran.expect(0, "the report: ")
    assert "nothing is known of where its time goes" in read_text(tmp_path / "r.html")


def read_text(path: Path) -> str:
    return path.read_text()


@pytest.mark.usefixtures("undrawn")
async def test_report_is_for_whom_the_dashboard_is(tmp_path: Path) -> None:
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run", access__dashboard="admin") as run:
        await run.play(1)
        out = ("--out", str(tmp_path / "r.html"))
        (await run_main_in_thread("report", run.url, *out, environment={})).expect(1, "epochal:")
        token = {"EPOCHAL_ADMIN_TOKEN": run.admin_token}
        (await run_main_in_thread("report", run.url, *out, environment=token)).expect(0)
    assert run.admin_token not in read_text(tmp_path / "r.html")


def test_place_that_cannot_be_written_is_refused_first(folder: Path) -> None:
    run_main("report", str(folder), "--out", "/nowhere/r.html").expect(2, "--out /nowhere/r.html: allowed:")
    run_main("report", str(folder / "none")).expect(2, "epochal:")


async def test_waterfall_shows_the_slowest_clients_in_order(record: RunRecord) -> None:
    detail = record.details[-1]
    one = detail.clients[0]
    clients = tuple(
        replace(
            one,
            client_id=ClientId(f"{number:032x}"),
            delivered_s=float(number),
            document_s=1.0,
            train_s=2.0,
            upload_s=0.5,
        )
        for number in range(50)
    )
    chart = waterfall(replace(detail, clients=clients), {})
    assert len(chart.rows) == 40
    assert "the 40 slowest of 50 clients" in chart.note
    assert [(bar.start_s, bar.length_s) for bar in chart.rows[0].bars[:2]] == [(0.0, 1.0), (1.0, 2.0)]
    assert chart.rows[-1].label.startswith(f"{49:032x}"[:12])


async def test_absurd_claims_stretch_no_bar(record: RunRecord) -> None:
    detail = record.details[-1]
    claims = replace(detail.clients[0], delivered_s=3.0, document_s=1e9, train_s=1e9, attest_s=1e9, merge_s=1e9)
    figures = replace(detail.figures, train_s=4.0, witness_s=1.0)
    chart = waterfall(replace(detail, figures=figures, clients=(replace(claims, attested_s=4.5),)), {})
    bars = [(bar.start_s, bar.start_s + bar.length_s) for bar in chart.rows[0].bars]
    assert bars == [(0.0, 3.0), (0.0, 4.5), (5.0, 10.0)]


async def test_evaluations_are_drawn_at_the_round_of_their_replica(record: RunRecord) -> None:
    loss = charts_of(evaluated(record))[0]
    assert isinstance(loss, LineChart)
    assert [row.step for row in record.rows] == [1, 2, 3]
    assert loss.lines[-1].xs == (-1.0, 1.0), "replica 0 was before the first round, replica 2 came of the second"


@pytest.mark.usefixtures("undrawn")
async def test_benchmarks_have_a_chart_and_rows_with_error_and_samples(record: RunRecord) -> None:
    losses, benchmark = evaluated(record), Benchmark("acc", 0.25, True, 0.125)
    figure = replace(losses.evaluations[0], name="arc", loss=None, tokens=None, benchmark=benchmark)
    found = replace(losses, evaluations=(*losses.evaluations, figure))
    (chart,) = [one for one in charts_of(found) if one.title == "Benchmarks"]
    assert isinstance(chart, LineChart)
    assert [(line.label, line.ys) for line in chart.lines] == [("arc acc", (0.25,))]
    assert "Benchmarks" not in [one.title for one in charts_of(losses)]
    page = Read(report_html(found)).text
    assert "benchmark: arc acc" in page
    assert "0.250 ± 0.125, replica 0, 10 samples" in page


async def test_members_with_most_tokens_come_first(record: RunRecord) -> None:
    few, many = (replace(record.members[0], name=f"lab {tokens}", tokens=tokens) for tokens in (7, 70))
    page = report_html(replace(record, members=(few, many)))
    assert page.index("lab 70") < page.index("lab 7<")


async def test_gradient_norm_is_drawn_where_one_is_known(record: RunRecord) -> None:
    charts = {chart.title: chart for chart in charts_of(replace(record, rows=tuple(rows(4, 6))))}
    norms = charts["Gradient norm"]
    assert isinstance(norms, LineChart)
    assert (norms.lines[0].ys[0], norms.lines[0].ys[2]) == (4.5, 6.5)
    assert "6.5 at the end" in norms.note
    assert "Gradient norm" not in {chart.title for chart in charts_of(replace(record, rows=tuple(rows(5, 5))))}


async def test_merged_rows_stand_for_each_of_their_rounds(record: RunRecord) -> None:
    few = as_one(rows(1, 3))
    assert few.rounds == 3
    charts = {chart.title: chart for chart in charts_of(replace(record, rows=(few, *rows(4, 4))))}
    sizes = charts["Results"]
    assert isinstance(sizes, LineChart)
    assert sizes.lines[0].xs == (3.0, 4.0), "a point lies at its last round"
    assert sizes.lines[0].ys == (0.0021, 0.0021), "megabytes of one round"
