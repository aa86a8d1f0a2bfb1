"""A run that is followed over a coordinator that is restarted meanwhile, as `epochal watch` does."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.view.watched_run import RunPicture, changes_printed, follow_run
from tests.support.bounds import BOUND_S
from tests.support.drive.restarted_run import restarted_run
from tests.unit.epochal.view.test_status_panel import status_of

QUICK = RetryPolicy(bound_s=BOUND_S, max_delay_s=0.05)


class Shown:
    """A picture, and who waits for something in it."""

    def __init__(self) -> None:
        self.picture = RunPicture()
        self.news = asyncio.Event()

    async def until(self, holds: Callable[[RunPicture], bool]) -> None:
        while not holds(self.picture):
            self.news.clear()
            await self.news.wait()


def at_step(step: int) -> Callable[[RunPicture], bool]:
    def holds(picture: RunPicture) -> bool:
        last = None if picture.moment is None else picture.moment.last_round
        return last is not None and last.figures.step == step - 1 and not picture.problem

    return holds


@pytest.mark.nightly
async def test_run_is_followed_over_a_restart_that_is_shown(tmp_path: Path) -> None:
    shown = Shown()
    async with (
        asyncio.timeout(BOUND_S),
        restarted_run(tmp_path / "run") as run,
        await ViewerClient.connect(run.url, QUICK) as client,
        asyncio.TaskGroup() as group,
    ):
        following = group.create_task(follow_run(client, QUICK, shown.picture, shown.news.set, rounds=True))
        await run.play(1)
        await shown.until(at_step(2))
        await run.stop()
        await shown.until(lambda picture: bool(picture.problem))
        assert "trying again for up to" in shown.picture.problem
        assert f"127.0.0.1:{run.port}" in shown.picture.problem
        await run.start()
        await run.play(1)
        await shown.until(at_step(3))
        following.cancel()


def test_the_speed_alone_is_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    status, picture = status_of(2, 1.5), RunPicture()
    show = changes_printed(picture)
    for picture.status, picture.problem in (
        (status, ""),
        (replace(status, tokens_per_s=12.0), ""),
        (replace(status, version=8, step=4), ""),
        (None, "it does not answer"),
        (None, "it does not answer"),
    ):
        show()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["RoundTrain", "RoundTrain", "it"]
