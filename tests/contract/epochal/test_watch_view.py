"""`epochal watch` against a real coordinator, by its keys: each page against the API, back in time, and a restart."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from epochal.coordinator.insight import run_history
from epochal.coordinator_client.operator import connect_operator
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.messages.evaluation_reports import EvaluationReport
from epochal.state.wire import Sha256
from epochal.view.terminal import run_reader, watch_app
from epochal.view.terminal.operator_desk import OperatorDesk
from epochal.view.terminal.run_reader import RunReader
from epochal.view.terminal.view_state import RunPicture
from epochal.view.terminal.watch_app import WatchApp
from tests.support.bounds import BOUND_S
from tests.support.drive.restarted_run import RestartedRun, restarted_run
from tests.support.screens import screen_text, until_shown
from tests.support.thinned import thinned

QUICK = RetryPolicy(bound_s=BOUND_S, max_delay_s=0.05)
QUICK_S = 0.2
"""Time between two questions, and two drawings: with less, a busy machine does nothing else, and keys wait."""
SIZE = (80, 24)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATUS_S", "MEMBERS_S", "RECORDS_S", "EXPLANATION_S", "DETAIL_S", "PRESENT_S"):
        monkeypatch.setattr(run_reader, name, QUICK_S)
    monkeypatch.setattr(watch_app, "DRAW_S", QUICK_S)


@contextlib.asynccontextmanager
async def view_of(run: RestartedRun, token: str | None = None) -> AsyncIterator[tuple[Pilot[Any], ViewerClient]]:
    """Yield a view of the run at work, which shows this token, and a client to compare it with."""
    async with (
        asyncio.timeout(BOUND_S),
        await ViewerClient.connect(run.url, QUICK) as client,
        await ViewerClient.connect(run.url, QUICK) as api,
        asyncio.TaskGroup() as group,
    ):
        client.show(token)
        api.show(token)
        reader = RunReader(client, QUICK, RunPicture(run.url))
        reading = group.create_task(reader.run())
        desk = OperatorDesk(partial(connect_operator, run.url), run.url)
        async with WatchApp(reader, desk).run_test(size=SIZE) as pilot:
            yield pilot, api
        reading.cancel()


async def test_pages_show_what_the_api_says(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run:
        await run.play(3)
        async with view_of(run) as (pilot, api):
            status = await api.status()
            await until_shown(pilot, f"run {status.run_id} · RoundTrain · now", f"step        {status.step} of 1,000")
            await until_shown(pilot, f"tokens      {status.tokens_applied:,}", status.waiting[:40])
            await until_shown(pilot, "over 3 rounds")
            (checkpoint,) = await api.checkpoints()
            await until_shown(pilot, f"step {checkpoint.step} ", checkpoint.blob_sha256[:16])
            await pilot.press("l")
            await until_shown(pilot, "(log axis)")
            await pilot.press("2")
            detail = await api.round_detail(2)
            for client in detail.clients:
                await until_shown(pilot, f"{client.client_id[:8]}", "applied ")
            await until_shown(pilot, "round 2: step 3", (await api.explanation()).sentence[:40])
            await pilot.press("left_square_bracket")
            await until_shown(pilot, "round 1: step 2")
            await pilot.press("3")
            members = await api.members()
            await until_shown(pilot, *(client_id[:12] for client_id in members.members.client_id))
            await pilot.press("4")
            assert status.data_fingerprint is not None
            await until_shown(pilot, status.data_fingerprint[:40], "elected witnesses attested", "none was recorded")
            await pilot.press("5")
            await until_shown(pilot, f"epochal client {run.url} --trainer", "admission")


async def test_chart_shows_one_curve_after_the_other(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run:
        await run.play(2)
        async with view_of(run) as (pilot, _):
            for title in ("training loss, nats per token", "tokens per second", "members", "learning rate", "training"):
                await until_shown(pilot, f"{title}", "over 2 rounds")
                await pilot.press("c")


async def test_round_under_way_is_shown_while_its_results_come(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run:
        await run.play(1)
        async with view_of(run) as (pilot, _):
            await until_shown(pilot, "█ applied  ▒ under way")
            await pilot.press("2")
            await until_shown(pilot, "under way: step 2, attempt 1,", "0 of 2 results came; awaited: ")


@thinned(("dashboard", "kind"), [("admin", "admin"), ("members", "admin"), ("members", "member")])
async def test_run_that_few_may_see_is_shown_with_a_token(tmp_path: Path, dashboard: str, kind: str) -> None:
    async with restarted_run(tmp_path / "run", access__dashboard=dashboard) as run:
        await run.play(2)
        token = run.admin_token if kind == "admin" else run.member_token
        async with view_of(run, token) as (pilot, api):
            (checkpoint,) = await api.checkpoints()
            await until_shown(pilot, "over 2 rounds", checkpoint.blob_sha256[:16], "█ applied")
            for key, text in (("2", "round 1: step 2"), ("3", "1 to 2 of 2"), ("4", "attested replica"),
                              ("5", "epochal client"), ("6", "genesis")):  # fmt: skip
                await pilot.press(key)
                await until_shown(pilot, text)
            await pilot.press("3", "enter")
            await until_shown(pilot, "its last rounds")
            assert token not in screen_text(pilot.app)
            await pilot.press("1", "home")
            await until_shown(pilot, "PAST: round 0", "over 1 round")


async def test_every_page_has_its_keys_and_fits_a_small_terminal(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run, view_of(run) as (pilot, _):
        for key in "1234567":
            await pilot.press(key)
            text = await until_shown(pilot, "q quit  ? help  1-7 or Tab pages")
            lines = text.splitlines()
            assert len(lines) <= SIZE[1]
            assert max(map(len, lines)) <= SIZE[0]
        await pilot.press("tab")
        await until_shown(pilot, "l log axis")
        await pilot.press("question_mark")
        await until_shown(pilot, "Keys", "back in time by a round")


async def test_members_are_filtered_by_what_is_written(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run:
        await run.play(1)
        async with view_of(run) as (pilot, api):
            first, *others = (await api.members()).members.client_id
            await pilot.press("3")
            await until_shown(pilot, first[:12])
            await pilot.press("slash", *first[:8])
            await until_shown(pilot, f"filter '{first[:8]}'", "1 to 1 of 1")
            assert not any(other[:12] in screen_text(pilot.app) for other in others)
            await pilot.press("escape")
            await until_shown(pilot, *(other[:12] for other in others))


async def test_back_in_time_the_run_is_as_it_was(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run:
        await run.play(4)
        async with view_of(run) as (pilot, api):
            await until_shown(pilot, "over 4 rounds")
            await pilot.press("home")
            row = (await api.history()).rounds.rows()[0]
            moment = await api.moment(row.version)
            await until_shown(pilot, f"PAST: round 0, version {row.version}", "over 1 round")
            await until_shown(pilot, f"step        {moment.document.step} of 1,000", "█ applied")
            await pilot.press("right")
            await until_shown(pilot, "PAST: round 1")
            await pilot.press("2")
            await until_shown(pilot, "round 1: step 2")
            await pilot.press("left", "3")
            then = await api.members(row.version)
            assert (then.members.applied, (await api.members()).members.applied) == ((1, 1), (4, 4))
            await until_shown(pilot, "PAST: round 0", *(client_id[:12] for client_id in then.members.client_id))
            await pilot.press("4")
            vouched = (await api.trust(row.version)).vouched
            assert vouched is not None
            await until_shown(pilot, f"attested replica {vouched.replica_step} ", vouched.replica_digest)
            await pilot.press("5")
            await until_shown(pilot, "This page is of now")
            await pilot.press("n", "1")
            await until_shown(pilot, "· now", "step        5 of 1,000")


async def test_restarted_coordinator_is_said_and_followed_further(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run:
        await run.play(1)
        async with view_of(run) as (pilot, _):
            await until_shown(pilot, "step        2 of 1,000")
            await run.stop()
            await until_shown(pilot, "The coordinator does not answer, for")
            await run.start()
            await until_shown(pilot, "The coordinator answers again, after")
            await run.play(1)
            await until_shown(pilot, "step        3 of 1,000", "over 2 rounds")


async def test_what_cannot_be_answered_now_is_said_until_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_history, "READ_RETRY_S", QUICK_S)
    async with restarted_run(tmp_path / "run") as run:
        await run.play(1)
        (segment,) = (run.folder / "journal").iterdir()
        segment.rename(tmp_path / "elsewhere")
        segment.mkdir()
        run.served.insight.history.read_again()
        async with view_of(run) as (pilot, _):
            await until_shown(pilot, "step        2 of 1,000", "the run's history cannot be read")
            segment.rmdir()
            (tmp_path / "elsewhere").rename(segment)
            shown = await until_shown(pilot, "over 1 round")
            while "cannot be read" in shown:
                await pilot.pause()
                shown = screen_text(pilot.app)


async def test_member_has_a_page_that_is_opened_from_the_table(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run:
        await run.play(2)
        async with view_of(run) as (pilot, api):
            await pilot.press("3")
            first, second, *_ = (await api.members()).members.client_id
            await until_shown(pilot, first[:12], second[:12])
            await pilot.press("down", "enter")
            figures = (await api.member(second)).figures
            await until_shown(
                pilot, second, f"{figures.applied:,} applied", "its last rounds", "Nothing of it was refused"
            )
            await pilot.press("escape")
            await until_shown(pilot, first[:12], "Enter opens")


async def test_held_out_losses_are_in_the_chart_and_the_figures(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run:
        await run.play(2)
        async with await connect_operator(run.url, run.admin_token) as operator:
            (checkpoint,) = await operator.checkpoints()
            held_out = Sha256("ab" * 32)
            report = EvaluationReport("validation", checkpoint.step, checkpoint.replica_digest, 3.25, 9, 3, held_out)
            await operator.record_evaluation(report)
        async with view_of(run) as (pilot, _):
            await until_shown(pilot, "validation 3.2500 at step 0", "◆ held-out loss")


async def test_operator_acts_after_a_question_and_a_hidden_token(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run:
        await run.play(1)
        async with view_of(run) as (pilot, api):
            await pilot.press("6")
            await until_shown(pilot, "from the journal", "genesis", "Each needs the admin token")
            await pilot.press("p", *"wrong", "enter")
            shown = await until_shown(pilot, "Pause the run?", "y yes  n no")
            assert "wrong" not in shown
            await pilot.press("y")
            await until_shown(pilot, "pause was refused: this is not the admin token")
            await pilot.press("f")
            pilot.app.query_one("#answer", Input).value = run.admin_token
            assert run.admin_token not in await until_shown(pilot, "••••")
            await pilot.press("enter", *"many", "enter")
            await until_shown(pilot, "step: 'many' is not allowed; allowed: a whole number from 0")
            await pilot.press(*"40", "enter")
            await until_shown(pilot, "End the run after step 40?")
            await pilot.press("n")
            await until_shown(pilot, "Nothing was done.")
            assert (await api.status()).finish_after is None
            await pilot.press("f", *"40", "enter", "y")
            await until_shown(pilot, "The run ends after step 40.", "it ends after step 40", "after step 40")
            assert (await api.status()).finish_after == 40
            await pilot.press("i", "enter", "enter", "y")
            await until_shown(pilot, "invite was refused: ")
            client = (await api.members()).members.client_id[0]
            await pilot.press("e", *client[:8], "enter", "y")
            await until_shown(pilot, f"Member {client} was ejected.", "eject ")
            await pilot.press("k")
            await until_shown(pilot, "The token is forgotten.", "Each needs the admin token")
