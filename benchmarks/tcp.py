"""The TCP data server beside bare blocking loops of sockets in the same run: rates, processor time, fairness, memory.

Every rate is the median of short passes that alternate with those of its baseline, so that both see the same machine.
Server and client are two processes on one machine; the data are in the page cache.
"""

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.data_server_process import COUNT, HOST, PLACE, spec_of
from benchmarks.figures import Figure
from data_providers.local import LocalDataProvider
from data_providers.tcp.client import TcpDataProvider
from data_providers.tcp.client_connection import DataServerAccess, DataServerAddress
from state.intervals import DataIds
from tests.support.certificates import self_signed

LENGTH = 2048
SEQUENCE_BYTES = 2 * LENGTH
SEQUENCES = 32_768
"""128 MiB."""
PASS_SEQUENCES = 8192
"""32 MiB."""
PASSES = 25
CLIENTS = 32
CLIENT_SECONDS = 10.0
IDLE = 500
BARE = "a bare blocking loop: sendall of a memory map, recv_into"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def _served(*arguments: str) -> Iterator[tuple[int, int]]:
    """Start a server; yield its process id and port."""
    command = [sys.executable, "-m", "benchmarks.data_server_process", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.stdin.close()


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@dataclass
class _Spent:
    """Seconds of passes, and of the processors of both ends in all of them."""

    passes_s: list[float] = field(default_factory=list)
    client_s: float = 0.0
    server_s: float = 0.0

    async def measure(self, pid: int, one_pass: Callable[[], Awaitable[None]]) -> None:
        """Add a pass."""
        server_s, client_s, begin_s = _processor_s(pid), time.process_time(), time.perf_counter()
        await one_pass()
        self.passes_s.append(time.perf_counter() - begin_s)
        self.client_s += time.process_time() - client_s
        self.server_s += _processor_s(pid) - server_s

    @property
    def rate(self) -> float:
        """MB/s."""
        return PASS_SEQUENCES * SEQUENCE_BYTES / statistics.median(self.passes_s) / 1e6

    def per_gb(self, seconds: float) -> float:
        return seconds / (len(self.passes_s) * PASS_SEQUENCES * SEQUENCE_BYTES / 1e9)


class _BareClient:
    """Asks the bare loop for the same bytes, in the same order, one request after the other."""

    def __init__(self, port: int, folder: Path, per_request: int, *, shuffled: bool) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._size_bytes = per_request * SEQUENCE_BYTES
        order = LocalDataProvider.open(folder, spec_of(LENGTH, shuffled=shuffled)).order
        self._requests: list[bytes] = []
        for start in range(0, PASS_SEQUENCES, per_request):
            extents = order.locate(DataIds(start, start + per_request - 1))
            places = [(extent.sequence * SEQUENCE_BYTES, extent.length * SEQUENCE_BYTES) for extent in extents]
            self._requests.append(COUNT.pack(len(places)) + b"".join(PLACE.pack(*place) for place in places))

    async def one_pass(self) -> None:
        """Receive every answer into an array of its own, as a trainer wants it."""
        for request in self._requests:
            self._socket.sendall(request)
            answer = np.empty(self._size_bytes, np.uint8)
            received = self._socket.recv_into(answer.data, self._size_bytes, socket.MSG_WAITALL)
            assert received == self._size_bytes

    def close(self) -> None:
        self._socket.close()


async def _beside_bare(folder: Path, per_request: int, *, shuffled: bool, tls: Path | None = None) -> list[_Spent]:
    """Return what Epochal's server and the bare loop spend, pass for pass."""
    order = "shuffled" if shuffled else "in-order"
    data = folder / "data"
    files = [] if tls is None else [str(path) for path in self_signed(tls)]
    epochal, bare = _Spent(), _Spent()
    with (
        _served("epochal", str(data), str(LENGTH), order, *files) as (pid, port),
        _served("bare", str(data / "tokens.bin")) as (bare_pid, bare_port),
    ):
        access = DataServerAccess(lambda: "", trust=files[0] if files else True)
        client = await TcpDataProvider.open(DataServerAddress(HOST, port, "a-run", bool(files)), access)
        bare_client = _BareClient(bare_port, data, per_request, shuffled=shuffled)

        async def one_pass() -> None:
            for start in range(0, PASS_SEQUENCES, per_request):
                await client.get_samples(DataIds(start, start + per_request - 1))

        await one_pass()
        await bare_client.one_pass()
        for _ in range(PASSES):
            await bare.measure(bare_pid, bare_client.one_pass)
            await epochal.measure(pid, one_pass)
        bare_client.close()
        await client.aclose()
    return [epochal, bare]


async def _rates(folder: Path) -> list[Figure]:
    figures: list[Figure] = []
    for shuffled, target in ((False, "≥ 0.8 x"), (True, "≥ 0.9 x")):
        for mebibytes in (1, 4):
            epochal, bare = await _beside_bare(folder, mebibytes * 2**20 // SEQUENCE_BYTES, shuffled=shuffled)
            name = f"TCP, {'shuffled' if shuffled else 'in order'}, {mebibytes} MiB a request"
            figures.append(Figure(name, epochal.rate, "MB/s", target, bare.rate, BARE))
            for end, spent_s, bare_s in (
                ("client", epochal.client_s, bare.client_s),
                ("server", epochal.server_s, bare.server_s),
            ):
                name = f"processor time of the {end}"
                figures.append(Figure(name, epochal.per_gb(spent_s), "s/GB", "", bare.per_gb(bare_s), "the same loop"))
    epochal, bare = await _beside_bare(folder, 2**20 // SEQUENCE_BYTES, shuffled=False, tls=folder)
    figures.append(
        Figure("TCP over TLS, in order, 1 MiB a request", epochal.rate, "MB/s", "", bare.rate, f"{BARE}, no TLS")
    )
    for end, spent_s in (("client", epochal.client_s), ("server", epochal.server_s)):
        figures.append(Figure(f"processor time of the {end}", epochal.per_gb(spent_s), "s/GB"))
    return figures


async def _fairness(folder: Path) -> Figure:
    """Return the slowest client's rate beside the mean of all, each asking for as much as it gets."""
    counts = [0] * CLIENTS

    async def ask(number: int, client: TcpDataProvider, end_s: float) -> None:
        per_request = 2**20 // SEQUENCE_BYTES
        while time.perf_counter() < end_s:
            start = counts[number] * per_request % (SEQUENCES - per_request)
            await client.get_samples(DataIds(start, start + per_request - 1))
            counts[number] += 1

    with _served("epochal", str(folder / "data"), str(LENGTH), "shuffled") as (_, port):
        address = DataServerAddress(HOST, port, "a-run")
        clients = [await TcpDataProvider.open(address, lambda: "") for _ in range(CLIENTS)]
        end_s = time.perf_counter() + CLIENT_SECONDS
        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(clients):
                group.create_task(ask(number, client, end_s))
        for client in clients:
            await client.aclose()
    fairness = min(counts) / statistics.mean(counts)
    return Figure(f"TCP, {CLIENTS} clients at once: the slowest one's rate", fairness, "of the mean", "≥ 0.95")


async def _idle_memory(folder: Path, tls: Path | None) -> Figure:
    files = [] if tls is None else [str(path) for path in self_signed(tls)]
    with _served("epochal", str(folder / "data"), str(LENGTH), "in-order", *files) as (pid, port):
        address = DataServerAddress(HOST, port, "a-run", bool(files))
        access = DataServerAccess(lambda: "", trust=files[0] if files else True)
        first = await TcpDataProvider.open(address, access)
        await first.get_samples(DataIds(0, 255))
        before = _resident_bytes(pid)
        clients = [await TcpDataProvider.open(address, access) for _ in range(IDLE)]
        each = (_resident_bytes(pid) - before) / IDLE
        for client in (first, *clients):
            await client.aclose()
    name = f"TCP{' over TLS' if files else ''}, {IDLE} idle connections: the server's memory for each"
    return Figure(name, each / 1024, "KiB", "≤ 64 KiB")


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure(folder: Path) -> list[Figure]:
    """Measure every figure."""
    (folder / "data").mkdir()
    tokens = np.random.default_rng(0).integers(0, 50_000, SEQUENCES * LENGTH, dtype=np.uint16)
    tokens.astype("<u2").tofile(folder / "data" / "tokens.bin")
    return [
        *await _rates(folder),
        await _fairness(folder),
        await _idle_memory(folder, None),
        await _idle_memory(folder, folder),
    ]
