"""Who knows what will be requested tells the provider: the fetcher its assignment, a mix each source its part."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from epochal.data_providers.fetcher import DataFetcher, FetchSettings
from epochal.data_providers.mixes.weighted import Weighted, WeightedDataProvider
from epochal.data_providers.protocol import TokenBatch, expecting
from epochal.state.intervals import BatchId, DataIds


class Told:
    """A provider that records what it is told and what it is asked for."""

    sequence_count = None

    def __init__(self, name: str = "a") -> None:
        self.fingerprint = name * 64
        self.told: list[tuple[Sequence[DataIds], int]] = []
        self.asked: list[DataIds] = []
        self.is_told = False

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        assert self.is_told
        self.asked.append(data_ids)
        return TokenBatch.fixed_length(np.zeros(data_ids.count, "<u2"), 1)

    @contextmanager
    def expecting(self, data_ids: Sequence[DataIds], samples_per_request: int) -> Iterator[None]:
        self.told.append((list(data_ids), samples_per_request))
        self.is_told = True
        try:
            yield
        finally:
            self.is_told = False

    async def aclose(self) -> None:
        """Nothing is held."""


async def test_fetcher_tells_its_assignment_while_it_fetches() -> None:
    provider = Told()
    fetcher = DataFetcher(provider, FetchSettings(3, 8, 1, 60, 1), lambda: 0.0)
    async with asyncio.TaskGroup() as group:
        receiver = fetcher.fetch_data([BatchId(2, 5), BatchId(9, 9)], group)
        assert sum([batch.sample_count async for batch in receiver]) == 15
    assert provider.told == [([DataIds(6, 17), DataIds(27, 29)], 6)]
    assert provider.asked[0] == DataIds(6, 11), "as many as it said"
    assert not provider.is_told


async def test_mix_tells_each_source_exactly_its_part() -> None:
    one, other = Told("a"), Told("b")
    mix = WeightedDataProvider([Weighted("one", one, 3.0), Weighted("other", other, 1.0)])
    intervals = [DataIds(100, 149), DataIds(400, 449)]
    with expecting(mix, intervals, 10):
        for interval in intervals:
            for request in interval.pieces(10):
                await mix.get_samples(request)
    for source in (one, other):
        ((told, samples),) = source.told
        assert [i for ids in told for i in ids] == [i for ids in source.asked for i in ids]
        assert samples == {"a": 7, "b": 2}[source.fingerprint[0]]
