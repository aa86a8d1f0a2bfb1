"""`make bench-peers`: other loaders and ours on the same sequences, one after the other in one run, with a plot."""

import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure
from benchmarks.loading import http_peers
from benchmarks.loading.providers import LENGTH, PASSES, PER_REQUEST, SEQUENCES, SHUFFLED
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.state.errors import EpochalError
from epochal.state.intervals import DataIds

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".bench-peers" / "bin" / "python"
TIMEOUT_S = 600.0


async def _own_rate(path: Path) -> float:
    """Return sequences per second, shuffled, one request after the other."""
    provider = LocalDataProvider.open(path, SHUFFLED)
    rates = []
    for _ in range(PASSES):
        begin_s = time.perf_counter()
        for start in range(0, SEQUENCES, PER_REQUEST):
            await provider.get_samples(DataIds(start, start + PER_REQUEST - 1))
        rates.append(SEQUENCES / (time.perf_counter() - begin_s))
    await provider.aclose()
    return statistics.median(rates)


def _peer_rates(path: Path, folder: Path) -> dict[str, float]:
    if not PYTHON.exists():
        raise EpochalError(f"{PYTHON} does not exist; `make bench-peers` installs the peers")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks" / "stubs")}
    command = [str(PYTHON), str(ROOT / "benchmarks" / "peer_loaders.py"), str(path), str(folder)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    if ran.returncode:
        raise EpochalError(f"the peers failed:\n{ran.stderr[-2000:]}")
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


async def measure(folder: Path) -> list[Figure]:
    """Measure our provider beside each peer, in sequences per second."""
    path = folder / "tokens.bin"
    tokens = np.random.default_rng(0).integers(0, 50_000, SEQUENCES * LENGTH, dtype=np.uint16)
    tokens.astype("<u2").tofile(path)
    peers = _peer_rates(path, folder / "peers")
    ours = await _own_rate(path)
    name = f"local, shuffled, {PER_REQUEST} per request"
    figures = [Figure(name, ours, "seq/s", "≥ 10 x", rate, peer) for peer, rate in peers.items()]
    return figures + await http_peers.measure(folder)
