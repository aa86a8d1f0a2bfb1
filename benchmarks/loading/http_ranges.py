"""Data over HTTP from nginx: shuffled, in order, 100 ms away, with a cache; beside a bare socket and plain aiohttp."""

import asyncio
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp

from benchmarks.figures import Figure
from benchmarks.loading.providers import FILES, IN_ORDER, LENGTH, PER_REQUEST, SEQUENCES, SHUFFLED, write_data
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.ranged import RangedDataProvider, plan_ranges
from epochal.data_providers.sources.cache import BlockCache
from epochal.data_providers.sources.cached_source import CachedSource
from epochal.data_providers.sources.http.filled_buffer import Filling
from epochal.data_providers.sources.http.multi_ranges import plan_groups, range_field
from epochal.data_providers.sources.http.requester import MAX_CONNECTIONS
from epochal.data_providers.sources.http.source import HttpSource
from epochal.state.intervals import DataIds
from tests.support.servers.nginx import Nginx, nginx

PASSES = 5
ROUND_TRIP_S = 0.1
LARGE_REQUEST = 4096
SAMPLES_PER_S, PACED_PER_REQUEST, PACED_REQUESTS, PACED_BEGINNING = 50, 16, 24, 4
FAR_SEQUENCES = 8192
REQUESTS_PER_CONNECTION = 900
"""nginx closes a connection after 1,000."""
CACHE_BYTES = 2**30
NO_NGINX = "there is no nginx on this machine"
BARE_SHUFFLED = "a blocking socket, range by range"
BARE_ORDER = "a blocking socket"
PLAIN = "plain aiohttp"
OVERLAPPING = 4
Range = tuple[int, int, int]
"""A file's number, and the bytes `[start, stop)`."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What bytes cost: seconds, and seconds of the client's CPU."""

    size_bytes: int
    took_s: float
    cpu_s: float

    @property
    def gb_per_s(self) -> float:
        return self.size_bytes / self.took_s / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_s / self.size_bytes * 1e9


async def measured(read: Callable[[], Awaitable[int]]) -> Cost:
    """Return what a call costs that returns how many bytes it read. CPU is this process's, all threads."""
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    size_bytes = await read()
    return Cost(size_bytes, time.perf_counter() - begun_s, time.process_time() - begun_cpu_s)


def middle(costs: Sequence[Cost], of: Callable[[Cost], float]) -> float:
    """Return the median of a figure of several passes."""
    return statistics.median(of(cost) for cost in costs)


async def read_all(provider: RangedDataProvider, count: int, per_request: int) -> int:
    """Request the first `count` samples, some at a time, as a fetcher does that has told what it wants.

    Returns:
        the number of bytes.
    """
    size_bytes = 0
    with provider.expecting([DataIds(0, count - 1)], per_request):
        for start in range(0, count, per_request):
            size_bytes += (await provider.get_samples(DataIds(start, start + per_request - 1))).input_ids.nbytes
    return size_bytes


def ranges_of(provider: RangedDataProvider, spec: DatasetSpec, count: int, per_request: int) -> Iterator[list[Range]]:
    """Yield the ranges of each request for the first `count` samples, in the order of the samples."""
    for start in range(0, count, per_request):
        planned = plan_ranges(
            provider.order.locate(DataIds(start, start + per_request - 1)), provider.order.files, spec
        )
        yield [(one.file, one.start, one.stop) for one in planned]


