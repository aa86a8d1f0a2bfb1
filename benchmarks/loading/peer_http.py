"""`python benchmarks/loading/peer_http.py JOB`: other clients read the same data over HTTP, in an environment of
their own.

Runs under that environment's Python and imports nothing of Epochal. JOB is a JSON file: the servers' ports by name, the
folder that they serve, and the requests, each a list of [file, start, stop]. Prints one JSON object: for each reader
the bytes, the seconds and the seconds of CPU of this process and of its children.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 2048
BATCH = 256
Requests = Sequence[Sequence[Sequence[int]]]


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(read: Callable[[], int]) -> list[float]:
    """Return bytes, seconds and CPU seconds of a call."""
    begun_s, begun_cpu_s = time.perf_counter(), cpu_s()
    size_bytes = read()
    return [size_bytes, time.perf_counter() - begun_s, cpu_s() - begun_cpu_s]


def fsspec_read(base: str, requests: Requests) -> int:
    """Read by fsspec's `cat_ranges`, one request's ranges together."""
    import fsspec

    fs = fsspec.filesystem("http", skip_instance_cache=True)
    total = 0
    for ranges in requests:
        paths = [f"{base}/data/part-{file}.bin" for file, _, _ in ranges]
        found = fs.cat_ranges(paths, [start for _, start, _ in ranges], [stop for _, _, stop in ranges])
        total += sum(map(len, found))
    return total


def aiohttp_read(base: str, requests: Requests) -> int:
    """Read by aiohttp, one request's ranges together."""
    import aiohttp

    async def read() -> int:
        total = 0
        async with aiohttp.ClientSession() as session:

            async def one(file: int, start: int, stop: int) -> int:
                field = {"Range": f"bytes={start}-{stop - 1}"}
                async with session.get(f"{base}/data/part-{file}.bin", headers=field) as answer:
                    return len(await answer.read())

            for ranges in requests:
                async with asyncio.TaskGroup() as group:
                    jobs = [group.create_task(one(*place)) for place in ranges]
                total += sum(job.result() for job in jobs)
        return total

    return asyncio.run(read())


def streaming_read(port: int, folder: Path, name: str) -> list[float]:
    """Read a shuffled pass by MosaicML Streaming, whose shards come from the same server by its S3 client."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    os.environ["S3_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    local = folder / f"streaming-{name}"

    def read() -> int:
        dataset = StreamingDataset(remote="s3://data/mds", local=str(local), shuffle=True, batch_size=BATCH)
        return sum(batch["tokens"].numel() * 2 for batch in DataLoader(dataset, batch_size=BATCH))

    return measured(read)


def write_mds(root: Path) -> None:
    """Write the served tokens as MDS too."""
    from streaming import MDSWriter

    with MDSWriter(out=str(root / "mds"), columns={"tokens": f"ndarray:uint16:{LENGTH}"}) as writer:
        for path in sorted(root.glob("part-*.bin")):
            for row in np.fromfile(path, "<u2").reshape(-1, LENGTH):
                writer.write({"tokens": row})


def main() -> None:
    """Measure every reader that the job names."""
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    root, folder = Path(job["root"]), Path(job["folder"])
    found: dict[str, list[float]] = {}
    for name, one in job["reads"].items():
        base = f"http://127.0.0.1:{one['port']}"
        for peer, read in (("fsspec", fsspec_read), ("aiohttp", aiohttp_read)):
            found[f"{peer}, {name}"] = measured(lambda read=read, base=base, one=one: read(base, one["requests"]))
    write_mds(root)
    for name, port in job["streaming"].items():
        found[f"streaming, {name}"] = streaming_read(port, folder, name.replace(" ", "-"))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
