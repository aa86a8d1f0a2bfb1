"""A thousand viewers at one address, over real sockets: all are told, by few frames, and few more are let in."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.load import CONNECT_AT_ONCE, request_bytes
from benchmarks.viewing.viewers_process import Viewer
from epochal.coordinator.insight.viewers import POOLS
from epochal.coordinator.run.long_polls import ReaderKind
from epochal.runtime.connections.descriptors import allow_connections, connection_limit
from tests.support.bounds import BOUND_S
from tests.support.drive.played_rounds import play_round
from tests.support.drive.served import GENESIS, Served, problem, served_over_sockets, training
from tests.support.scraping import scrape

VIEWERS = 1_000
ROUNDS = 3
MAX_FRAMES_OF_ROUND = 8
"""Maximum number of frames of a round, one for each change of what the run waits for."""


class ToldViewer(Viewer):
    """A viewer that knows when it was told of a number of rounds."""

    def __init__(self, request: bytes) -> None:
        super().__init__(request)
        self.told = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if b'"next":%d' % ROUNDS in data:
            self.told.set()


async def shown(run: Served, name: str) -> float:
    """Return a metric of the coordinator's."""
    return (await scrape(f"{run.http.base_url}/metrics")).total(f"epochal_coordinator_{name}")


async def more_viewers(run: Served, count: int) -> list[ToldViewer]:
    """Open viewers, each of which has been told where the run is."""
    request, url, found = request_bytes("GET", f"{run.run_url}/events"), run.http.base_url, list[ToldViewer]()
    loop = asyncio.get_running_loop()
    while len(found) < count:
        size = min(CONNECT_AT_ONCE, count - len(found))
        some = [
            await loop.create_connection(lambda: ToldViewer(request), url.host, url.port or 80) for _ in range(size)
        ]
        found += [viewer for _, viewer in some]
        for _, viewer in some:
            await viewer.begun
    return found


@pytest.mark.nightly
async def test_thousand_viewers_at_one_address_are_told_by_few_frames(tmp_path: Path) -> None:
    allow_connections()
    if connection_limit() < 3 * VIEWERS:
        pytest.skip("this process may not open so many files")
    async with asyncio.timeout(BOUND_S), served_over_sockets(tmp_path, GENESIS, config__total_steps=100) as run:
        clients = await training(run)
        await run.insight.history.is_read.wait()
        viewers = await more_viewers(run, VIEWERS)
        assert await shown(run, "viewers") == VIEWERS
        before = await shown(run, "viewer_frames_total")
        for _ in range(ROUNDS):
            await play_round(run, clients)
        for viewer in viewers:
            await viewer.told.wait()
        assert 1 <= await shown(run, "viewer_frames_total") - before <= MAX_FRAMES_OF_ROUND * ROUNDS
        assert await shown(run, "viewers_dropped_total") == 0
        viewers += await more_viewers(run, POOLS[ReaderKind.STRANGER].each - VIEWERS)
        assert problem(await run.http.get(f"{run.run_url}/events")) == "overloaded"
        assert not any(viewer.has_ended for viewer in viewers)
        for viewer in viewers:
            viewer.close()
