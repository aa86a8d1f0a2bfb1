"""One blob over loopback HTTP: to a bare client, to the project's client, and the same bytes from nginx."""

import asyncio
import os
import shutil
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.figures import Figure
from benchmarks.servers import CoordinatorProcess, coordinator_of
from epochal.coordinator_client.http import CoordinatorClient
from epochal.runtime.files.spool import Spool
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import EpochalError
from epochal.state.wire import Sha256
from tests.support.servers.nginx import nginx

PASSES = 5
PIECE_BYTES = 1024 * 1024
RATE_TARGET = "≥ 0.8 x"
CPU_TARGET = "≤ 0.8 s"


def blobs_of(process: CoordinatorProcess) -> list[Path]:
    """Return the files of a coordinator's blobs, the largest one first."""
    found = [path for path in (process.run_dir / "blobs").glob("??/*") if len(path.name) == 64]
    return sorted(found, key=lambda path: path.stat().st_size, reverse=True)


def bare_download(url: str, token: str, path: Path | None = None) -> int:
    """Receive a body over a bare socket, write it to a file if one is given, and return its size."""
    place = urlsplit(url)
    assert place.hostname is not None
    with socket.create_connection((place.hostname, place.port or 80)) as line:
        head = f"GET {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
        line.sendall(head.encode())
        buffer = memoryview(bytearray(PIECE_BYTES))
        received = b""
        while b"\r\n\r\n" not in received:
            received += line.recv(4096)
        headers, _, body = received.partition(b"\r\n\r\n")
        lengths = [row for row in headers.lower().split(b"\r\n") if row.startswith(b"content-length:")]
        size_bytes = int(lengths[0].partition(b":")[2])
        count = len(body)
        with open(os.devnull if path is None else path, "wb", buffering=0) as file:
            file.write(body)
            while count < size_bytes:
                more = line.recv_into(buffer)
                if not more:
                    raise EpochalError(f"the body of {url} ended after {count} bytes")
                if path is not None:
                    file.write(buffer[:more])
                count += more
    return size_bytes


def cpu_s(process: int) -> float:
    """Return the processor time in s of a process and its descendants, whenever they were started; also ended ones.

    A server may fork its workers after it listens, so they are looked up at each call.
    """
    folder = Path(f"/proc/{process}")
    fields = folder.joinpath("stat").read_text().rpartition(")")[2].split()
    own_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # user's and system's, and those of ended children
    children = [int(child) for path in folder.glob("task/*/children") for child in path.read_text().split()]
    return own_s + sum(map(cpu_s, children))


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
    yield await asyncio.to_thread(bare_download, url, token)


async def _nginx_transfer(folder: Path, blob: Path) -> _Transfer | None:
    if not shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin"):
        return None
    root = folder / "root"
    root.mkdir()
    os.link(blob, root / "blob")
    (root / "blob").chmod(0o644)
    with nginx(folder / "nginx", root) as server:
        return await _transfer(lambda: cpu_s(server.process.pid), lambda: _bare(f"{server.url}/data/blob", ""))


async def _client_transfer(process: CoordinatorProcess, folder: Path, sha256: Sha256) -> tuple[_Transfer, _Transfer]:
    """Return what the coordinator sends to a bare client, and what the project's client receives of it."""
    client = await CoordinatorClient.connect(process.url, RetryPolicy())
    async with client:
        client.use_token(process.admin_token)
        spool = Spool(folder / "spool")

        async def ours() -> AsyncIterator[int]:
            file = spool.file()
            await client.get_blob(sha256, file)
            if file.sha256() != sha256:
                raise EpochalError("the blob arrived with another digest")
            yield file.size_bytes

        def server_s() -> float:
            return cpu_s(process.child.process.pid)

        url = f"{process.url}/v1/blobs/{sha256}"
        bare = await _transfer(server_s, lambda: _bare(url, process.admin_token))
        whole = await _transfer(server_s, ours)
        spool.close()
    return bare, whole


async def blob_figures(folder: Path, state: str) -> list[Figure]:
    """Measure downloads of the largest blob with which a run of this state file starts."""
    async with coordinator_of(state, folder) as process:
        blob = blobs_of(process)[0]
        size_mb = blob.stat().st_size / 1e6
        bare, ours = await _client_transfer(process, folder, Sha256(blob.name))
        nginx_bare = await _nginx_transfer(folder, blob)
    size = f"a blob of {size_mb:.0f} MB"
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
