"""A viewer of a run that goes back to an older state under it, and on differently, is told to read it again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.bounds import BOUND_S
from tests.support.drive.restarted_run import RestartedRun, restarted_run
from tests.support.servers.event_stream import viewing


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
