"""The exchange of results and checkpoints: seconds a round, memory of client and coordinator, and one blob over HTTP.

Rounds are those of real processes whose trainer computes nothing, so that all their time is the exchange's: encoding,
uploads, checks, downloads, merges and digests. A blob is measured beside nginx, which serves the same bytes, with a
bare client, which does nothing with them.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.figures import Figure
from benchmarks.rounds import round_starts
from benchmarks.servers import LONG, RUN_ID, CoordinatorProcess, coordinator_of
from benchmarks.torch_memory import memory_bytes
from coordinator_client.http import CoordinatorClient
from epochal.testnet.child_processes import Child
from runtime.retry import RetryPolicy
from runtime.spool import Spool
from state.errors import EpochalError
from tests.support.nginx import nginx
from tests.support.states import state_text

SIZES = {10: (256, 4_850), 50: (512, 12_150), 100: (1024, 11_800)}
"""Embedding and hidden width of embedded models by their parameters in millions."""
CLIENTS = (2, 4, 8)
ROUNDS = 4
FIRST_MEASURED = 1
"""The first round also waits for whoever joins last."""
RUN_TIMEOUT_S = 900.0
POLL_S = 0.05
PEAK, ANONYMOUS = "VmHWM", "RssAnon"
MB = 1e6
BLOB_MILLIONS = 50
"""Its checkpoint, of 400 MB, is the blob that is measured."""
PASSES = 5
PIECE_BYTES = 1024 * 1024
CLIENT_TARGET = "≤ 3.2 x M + 250 MB"
COORDINATOR_TARGET = "≤ 250 MB"
RATE_TARGET = "≥ 0.8 x"
CPU_TARGET = "≤ 0.8 s"
NOTES = (
    "M is the size of the model's parameters in float32. Peaks are the largest of all clients': of resident memory, "
    "which counts pages of mapped files while they are in memory (VmHWM), and of what is the process's own (RssAnon, "
    f"looked at every {POLL_S:g} s). One of the parameters holds 97 % of the model, and is made at once. No trainer "
    "computes, so all the time of a round is the exchange's; clients and coordinator share the machine.",
)
"""What the page says of the figures."""


@dataclass(slots=True)
class _Peak:
    """The memory of a process, in bytes: its peak, and the peak of what is its own."""

    total: int = 0
    anonymous: int = 0

    def look(self, process: int) -> None:
        with contextlib.suppress(OSError, EpochalError):  # it has ended
            self.total = max(self.total, memory_bytes(PEAK, process))
            self.anonymous = max(self.anonymous, memory_bytes(ANONYMOUS, process))


@dataclass(slots=True)
class _Measured:
    round_s: float
    start: _Peak = field(default_factory=_Peak)
    client: _Peak = field(default_factory=_Peak)
    coordinator: _Peak = field(default_factory=_Peak)


def _state(millions: int, clients: int) -> str:
    embedding, hidden = SIZES[millions]
    overrides: dict[str, object] = {
        "config__init_min_clients": clients,
        "config__min_clients": clients,
        "config__total_steps": ROUNDS + FIRST_MEASURED + 1,
        "config__epoch_time": 3000,
        "config__waiting_for_members_extra_time": 0.05,
        "config__max_round_train_time": 600,
        "blobs__max_total_bytes": 10**11,
    }
    overrides |= {f"config__{name}": 600 for name in LONG}
    return state_text(
        run_id=RUN_ID,
        model__LLM__max_seq_len=256,
        model__LLM__data_location="Dummy",
        model__LLM__ngram={"context": 8, "embedding": embedding, "hidden": hidden},
        **overrides,
    )


def _begin_peak_anew(process: int) -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")


async def _watch(children: list[Child], peak: _Peak) -> None:
    while True:
        for child in children:
            peak.look(child.process.pid)
        await asyncio.sleep(POLL_S)


async def _rounds(folder: Path, millions: int, clients: int) -> _Measured:
    """Run a run of some clients; return the median time of a round, and the memory."""
    measured = _Measured(0.0)
    async with coordinator_of(_state(millions, clients), folder) as process, asyncio.TaskGroup() as group:
        measured.start.look(process.child.process.pid)
        _begin_peak_anew(process.child.process.pid)
        children = [
            await process.children.start(
                f"client-{number}", "client", process.url, "--trainer", "null", "--spool", str(folder / "spool")
            )
            for number in range(clients)
        ]
        watching = [
            group.create_task(_watch(children, measured.client)),
            group.create_task(_watch([process.child], measured.coordinator)),
        ]
        for child in children:
            if await child.wait(RUN_TIMEOUT_S) != 0:
                raise EpochalError(f"{child.name} did not finish:\n{child.log_tail()}")
        for task in watching:
            task.cancel()
    starts, _ = await round_starts(process.run_dir)
    steps = range(FIRST_MEASURED + 1, ROUNDS + FIRST_MEASURED)
    measured.round_s = statistics.median(starts[step + 1] - starts[step] for step in steps)
    return measured


async def _round_figures(millions: int, clients: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="epochal-bench-") as folder:
        found = await _rounds(Path(folder), millions, clients)
    name = f"{millions} M parameters, {clients} clients"
    model_mb = 4 * millions * 1e6 / MB
    return [
        Figure(f"a round: {name}", found.round_s, "s"),
        *_memory_figures(f"a client's peak: {name}", found.client, CLIENT_TARGET, model_mb),
        *_memory_figures(f"the coordinator's peak: {name}", found.coordinator, COORDINATOR_TARGET, model_mb),
        Figure("the coordinator, when it makes the first model", found.start.total / MB, "MB", "", model_mb, "M", 1),
    ]


def _memory_figures(name: str, peak: _Peak, target: str, model_mb: float) -> list[Figure]:
    return [
        Figure(name, peak.total / MB, "MB", target, model_mb, "M", 1),
        Figure("of it its own, and of no mapped file", peak.anonymous / MB, "MB", "", model_mb, "M", 1),
    ]


def _bare_download(url: str, token: str) -> int:
    """Receive a body over a bare socket, do nothing with it, and return its size."""
    place = urlsplit(url)
    assert place.hostname is not None
    with socket.create_connection((place.hostname, place.port or 80)) as line:
        head = f"GET {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
        line.sendall(head.encode())
        buffer = bytearray(PIECE_BYTES)
        received = b""
        while b"\r\n\r\n" not in received:
            received += line.recv(4096)
        headers, _, body = received.partition(b"\r\n\r\n")
        lengths = [row for row in headers.lower().split(b"\r\n") if row.startswith(b"content-length:")]
        size_bytes = int(lengths[0].partition(b":")[2])
        count = len(body)
        while count < size_bytes:
            count += line.recv_into(buffer)
    return size_bytes


def _cpu_s(process: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children_of(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A transfer's rate in GB/s, and the seconds of processor time per GB on the server's and on this side."""

    rate: float
    server_cpu_s: float
    client_cpu_s: float


