"""`epochal status --watch` over a coordinator that is restarted meanwhile."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.messages.requests import RunStatus
from epochal.view import watched_status
from epochal.view.watched_status import follow_status
from tests.support.bounds import BOUND_S
from tests.support.drive.restarted_run import restarted_run
from tests.unit.epochal.view.test_status_panel import status_of

QUICK = RetryPolicy(bound_s=BOUND_S, max_delay_s=0.05)


class Shown:
    """Collects what is shown."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.problems: list[str] = []
        self.news = asyncio.Event()

    def __call__(self, status: RunStatus | None, problem: str) -> None:
        if problem:
            self.problems.append(problem)
        elif status is not None:
            self.steps.append(status.step)
        self.news.set()

    async def until_step(self, step: int) -> None:
        while step not in self.steps:
            await self.news.wait()
            self.news.clear()

    async def until_problem(self) -> None:
        while not self.problems:
            await self.news.wait()
            self.news.clear()


async def test_status_is_followed_over_a_restart_that_is_shown(tmp_path: Path) -> None:
    shown = Shown()
    async with (
        asyncio.timeout(BOUND_S),
        restarted_run(tmp_path / "run") as run,
        await CoordinatorClient.connect(run.url, QUICK) as client,
        asyncio.TaskGroup() as group,
    ):
        following = group.create_task(follow_status(client, QUICK, shown))
        await run.play(1)
        await shown.until_step(2)
        await run.stop()
        await shown.until_problem()
        await run.start()
        await run.play(1)
        await shown.until_step(3)
        following.cancel()
    assert "trying again for up to" in shown.problems[0]
    assert f"127.0.0.1:{run.port}" in shown.problems[0]


def test_the_speed_alone_is_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    show, status = watched_status._lines(), status_of(2, 1.5)
    show(status, "")
    show(replace(status, tokens_per_s=12.0), "")
    show(replace(status, version=8, step=4), "")
    show(None, "it does not answer")
    show(None, "it does not answer")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["RoundTrain", "RoundTrain", "it"]
