"""A wait for samples is divided as the time of its request was: between fetching and decoding."""

import asyncio

import pytest

from epochal.data_providers import waits
from epochal.data_providers.fetcher import DataFetcher
from epochal.data_providers.protocol import TokenBatch
from epochal.data_providers.sources.range_file import SourceThreads
from epochal.data_providers.waits import WaitTimes, decoding, timed_request
from epochal.state.intervals import BatchId, DataIds
from tests.support.simulate.virtual_time import in_virtual_time
from tests.unit.data_providers.test_fetcher import SETTINGS, Provider


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waits, "time", clock)
    return clock


def test_decoding_within_decoding_counts_once(clock: Clock) -> None:
    with timed_request() as times:
        clock.now_s += 11
        with decoding():
            clock.now_s += 2
            with decoding():
                clock.now_s += 3
    assert (times.total_s, times.decoding_s) == (16, 5)
    assert times.decoding_part == 5 / 16


async def test_decoding_in_threads_counts_in_their_request(clock: Clock) -> None:
    threads = SourceThreads()

    def decode() -> None:
        with decoding():
            clock.now_s += 1

    try:
        with timed_request() as times:
            await threads.run(decode)
            await asyncio.to_thread(decode)
    finally:
        threads.close()
    assert times.decoding_s == 2


@in_virtual_time
async def test_wait_for_an_answer_is_divided_as_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(waits, "time", type("LoopTime", (), {"perf_counter": staticmethod(loop.time)}))

    class Decoding(Provider):
        async def get_samples(self, data_ids: DataIds) -> TokenBatch:
            await asyncio.sleep(3)
            with decoding():
                await asyncio.sleep(1)
            return await super().get_samples(data_ids)

    async with asyncio.TaskGroup() as group:
        receiver = DataFetcher(Decoding(), SETTINGS, lambda: 0.5).fetch_data([BatchId(0, 1)], group)
        async for _ in receiver:
            pass
    assert receiver.waited == WaitTimes(fetching_s=3.0, decoding_s=1.0)
