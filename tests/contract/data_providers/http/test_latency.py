"""A long way to the data: requests in order do not wait for it, with and without a cache."""

import asyncio
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from epochal.data_providers.fetcher import DataFetcher, FetchSettings
from epochal.data_providers.open_data import OpenOptions, open_location
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.sources.cache import BlockCache
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import SingleUrl
from epochal.state.intervals import BatchId, DataIds
from tests.support.data.data_files import SEED
from tests.support.servers.delaying_relay import delaying_relay
from tests.support.servers.nginx import nginx
from tests.support.thinned import thinned

ROUND_TRIP_S = 0.1
SAMPLES_PER_S = 50
PER_REQUEST = 8
REQUESTS = 11
MAX_LATE = 1
"""Maximum number of requests that a busy machine makes late; a client that waits for each third one has three."""
SPEC = DatasetSpec(2, 2048, SEED)


@pytest.mark.nightly
@thinned("cached", ["no cache", "cold", "warm"])
async def test_client_of_50_samples_a_second_waits_for_none_after_its_first(tmp_path: Path, cached: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    np.random.default_rng(0).integers(0, 2**16, 2048 * 2048, dtype=np.uint16).tofile(root / "a.bin")
    cache = None if cached == "no cache" else BlockCache(tmp_path / "cache", 2**30)
    waits: list[float] = []
    with nginx(tmp_path / "nginx", root) as server:
        async with delaying_relay(int(server.url.rpartition(":")[2]), ROUND_TRIP_S) as port:
            location = SingleUrl(f"http://127.0.0.1:{port}/data/a.bin")
            provider = await open_location(location, SPEC, OpenOptions("run", None, OWNERS, cache))
            if cached == "warm":
                await provider.get_samples(DataIds(0, PER_REQUEST * REQUESTS - 1))
            async with asyncio.TaskGroup() as group:
                fetcher = DataFetcher(provider, FetchSettings(PER_REQUEST, PER_REQUEST, 1, 60, 1), lambda: 0.0)
                receiver = fetcher.fetch_data([BatchId(0, REQUESTS - 1)], group)
                before_s = 0.0
                async for _ in receiver:
                    waits.append(receiver.waited.total_s - before_s)
                    before_s = receiver.waited.total_s
                    await asyncio.sleep(PER_REQUEST / SAMPLES_PER_S)
            await provider.aclose()
    # Each request that waits for the way takes a round trip; what is there takes a millisecond or two.
    later = waits[1:]
    assert median(later) < ROUND_TRIP_S / 10, waits
    assert sum(wait > ROUND_TRIP_S / 2 for wait in later) <= MAX_LATE, waits
    if cached != "warm":
        assert waits[0] > ROUND_TRIP_S, "the way is long"
