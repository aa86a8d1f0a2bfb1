"""The TCP data server beside bare blocking loops of sockets in the same run: rates, processor time, fairness, memory.

Every rate is the median of short passes that alternate with those of its baseline, so that both see the same machine.
Each server and each client is a process of its own on one machine, on a core of its own; the data are in the page
cache.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure
from benchmarks.loading.data_client_process import LENGTH, PASS_SEQUENCES, SEQUENCE_BYTES
from benchmarks.loading.data_server_process import HOST
from epochal.data_providers.tcp.client_connection import DataServerAccess, DataServerAddress
from epochal.data_providers.tcp.data_client import TcpDataProvider
from epochal.state.intervals import DataIds
from tests.support.servers.certificates import self_signed

SEQUENCES = 32_768
"""128 MiB."""
PASSES = 75
CLIENTS = 32
CLIENT_SECONDS = 10.0
IDLE = 500
BARE = "bare blocking sockets, a core each"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def _started(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program, which ends with its standard input."""
    command = [sys.executable, "-m", f"benchmarks.loading.{module}", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()


@contextmanager
def _served(*arguments: str) -> Iterator[tuple[int, int]]:
    """Start a server; yield its process id and port."""
    with _started("data_server_process", *arguments) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@dataclass
class _Spent:
    """Seconds of passes, and of the processors of both ends in all of them."""

    passes_s: list[float] = field(default_factory=list)
    client_s: float = 0.0
    server_s: float = 0.0

    def measure(self, server_pid: int, client: subprocess.Popen[bytes]) -> None:
        """Add a pass."""
        server_s, client_s = _processor_s(server_pid), _processor_s(client.pid)
        self.passes_s.append(_one_pass(client))
        self.client_s += _processor_s(client.pid) - client_s
        self.server_s += _processor_s(server_pid) - server_s

    @property
    def rate(self) -> float:
        """MB/s."""
        return PASS_SEQUENCES * SEQUENCE_BYTES / statistics.median(self.passes_s) / 1e6

    def per_gb(self, seconds: float) -> float:
        return seconds / (len(self.passes_s) * PASS_SEQUENCES * SEQUENCE_BYTES / 1e9)


def _one_pass(client: subprocess.Popen[bytes]) -> float:
    """Return the seconds of one pass."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(b"\n")
    client.stdin.flush()
    return float(client.stdout.readline())


def _beside_bare(folder: Path, request_bytes: int, *, shuffled: bool, tls: Path | None = None) -> list[_Spent]:
    """Return what Epochal's server and client and the bare loops spend, pass for pass."""
    data, order = str(folder / "data"), "shuffled" if shuffled else "in-order"
    files = [] if tls is None else [str(path) for path in self_signed(tls)]
    asked = (data, order, str(request_bytes))
    epochal, bare = _Spent(), _Spent()
    with (
        _served("epochal", data, str(LENGTH), order, *files) as (pid, port),
        _served("bare", f"{data}/tokens.bin") as (bare_pid, bare_port),
        _started("data_client_process", "epochal", str(port), *asked, *files[:1]) as client,
        _started("data_client_process", "bare", str(bare_port), *asked) as bare_client,
    ):
        _one_pass(client)
        _one_pass(bare_client)
        for _ in range(PASSES):
            bare.measure(bare_pid, bare_client)
            epochal.measure(pid, client)
    return [epochal, bare]


def _rates(folder: Path) -> list[Figure]:
    figures: list[Figure] = []
    for shuffled in (False, True):
        for mebibytes in (1, 4):
            epochal, bare = _beside_bare(folder, mebibytes * 2**20, shuffled=shuffled)
            name = f"TCP, {'shuffled' if shuffled else 'in order'}, {mebibytes} MiB a request"
            figures.append(Figure(name, epochal.rate, "MB/s", "", bare.rate, BARE))
            for end, spent_s, bare_s in (
                ("client", epochal.client_s, bare.client_s),
                ("server", epochal.server_s, bare.server_s),
            ):
                name = f"the {end}'s processor"
                figures.append(Figure(name, epochal.per_gb(spent_s), "s/GB", "", bare.per_gb(bare_s), "the same loop"))
    epochal, bare = _beside_bare(folder, 2**20, shuffled=False, tls=folder)
    figures.append(
        Figure("TCP over TLS, in order, 1 MiB a request", epochal.rate, "MB/s", "", bare.rate, f"{BARE}, no TLS")
    )
    for end, spent_s in (("client", epochal.client_s), ("server", epochal.server_s)):
        figures.append(Figure(f"the {end}'s processor", epochal.per_gb(spent_s), "s/GB"))
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
        *_rates(folder),
        await _fairness(folder),
        await _idle_memory(folder, None),
        await _idle_memory(folder, folder),
    ]
