"""Viewers of a run that goes back to an older state under them, and on differently: they read its history again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.view.terminal import run_reader
from epochal.view.terminal.run_reader import RunReader
from epochal.view.terminal.view_state import RunPicture
from tests.support.bounds import BOUND_S
from tests.support.drive.restarted_run import RestartedRun, restarted_run
from tests.support.servers.event_stream import viewing
from tests.support.thinned import thinned

QUICK = RetryPolicy(bound_s=BOUND_S, max_delay_s=0.05)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[RestartedRun]:
    """A run of four rounds, of which a copy has the first two."""
    async with asyncio.timeout(BOUND_S), restarted_run(tmp_path / "run") as started:
        await started.play(2)
        await started.stop()
        started.copy_to(tmp_path / "copy")
        await started.start()
        await started.play(2)
        yield started


async def go_back(run: RestartedRun, tmp_path: Path) -> None:
    await run.stop()
    run.go_back_to(tmp_path / "copy")
    await run.start(is_restored=True)


async def test_connected_viewer_that_comes_back_is_reset_once(run: RestartedRun, tmp_path: Path) -> None:
    async with viewing(run.served) as viewer:
        seen = (await viewer.until("document")).id
        assert seen is not None
        with contextlib.suppress(httpx.HTTPError):  # its connection goes with the coordinator
            await run.stop()
            while await viewer.next() is not None:
                pass
    await go_back(run, tmp_path)
    lineage = run.served.service.run.identity.lineage
    async with viewing(run.served, seen) as again:
        told = await again.next()
        assert told is not None
        assert (told.kind, told.id is not None and told.id.startswith(f"{lineage}-")) == ("reset", True)
        document = await again.until("document")
        assert document.data["lineage"] == lineage
        await run.play(1)
        assert (await again.until("rounds")).data["rounds"]["number"] == [2], "the third round is another one"
    async with viewing(run.served, document.id) as third:
        first = await third.next()
        assert first is not None
        assert (first.kind, first.data["rounds"]["number"]) == ("rounds", [2]), "it knows the lineage: no reset"


@thinned("place", [None, 3], kept=1)
async def test_terminal_reads_the_history_again(
    monkeypatch: pytest.MonkeyPatch, run: RestartedRun, tmp_path: Path, place: int | None
) -> None:
    monkeypatch.setattr(run_reader, "STATUS_S", 0.05)
    picture = RunPicture(run.url)

    async def until_as_kept() -> None:
        while (  # noqa: ASYNC110 - two things change, and neither tells
            picture.document != run.served.service.published.document or picture.rows != kept()
        ):
            await asyncio.sleep(0)

    def kept() -> list[object]:
        return list(run.served.insight.projection.rows)

    async with await ViewerClient.connect(run.url, QUICK) as client, asyncio.TaskGroup() as group:
        reader = RunReader(client, QUICK, picture)
        reading = group.create_task(reader.run())
        await until_as_kept()
        assert len(picture.rows) == 4
        reader.look_at(place)
        await go_back(run, tmp_path)
        await until_as_kept()
        assert len(picture.rows) == 2
        assert "The run went back to an earlier state" in picture.note or "answers again" in picture.note
        assert not picture.is_past, "the round that was looked at is no more"
        await run.play(2)
        await until_as_kept()
        assert [row.number for row in picture.rows] == [0, 1, 2, 3]
        reading.cancel()
