"""`epochal watch --to`: a run followed by the real command, over kills, restarts, merged rows and another history."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from epochal.state.messages.history_rows import RoundFigures
from epochal.view.sinks.csv_file import CsvSink
from tests.support.bounds import BOUND_S
from tests.support.data.watched_file import writes_to
from tests.support.drive.cli import run_main_in_thread
from tests.support.drive.forked import start_forked
from tests.support.drive.restarted_run import RestartedRun, restarted_run


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[RestartedRun]:
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run") as started:
        yield started


def read(path: Path) -> list[RoundFigures]:
    return [found for _, found in CsvSink(path).rows()] if path.exists() and path.stat().st_size else []


def kept(run: RestartedRun) -> list[RoundFigures]:
    return run.served.insight.projection.rows


async def once(run: RestartedRun, *arguments: str, code: int = 0) -> str:
    """Run the command with `--once`; return what it said."""
    ran = await run_main_in_thread("watch", run.url, "--once", *arguments, environment={})
    ran.expect(code)
    return ran.err


@contextlib.asynccontextmanager
async def watching(run: RestartedRun, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Follow the run in a process, which is killed at the end."""
    os.close(os.open(path, os.O_CREAT))
    with (path.parent / "watch.log").open("ab") as errors:
        arguments = ("watch", run.url, "--to", f"csv:{path}")
        process = await start_forked(arguments, {}, stdout=errors, stderr=errors)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def written(path: Path, count: int) -> None:
    """Return once so many rounds are in the file."""
    with writes_to(path) as news:
        while line_count(path) <= count:
            await news.wait()
            news.clear()


def line_count(path: Path) -> int:
    return path.read_bytes().count(b"\n")


async def test_follower_killed_again_and_again_writes_each_round_once(run: RestartedRun, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    for _ in range(3):
        await run.play(2)
        async with watching(run, path):
            await run.play(1)
            await written(path, len(kept(run)))
    assert read(path) == kept(run)


async def test_restart_of_the_coordinator_leaves_no_gap(run: RestartedRun, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    await run.play(1)
    async with watching(run, path):
        await written(path, 1)
        await run.stop()
        await run.start()
        await run.play(2)
        await written(path, 3)
    assert read(path) == kept(run)


async def test_run_that_went_back_replaces_what_it_forgot(run: RestartedRun, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    await run.play(2)
    await run.stop()
    run.copy_to(tmp_path / "copy")
    await run.start()
    await run.play(2)
    await once(run, "--to", f"csv:{path}")
    assert read(path) == kept(run)
    await run.stop()
    run.go_back_to(tmp_path / "copy")
    await run.start(is_restored=True)
    await run.play(1)
    assert "has another lineage; continues with round 2" in await once(run, "--to", f"csv:{path}")
    assert read(path) == kept(run)
    lineages = [lineage for lineage, _ in CsvSink(path).rows()]
    assert (lineages[0], lineages[2]) != (lineages[2], lineages[0])


async def test_follower_of_a_run_that_goes_back_under_it_replaces_what_was(run: RestartedRun, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    await run.play(2)
    await run.stop()
    run.copy_to(tmp_path / "copy")
    await run.start()
    await run.play(2)
    async with watching(run, path):
        await written(path, 4)
        await run.stop()
        run.go_back_to(tmp_path / "copy")
        await run.start(is_restored=True)
        await run.play(3)
        await written(path, 5)
    assert read(path) == kept(run)
    assert [one.number for one in read(path)] == [0, 1, 2, 3, 4]


async def test_rounds_that_were_merged_meanwhile_are_written_as_their_rest(
    monkeypatch: pytest.MonkeyPatch, run: RestartedRun, tmp_path: Path
) -> None:
    monkeypatch.setattr("epochal.coordinator.insight.projection.MAX_ROWS", 4)
    path = tmp_path / "run.csv"
    await run.play(3)
    await once(run, "--to", f"csv:{path}")
    await run.play(6)
    await once(run, "--to", f"csv:{path}")
    found = read(path)
    places = [(one.number, one.next_number) for one in found]
    assert places[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(places))
    assert places[-1][1] == 9
    assert sum(one.tokens for one in found) == found[-1].tokens_total == kept(run)[-1].tokens_total
    assert sum(one.result_bytes for one in found) == sum(one.result_bytes for one in kept(run))


async def test_beginning_is_chosen_where_nothing_was_written(run: RestartedRun, tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    await run.play(4)
    await once(run, "--to", f"csv:{path}", "--from", "2")
    assert read(path) == kept(run)[2:]
    await once(run, "--to", f"csv:{path}", "--from", "0")
    assert read(path) == kept(run)[2:]


async def test_command_ends_with_the_run(tmp_path: Path) -> None:
    ends = {"config__total_steps": 1, "config__cooldown_time": 0.2}
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run", **ends) as run:
        async with watching(run, tmp_path / "run.csv") as process:
            await run.play(1)
            assert await process.wait() == 0
        assert read(tmp_path / "run.csv") == kept(run)


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("csv", "--to csv: allowed:"),
        ("csv:", "--to csv:: allowed:"),
        ("excel:x", "--to excel:x: allowed:"),
        ("csv:/", "/ is a folder"),
        ("csv:/nowhere/x.csv", "lies in /nowhere, which is no folder"),
    ],
)
async def test_place_that_cannot_be_used_is_refused(run: RestartedRun, to: str, message: str) -> None:
    assert message in await once(run, "--to", to, code=2)


async def test_one_place_is_given_once(run: RestartedRun, tmp_path: Path) -> None:
    to = ("--to", f"csv:{tmp_path}/x.csv")
    assert "is given twice" in await once(run, *to, *to, code=2)
