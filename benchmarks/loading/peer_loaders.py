"""`python benchmarks/loading/peer_loaders.py TOKENS FOLDER`: other loaders read sequences, in an environment of their
own.

Runs under that environment's Python and imports nothing of Epochal. TOKENS is a file of uint16 sequences of 2,048
tokens; each peer's own format is written into FOLDER first, untimed, then read shuffled with a warm cache, as the
peer's documentation says is fastest, in batches of 256, with 0 and 2 workers. Prints one JSON object.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 2048
BATCH = 256
PASSES = 2
"""The first pass warms up workers and caches; the last one is measured."""


def rate(batches: Callable[[], Iterator[Any]]) -> float:
    """Return sequences per second of the last pass, measured from its second batch on."""
    found = 0.0
    for _ in range(PASSES):
        iterator = batches()
        next(iterator)
        begin_s = time.perf_counter()
        count = sum(1 for _ in iterator)
        found = count * BATCH / (time.perf_counter() - begin_s)
    return found


def streaming_rates(rows: np.ndarray[Any, Any], folder: Path) -> dict[str, float]:
    """Measure MosaicML Streaming: MDS on the local disk, through torch's DataLoader."""
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    with MDSWriter(out=str(folder), columns={"tokens": f"ndarray:uint16:{LENGTH}"}) as writer:
        for row in rows:
            writer.write({"tokens": row})
    rates = {}
    for workers in (0, 2):
        dataset = StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH)
        loader = DataLoader(dataset, batch_size=BATCH, num_workers=workers, persistent_workers=workers > 0)
        rates[f"streaming, {workers} workers"] = rate(lambda loader=loader: iter(loader))
    return rates


def grain_rates(rows: np.ndarray[Any, Any], folder: Path) -> dict[str, float]:
    """Measure Grain: ArrayRecord with groups of one, which it recommends for random access."""
    import grain
    from array_record.python.array_record_module import ArrayRecordWriter

    path = folder / "tokens.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for row in rows:
        writer.write(row.tobytes())
    writer.close()
    rates = {}
    for workers in (0, 2):
        source = grain.sources.ArrayRecordDataSource([str(path)])
        dataset = grain.MapDataset.source(source).shuffle(seed=1).map(_decode).batch(BATCH)
        batches = dataset.to_iter_dataset(grain.ReadOptions(num_threads=16, prefetch_buffer_size=500))
        if workers:
            batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        rates[f"grain, {workers} workers"] = rate(lambda batches=batches: iter(batches))
    return rates


def _decode(record: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(record, dtype=np.uint16)


def main() -> None:
    """Measure the peers that are installed."""
    rows = np.fromfile(sys.argv[1], dtype="<u2").reshape(-1, LENGTH)
    folder = Path(sys.argv[2])
    found: dict[str, float] = {}
    for name, measure in (("streaming", streaming_rates), ("grain", grain_rates)):
        (folder / name).mkdir(parents=True)
        found |= measure(rows, folder / name)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