class BareSocket:
    """A blocking socket that requests one range after the other, and receives them into one buffer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._buffer = memoryview(bytearray(LARGE_REQUEST * LENGTH * 2 + 4096))
        self._asked = 0
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port))

    def read(self, ranges: Sequence[Range]) -> int:
        """Read ranges, and return the number of bytes."""
        for file, start, stop in ranges:
            self._asked += 1
            if self._asked % REQUESTS_PER_CONNECTION == 0:
                self._socket.close()
                self._connect()
            place = f"/data/part-{file}.bin HTTP/1.1\r\nHost: x\r\nRange: bytes={start}-{stop - 1}\r\n\r\n"
            self._socket.sendall(b"GET " + place.encode())
            received, head = 0, -1
            while head < 0 or received < head + stop - start:
                received += self._socket.recv_into(self._buffer[received:])
                if head < 0:
                    end = bytes(self._buffer[: min(received, 4096)]).find(b"\r\n\r\n")
                    head = end + 4 if end >= 0 else -1
        return sum(stop - start for _, start, stop in ranges)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


async def _bare(port: int, requests: Sequence[Sequence[Range]]) -> Cost:
    bare = BareSocket(port)

    async def read() -> int:
        return sum(bare.read(ranges) for ranges in requests)

    try:
        return await measured(read)
    finally:
        bare.close()


async def _plain(port: int, requests: Sequence[Sequence[Range]]) -> Cost:
    """Return what the same ranges cost by aiohttp alone, in requests as our client sends them; nothing is checked."""
    buffer = memoryview(bytearray(LARGE_REQUEST * LENGTH * 2))
    jobs = []
    for ranges in requests:
        groups = []
        for file in sorted({file for file, _, _ in ranges}):
            wanted = [Filling(start, buffer[: stop - start]) for one, start, stop in ranges if one == file]
            groups += [(file, range_field(group)) for group in plan_groups(wanted)]
        jobs.append(groups)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS)) as session:

        async def one(file: int, ranges: str) -> int:
            url = f"http://127.0.0.1:{port}/data/part-{file}.bin"
            async with session.get(url, headers={"Range": ranges}) as answer:
                return len(await answer.read())

        async def read() -> int:
            for groups in jobs:
                async with asyncio.TaskGroup() as group:
                    for file, ranges in groups:
                        group.create_task(one(file, ranges))
            return sum(stop - start for ranges in requests for _, start, stop in ranges)

        return await measured(read)


async def read_overlapping(provider: RangedDataProvider, count: int, per_request: int) -> int:
    """Request the first `count` samples by calls that overlap, untold, and return the number of bytes."""
    starts = iter(range(0, count, per_request))
    size_bytes = 0

    async def call() -> None:
        nonlocal size_bytes
        for start in starts:
            found = await provider.get_samples(DataIds(start, start + per_request - 1))
            size_bytes += found.input_ids.nbytes

    async with asyncio.TaskGroup() as group:
        for _ in range(OVERLAPPING):
            group.create_task(call())
    return size_bytes


@contextmanager
def far_away(port: int) -> Iterator[int]:
    """Yield the port of a process that relays to a port, with `ROUND_TRIP_S` between."""
    command = [sys.executable, "-m", "tests.support.servers.delaying_relay", str(port), str(ROUND_TRIP_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as relay:
        assert relay.stdout is not None
        try:
            yield int(relay.stdout.readline())
        finally:
            relay.kill()


async def _opened(
    port: int, spec: DatasetSpec, cache: BlockCache | None = None
) -> tuple[RangedDataProvider, HttpSource]:
    source = await HttpSource.open([f"http://127.0.0.1:{port}/data/part-{number}.bin" for number in range(FILES)])
    return await RangedDataProvider.open(source if cache is None else CachedSource(source, cache), spec), source


async def _near(server: Nginx, port: int) -> list[Figure]:
    figures = []
    for spec, per_request, order, target, bare_name in (
        (SHUFFLED, PER_REQUEST, "shuffled", "≥ 0.3 x", BARE_SHUFFLED),
        (IN_ORDER, PER_REQUEST, "in order", "≥ 0.5 x", BARE_ORDER),
        (IN_ORDER, LARGE_REQUEST, "in order", "≥ 0.5 x", BARE_ORDER),
    ):
        provider, _ = await _opened(port, spec)
        requests = list(ranges_of(provider, spec, SEQUENCES, per_request))
        ours, bare, plain = [], [], []
        read = partial(read_all, provider, SEQUENCES, per_request)
        for _ in range(PASSES):
            ours.append(await measured(read))
            bare.append(await _bare(port, requests))
            plain.append(await _plain(port, requests))
        await provider.aclose()
        name = f"HTTP from nginx, {order}, {per_request:,} a request"
        figures += [
            Figure(name, middle(ours, _rate), "GB/s", target, middle(bare, _rate), bare_name),
            Figure("the same", middle(ours, _rate), "GB/s", "", middle(plain, _rate), PLAIN),
            Figure("CPU for it", middle(ours, _cpu), "s/GB", "≤ 2 s/GB", middle(bare, _cpu), "that socket's"),
            Figure("the same", middle(ours, _cpu), "s/GB", "", middle(plain, _cpu), "plain aiohttp's"),
        ]
    return figures + await _sent(server, port)


async def _sent(server: Nginx, port: int) -> list[Figure]:
    """Return what the server is asked for, and sends, beside what is wanted; also by calls that overlap."""
    figures = []
    for spec, order in ((SHUFFLED, "shuffled"), (IN_ORDER, "in order")):
        provider, source = await _opened(port, spec)
        ranges = sum(map(len, ranges_of(provider, spec, SEQUENCES, PER_REQUEST)))
        for read, calls in ((read_all, "one call at a time"), (read_overlapping, f"{OVERLAPPING} calls that overlap")):
            before, asked = source.requests, len(server.requests())
            cost = await measured(partial(read, provider, SEQUENCES, PER_REQUEST))
            count = source.requests - before
            sent = sum(int(line.rpartition(" ")[2]) for line in server.requests()[asked:])
            name = f"HTTP from nginx, {order}, {calls}"
            figures += [
                Figure(f"{name}: bytes sent", sent / cost.size_bytes, "x", "≤ 1.2 x"),
                Figure("requests for it", count, "requests", "", ranges, "one request a range", digits=0),
            ]
        await provider.aclose()
    return figures


def _rate(cost: Cost) -> float:
    return cost.gb_per_s


def _cpu(cost: Cost) -> float:
    return cost.cpu_s_per_gb


async def _waits(read: Callable[[int, int], Awaitable[object]]) -> list[float]:
    """Return the seconds that each request of a client takes that trains `SAMPLES_PER_S` samples a second."""
    waits = []
    for number in range(PACED_REQUESTS):
        begun_s = time.perf_counter()
        await read(number * PACED_PER_REQUEST, (number + 1) * PACED_PER_REQUEST - 1)
        waits.append(time.perf_counter() - begun_s)
        await asyncio.sleep(PACED_PER_REQUEST / SAMPLES_PER_S)
    return waits


async def _far(port: int, folder: Path) -> list[Figure]:
    provider, _ = await _opened(port, SHUFFLED)
    requests = list(ranges_of(provider, SHUFFLED, FAR_SEQUENCES, PER_REQUEST))
    ours = await measured(lambda: read_all(provider, FAR_SEQUENCES, PER_REQUEST))
    bare = await _bare(port, requests[:2])
    await provider.aclose()
    far = f"{ROUND_TRIP_S * 1000:.0f} ms away"
    figures = [
        Figure(f"HTTP {far}, shuffled", ours.gb_per_s, "GB/s", "", bare.gb_per_s, BARE_SHUFFLED, digits=3),
        Figure("CPU for it", ours.cpu_s_per_gb, "s/GB", "", bare.cpu_s_per_gb, "that socket's"),
    ]
    blocking = BareSocket(port)
    paced = list(ranges_of(provider, SHUFFLED, PACED_REQUESTS * PACED_PER_REQUEST, PACED_PER_REQUEST))

    async def read_bare(start: int, _: int) -> None:
        blocking.read(paced[start // PACED_PER_REQUEST])

    bare_s = sum((await _waits(read_bare))[PACED_BEGINNING:])
    blocking.close()
    cache = BlockCache(folder / "far", CACHE_BYTES)
    for cached, name in ((None, ""), (cache, ", --cache, cold"), (cache, ", --cache, warm")):
        provider, _ = await _opened(port, SHUFFLED, cached)

        async def read(start: int, end: int, provider: RangedDataProvider = provider) -> None:
            await provider.get_samples(DataIds(start, end))

        with provider.expecting([DataIds(0, PACED_REQUESTS * PACED_PER_REQUEST - 1)], PACED_PER_REQUEST):
            waits = await _waits(read)
        await provider.aclose()
        later_s = sum(waits[PACED_BEGINNING:])
        count = PACED_REQUESTS - PACED_BEGINNING
        shown = f"{far}: waited in {count} requests at {SAMPLES_PER_S} samples/s{name}"
        baseline = "a blocking socket"
        figures.append(Figure(shown, later_s, "s", "≈ 0 s", bare_s, baseline, digits=3))
    return figures


async def _cached(port: int, folder: Path, root: Path) -> list[Figure]:
    cache = BlockCache(folder / "near", CACHE_BYTES)
    provider, source = await _opened(port, SHUFFLED, cache)
    requests = list(ranges_of(provider, SHUFFLED, SEQUENCES, PER_REQUEST))
    cold = await measured(lambda: read_all(provider, SEQUENCES, PER_REQUEST))
    fetched = source.received_bytes / cold.size_bytes
    warm = [await measured(lambda: read_all(provider, SEQUENCES, PER_REQUEST)) for _ in range(PASSES)]
    await provider.aclose()
    held = [os.open(root / f"part-{number}.bin", os.O_RDONLY) for number in range(FILES)]

    async def from_the_disk() -> int:
        return sum(
            len(os.pread(held[file], stop - start, start)) for ranges in requests for file, start, stop in ranges
        )

    bare = [await measured(from_the_disk) for _ in range(PASSES)]
    for descriptor in held:
        os.close(descriptor)
    disk = "pread of the same ranges"
    return [
        Figure("HTTP with --cache, cold, a whole pass", cold.gb_per_s, "GB/s"),
        Figure("CPU for it", cold.cpu_s_per_gb, "s/GB"),
        Figure("bytes over-fetched in a whole pass", 100 * (fetched - 1), "%"),
        Figure("HTTP with --cache, warm", middle(warm, _rate), "GB/s", "", middle(bare, _rate), disk),
        Figure("CPU for it", middle(warm, _cpu), "s/GB", "", middle(bare, _cpu), "those reads'"),
    ]


@contextmanager
def data_by_nginx(folder: Path) -> Iterator[tuple[Nginx, Path] | None]:
    """Write the data, and yield an nginx that serves them, with their folder; None on a machine without nginx."""
    if not shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"):
        yield None
        return
    root = folder / "http-root"
    root.mkdir()
    write_data(root)
    with nginx(folder / "nginx", root) as server:
        yield server, root


async def measure(folder: Path) -> list[Figure]:
    """Measure every figure; without nginx, say that there is none."""
    with data_by_nginx(folder) as served:
        if served is None:
            return [Figure("HTTP from nginx", None, "GB/s", "≥ 0.3 x", None, NO_NGINX)]
        server, root = served
        port = int(server.url.rpartition(":")[2])
        figures = await _near(server, port)
        with far_away(port) as far_port:
            figures += await _far(far_port, folder)
        return figures + await _cached(port, folder, root)