async def _transfer(server: Callable[[], float], download: Callable[[], AsyncIterator[int]]) -> _Transfer:
    """Measure some downloads, one after the other."""
    times, total_bytes = [], 0
    async for _ in download():  # warms the connection and the cache
        pass
    server_s, client_s = server(), time.process_time()
    for _ in range(PASSES):
        start_s = time.perf_counter()
        async for size_bytes in download():
            total_bytes += size_bytes
        times.append(time.perf_counter() - start_s)
    server_s, client_s = server() - server_s, time.process_time() - client_s
    per_pass_gb = total_bytes / PASSES / 1e9
    gigabytes = total_bytes / 1e9
    return _Transfer(per_pass_gb / statistics.median(times), server_s / gigabytes, client_s / gigabytes)


async def _bare(url: str, token: str) -> AsyncIterator[int]:
    yield await asyncio.to_thread(_bare_download, url, token)


async def _nginx_transfer(folder: Path, blob: Path) -> _Transfer | None:
    if not shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin"):
        return None
    root = folder / "root"
    root.mkdir()
    os.link(blob, root / "blob")
    (root / "blob").chmod(0o644)
    with nginx(folder / "nginx", root) as server:
        workers = _children_of(server.process.pid)
        return await _transfer(lambda: sum(map(_cpu_s, workers)), lambda: _bare(f"{server.url}/data/blob", ""))


async def _client_transfer(process: CoordinatorProcess, folder: Path) -> tuple[_Transfer, _Transfer]:
    """Return what the coordinator sends to a bare client, and what the project's client receives of it."""
    client = await CoordinatorClient.connect(process.url, RetryPolicy())
    async with client:
        client.use_token(process.admin_token)
        (checkpoint,) = await client.checkpoints()
        spool = Spool(folder / "spool")

        async def ours() -> AsyncIterator[int]:
            file = spool.file()
            await client.get_blob(checkpoint.blob_sha256, file)
            if file.sha256() != checkpoint.blob_sha256:
                raise EpochalError("the blob arrived with another digest")
            yield file.size_bytes

        def cpu_s() -> float:
            return _cpu_s(process.child.process.pid)

        url = f"{process.url}/v1/blobs/{checkpoint.blob_sha256}"
        bare = await _transfer(cpu_s, lambda: _bare(url, process.admin_token))
        whole = await _transfer(cpu_s, ours)
        spool.close()
    return bare, whole


async def _blob_figures(folder: Path, millions: int) -> list[Figure]:
    async with coordinator_of(_state(millions, 2), folder) as process:
        bare, ours = await _client_transfer(process, folder)
        (blob,) = (path for path in (process.run_dir / "blobs").glob("??/*") if len(path.name) == 64)
        nginx_bare = await _nginx_transfer(folder, blob)
    size = f"a blob of {8 * millions} MB"
    rate = None if nginx_bare is None else nginx_bare.rate
    server_s = None if nginx_bare is None else nginx_bare.server_cpu_s
    absent = "no nginx is installed" if nginx_bare is None else "nginx, with a bare client"
    return [
        Figure(f"{size}, to a bare client", bare.rate, "GB/s", RATE_TARGET, rate, absent),
        Figure(f"{size}, to the project's client", ours.rate, "GB/s", RATE_TARGET, rate, absent),
        Figure("processor time of the coordinator, per GB", bare.server_cpu_s, "s", CPU_TARGET, server_s, absent),
        Figure(
            "processor time of the client, per GB",
            ours.client_cpu_s,
            "s",
            CPU_TARGET,
            bare.client_cpu_s,
            "the bare client, which neither hashes nor keeps it",
        ),
    ]


async def _measure(sizes: tuple[int, ...], counts: tuple[int, ...], blob_millions: int) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="epochal-bench-") as folder:
        figures = await _blob_figures(Path(folder), blob_millions)
    for millions in sizes:
        for clients in counts:
            figures += await _round_figures(millions, clients)
    return figures


def measure() -> list[Figure]:
    """Measure one blob, and rounds of every size with every number of clients: about a quarter of an hour."""
    return asyncio.run(_measure(tuple(SIZES), CLIENTS, BLOB_MILLIONS))


def measure_small() -> list[Figure]:
    """Measure one smaller blob, and rounds of the smallest model with two clients: about a minute."""
    return asyncio.run(_measure((min(SIZES),), (min(CLIENTS),), min(SIZES)))
