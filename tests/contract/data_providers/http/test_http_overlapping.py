"""Samples over HTTP: hardly more bytes are read than are wanted, however the calls come."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from epochal.data_providers.protocol import DatasetSpec, expecting
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.sources.http.source import HttpSource
from epochal.state.intervals import DataIds
from tests.support.data.data_files import SEED
from tests.support.servers.nginx import nginx

LENGTH, SEQUENCES, PER_CALL = 2048, 4096, 64
MAX_BYTES = 1.2
"""Maximum number of bytes that are read for one that is wanted."""


@pytest.mark.parametrize("calls", [1, 4], ids=["one call at a time", "four calls that overlap"])
@pytest.mark.parametrize("is_announced", [False, True])
@pytest.mark.parametrize("seed", [None, SEED], ids=["in order", "shuffled"])
async def test_calls_over_http_read_few_bytes_twice(
    seed: bytes | None, calls: int, is_announced: bool, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    np.random.default_rng(0).integers(0, 2**16, SEQUENCES * LENGTH, dtype=np.uint16).tofile(root / "a.bin")
    starts = iter(range(0, SEQUENCES, PER_CALL))
    with nginx(tmp_path / "nginx", root) as server:
        source = await HttpSource.open([f"{server.url}/data/a.bin"])
        provider = await RangedDataProvider.open(source, DatasetSpec(2, LENGTH, seed))

        async def read() -> None:
            for start in starts:
                assert (await provider.get_samples(DataIds(start, start + PER_CALL - 1))).sample_count == PER_CALL

        with expecting(provider, [DataIds(0, SEQUENCES - 1)] if is_announced else [], PER_CALL):
            async with asyncio.TaskGroup() as group:
                for _ in range(calls):
                    group.create_task(read())
        await provider.aclose()
    assert source.received_bytes <= MAX_BYTES * SEQUENCES * LENGTH * 2
