"""`epochal watch --to`: a run followed by the real command, over kills, restarts, merged rows and another history."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from epochal.state.messages.history_rows import FIGURES, RoundFigures
from epochal.state.model.replica import replica_digest
from tests.support.bounds import BOUND_S
from tests.support.data.watched_file import writes_to
from tests.support.drive.forked import start_forked
from tests.support.drive.restarted_run import RestartedRun, restarted_run
from tests.support.drive.served import REPLICA


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[RestartedRun]:
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run") as started:
        yield started


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def read(path: Path) -> list[RoundFigures]:
    """Return the rows of the newest lineage."""
    lines = lines_of(path)
    return [
        RoundFigures(**{name: line[name] for name in FIGURES})
        for line in lines
        if line["lineage"] == lines[-1]["lineage"]
    ]


def kept(run: RestartedRun) -> list[RoundFigures]:
    return run.served.insight.projection.rows


@contextlib.asynccontextmanager
async def watching(run: RestartedRun, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Follow the run in a process, which is killed at the end."""
    os.close(os.open(path, os.O_CREAT))
    with (path.parent / "watch.log").open("ab") as errors:
        arguments = ("watch", run.url, "--to", f"jsonl:{path}")
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
        while line_count(path) < count:
            await news.wait()
            news.clear()


def line_count(path: Path) -> int:
    return path.read_bytes().count(b"\n")


@pytest.mark.nightly
async def test_follower_of_a_run_that_goes_back_under_it_begins_anew(run: RestartedRun, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
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
        await written(path, 4 + 5)
    assert read(path) == kept(run)
    assert [one.number for one in read(path)] == [0, 1, 2, 3, 4]


async def recorded(run: RestartedRun, **changed: Any) -> None:
    """Record an evaluation of the first replica."""
    figures = {"name": "validation", "step": 0, "samples": 10, "data_fingerprint": "ab" * 32, "loss": 3.0}
    report = figures | {"tokens": 640, "replica_digest": replica_digest(REPLICA)} | changed
    headers = {"Authorization": f"Bearer {run.admin_token}"}
    answer = await run.served.http.post(f"{run.served.run_url}/evaluations", json=report, headers=headers)
    assert answer.status_code == 204, answer.text


async def test_evaluations_come_with_rounds_and_after_the_last(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run") as run:

        async def written_once() -> None:
            words = ("watch", run.url, "--to", f"jsonl:{path}", "--once")
            with (tmp_path / "watch.log").open("ab") as log:
                assert await (await start_forked(words, {}, stdout=log, stderr=log)).wait() == 0

        await recorded(run)
        await run.play(2)
        await written_once()
        benchmark = {"metric": "acc", "value": 0.5, "stderr": 0.1, "higher_is_better": True}
        await recorded(run, name="task", loss=None, tokens=None, benchmark=benchmark)
        await written_once()
        await run.play(1)
        await written_once()
    found = [(one["number"], [each["name"] for each in one.get("evaluations", ())]) for one in lines_of(path)]
    assert found == [(0, ["validation"]), (1, []), (1, ["task"]), (2, ["task"])]
    assert lines_of(path)[-1]["evaluations"][0]["benchmark"] == benchmark


async def test_command_ends_with_the_run(tmp_path: Path) -> None:
    ends = {"config__total_steps": 1, "config__cooldown_time": 0.2}
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run", **ends) as run:
        async with watching(run, tmp_path / "run.jsonl") as process:
            await run.play(1)
            assert await process.wait() == 0
        assert read(tmp_path / "run.jsonl") == kept(run)
