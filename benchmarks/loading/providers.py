"""Data providers: from the disk, out of a bucket, and the opening of a very large location."""

import asyncio
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.figures import Figure
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.sources.byte_source import SourceFile
from epochal.data_providers.sources.object_store import ObjectStoreSource
from epochal.runtime.permissions import OWNERS
from epochal.state.config.data_location import S3
from epochal.state.intervals import DataIds
from tests.support.servers.ports import free_port

LENGTH = 2048
FILES = 4
SEQUENCES = 32_768
"""128 MiB in all, which stay in the page cache: all figures are measured with a warm cache."""
PER_REQUEST = 256
SHUFFLED = DatasetSpec(2, LENGTH, bytes(range(32)))
IN_ORDER = DatasetSpec(2, LENGTH)
HTTP_SEQUENCES = 16_384
HTTP_PER_REQUEST = 4096
HTTP_PASSES = 15
LARGE_FILES = 10_000
LARGE_TOKENS = 10**12
PASSES = 3
BARE_STREAM = "a bare httpx stream of the same bytes"


def write_data(folder: Path) -> None:
    """Write random tokens into `FILES` files."""
    chance = np.random.default_rng(0)
    for number in range(FILES):
        tokens = chance.integers(0, 50_000, SEQUENCES // FILES * LENGTH, dtype=np.uint16)
        tokens.astype("<u2").tofile(folder / f"part-{number}.bin")


async def _local_rate(folder: Path) -> float:
    """Return sequences per second, shuffled, one request after the other."""
    provider = LocalDataProvider.open(folder, SHUFFLED)
    times = []
    for _ in range(PASSES):
        for start in range(0, SEQUENCES, PER_REQUEST):
            begin_s = time.perf_counter()
            await provider.get_samples(DataIds(start, start + PER_REQUEST - 1))
            times.append(time.perf_counter() - begin_s)
    await provider.aclose()
    return PER_REQUEST / statistics.median(times)


def _gather_rates(folder: Path) -> tuple[float, float]:
    """Return the sequences per second of two gathers from a memory map: of windows of tokens, and of whole rows."""
    flat = np.memmap(folder / "part-0.bin", "<u2", "r")
    rows = flat.reshape(-1, LENGTH)
    order = np.random.default_rng(1).permutation(len(rows))
    within = np.arange(LENGTH)
    rates = []
    for gather in (lambda wanted: flat[wanted[:, None] * LENGTH + within], lambda wanted: rows[wanted]):
        times = []
        for _ in range(PASSES):
            for start in range(0, len(rows) - PER_REQUEST, PER_REQUEST):
                wanted = order[start : start + PER_REQUEST]
                begin_s = time.perf_counter()
                gather(wanted)
                times.append(time.perf_counter() - begin_s)
        rates.append(PER_REQUEST / statistics.median(times))
    return rates[0], rates[1]


async def _contiguous_rates(provider: RangedDataProvider, urls: Sequence[str]) -> tuple[float, float]:
    """Return the bytes per second of contiguous data and of bare httpx streams of the same, in alternating passes."""
    times, bare_times, wanted = [], [], HTTP_SEQUENCES * IN_ORDER.sequence_bytes
    async with httpx.AsyncClient() as client:
        for _ in range(HTTP_PASSES):
            begin_s = time.perf_counter()
            with provider.expecting([DataIds(0, HTTP_SEQUENCES - 1)], HTTP_PER_REQUEST):
                for start in range(0, HTTP_SEQUENCES, HTTP_PER_REQUEST):
                    await provider.get_samples(DataIds(start, start + HTTP_PER_REQUEST - 1))
            times.append(time.perf_counter() - begin_s)
            bare_times.append(await _bare_pass(client, urls, wanted))
    return wanted / statistics.median(times), wanted / statistics.median(bare_times)


async def _bare_pass(client: httpx.AsyncClient, urls: Sequence[str], wanted: int) -> float:
    """Return the seconds to receive `wanted` bytes, one file after the other."""
    received = 0
    begin_s = time.perf_counter()
    for url in urls:
        if received < wanted:
            async with client.stream("GET", url) as response:
                async for chunk in response.aiter_raw():
                    received += len(chunk)
    return (time.perf_counter() - begin_s) * wanted / received


def _start_s3(port: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


@asynccontextmanager
async def _s3_server() -> AsyncIterator[str]:
    port = free_port()
    process = _start_s3(port)
    try:
        async with asyncio.timeout(30), httpx.AsyncClient() as client:
            while True:
                try:
                    await client.put(f"http://127.0.0.1:{port}/tokens")
                    break
                except httpx.ConnectError:
                    await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def _object_store_figures(root: Path) -> list[Figure]:
    import obstore

    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    async with _s3_server() as url:
        location = S3(bucket_name="tokens", filter_directory="data", endpoint=url)
        options: dict[str, Any] = {"region": "us-east-1", "endpoint": url, "client_options": {"allow_http": True}}
        store = obstore.store.S3Store("tokens", **options)
        paths = [root / f"part-{number}.bin" for number in range(FILES)]
        for path in paths:
            await obstore.put_async(store, f"data/{path.name}", path)
        provider = await RangedDataProvider.open(await ObjectStoreSource.open(location, OWNERS), IN_ORDER)
        urls = [f"{url}/tokens/data/{path.name}" for path in paths]
        measured, bare = await _contiguous_rates(provider, urls)
        await provider.aclose()
    return [Figure("S3, contiguous, from moto", measured / 1e6, "MB/s", "", bare / 1e6, BARE_STREAM)]


class _LargeLocation:
    """The list of `LARGE_FILES` files with `LARGE_TOKENS` tokens; they are never read."""

    location = "simulated"

    def __init__(self) -> None:
        size = LARGE_TOKENS // LARGE_FILES * 2
        self.files = [SourceFile(f"part-{number:05}.bin", size, f"x/{number}", "1") for number in range(LARGE_FILES)]

    async def read_into(self, name: str, start: int, into: memoryview) -> None:
        raise AssertionError(f"{len(into)} bytes of {name} from {start} on were read")

    async def aclose(self) -> None:
        """Do nothing."""


async def _opening_figures() -> list[Figure]:
    source = _LargeLocation()
    begin_s = time.perf_counter()
    await RangedDataProvider.open(source, SHUFFLED)
    took_s = time.perf_counter() - begin_s
    tracemalloc.start()
    provider = await RangedDataProvider.open(source, SHUFFLED)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await provider.aclose()
    name = f"opening {LARGE_FILES:,} files of 10¹² tokens"
    return [Figure(name, took_s, "s", "< 1 s"), Figure("memory for it", peak_bytes / 2**20, "MiB", "< 20 MiB")]


async def measure(folder: Path) -> list[Figure]:
    """Measure every figure; those that need moto only if it is installed."""
    root = folder / "root"
    root.mkdir()
    write_data(root)
    local = await _local_rate(root)
    flat, rows = _gather_rates(root)
    name = f"local, shuffled, {PER_REQUEST} per request"
    figures = [
        Figure(name, local, "seq/s", "≥ 0.8 x", flat, "memmap, fancy-index gather of the windows"),
        Figure("the same", local, "seq/s", "", rows, "memmap, gather of whole aligned rows"),
        *await _opening_figures(),
    ]
    try:
        import moto  # noqa: F401
        import obstore  # noqa: F401
    except ImportError:
        return figures
    return figures + await _object_store_figures(root)
