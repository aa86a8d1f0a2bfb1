"""Other clients and ours on the same nginx, one after the other in one run: fsspec, aiohttp, MosaicML Streaming."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.loading.http_ranges import (
    FAR_SEQUENCES,
    NO_NGINX,
    ROUND_TRIP_S,
    Cost,
    data_by_nginx,
    far_away,
    measured,
    ranges_of,
    read_all,
)
from benchmarks.loading.providers import FILES, IN_ORDER, PER_REQUEST, SEQUENCES, SHUFFLED
from epochal.data_providers.protocol import DatasetSpec
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.data_providers.sources.http.source import HttpSource
from epochal.state.errors import EpochalError

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".bench-peers" / "bin" / "python"
TIMEOUT_S = 900.0
FAR = f"{ROUND_TRIP_S * 1000:.0f} ms away"
PEERS = {
    "fsspec": "fsspec, cat_ranges of the same ranges, 256 samples at a time",
    "aiohttp": "aiohttp, the same ranges, 256 samples at a time",
    "streaming": "MosaicML Streaming, shuffled, whole shards by its S3 client, decoded, cold",
}


async def measure(folder: Path) -> list[Figure]:
    """Measure our provider beside each peer: bytes per second, and CPU per GB."""
    with data_by_nginx(folder) as served:
        if served is None:
            return [Figure("HTTP from nginx", None, "GB/s", "", None, NO_NGINX)]
        server, root = served
        near = int(server.url.rpartition(":")[2])
        with far_away(near) as far:
            cases = [
                ("shuffled", near, SHUFFLED, SEQUENCES),
                ("in order", near, IN_ORDER, SEQUENCES),
                (f"shuffled, {FAR}", far, SHUFFLED, FAR_SEQUENCES),
                (f"in order, {FAR}", far, IN_ORDER, FAR_SEQUENCES),
            ]
            ours: dict[str, Cost] = {}
            reads: dict[str, Any] = {}
            for name, port, spec, count in cases:
                ours[name], reads[name] = await _own(port, spec, count)
            job = {
                "root": str(root),
                "folder": str(folder),
                "reads": reads,
                "streaming": {"shuffled": near, f"shuffled, {FAR}": far},
            }
            peers = _peers(job, folder)
    figures = []
    for name, cost in ours.items():
        for peer, described in PEERS.items():
            theirs = peers.get(f"{peer}, {name}")
            if theirs is not None:
                title = f"HTTP from nginx, {name}"
                figures += [
                    Figure(title, cost.gb_per_s, "GB/s", "", theirs.gb_per_s, described, digits=3),
                    Figure("CPU for it", cost.cpu_s_per_gb, "s/GB", "", theirs.cpu_s_per_gb, f"{peer}'s"),
                ]
    return figures


async def _own(port: int, spec: DatasetSpec, count: int) -> tuple[Cost, dict[str, Any]]:
    source = await HttpSource.open([f"http://127.0.0.1:{port}/data/part-{number}.bin" for number in range(FILES)])
    provider = await RangedDataProvider.open(source, spec)
    cost = await measured(lambda: read_all(provider, count, PER_REQUEST))
    requests = list(ranges_of(provider, spec, count, PER_REQUEST))
    await provider.aclose()
    return cost, {"port": port, "requests": requests}


def _peers(job: dict[str, Any], folder: Path) -> dict[str, Cost]:
    if not PYTHON.exists():
        raise EpochalError(f"{PYTHON} does not exist; `make bench-peers` installs the peers")
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    # nginx does not look at signatures, but boto3 wants to make them.
    credentials = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = os.environ | credentials | {"PYTHONPATH": str(ROOT / "benchmarks" / "stubs")}
    command = [str(PYTHON), str(ROOT / "benchmarks" / "loading" / "peer_http.py"), str(path)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    if ran.returncode:
        raise EpochalError(f"the peers failed:\n{ran.stderr[-2000:]}")
    return {
        name: Cost(int(size), took_s, cpu)
        for name, (size, took_s, cpu) in json.loads(ran.stdout.splitlines()[-1]).items()
    }
