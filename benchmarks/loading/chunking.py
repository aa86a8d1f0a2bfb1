"""Chunking: data one by one and in columns, beside the generator of the Tinker SDK where it is installed."""

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.figures import Figure, per_second
from epochal.batching.chunking.column_chunks import chunk_columns
from epochal.batching.chunking.datums import Datum, ModelInput, TensorData
from epochal.batching.chunking.policies import BYTES, chunk_data
from epochal.data_providers.protocol import TokenBatch

COUNT = 100_000
MEAN_TOKENS = 200
LOSS_INPUTS = 2
BATCH = 256
"""Number of samples in one answer of a provider."""


def measure() -> list[Figure]:
    """Measure data per second, and the memory that chunking takes in addition to the data's."""
    lengths = np.random.default_rng(0).poisson(MEAN_TOKENS, COUNT)
    name, baseline = _baseline(lengths)
    data, batches = _data(lengths), list(_batches(lengths))
    bare = per_second(baseline, COUNT)
    by_datum = per_second(lambda: _drain(chunk_data(data)), COUNT)
    by_column = per_second(lambda: _drain(chunk_columns(batches, LOSS_INPUTS)), COUNT)
    memory = "memory taken by chunking 1,000,000 data in columns"
    return [
        Figure("chunking of data one by one", by_datum, "data/s", "not slower", bare, name),
        Figure("chunking of columns, as providers deliver them", by_column, "data/s", ">= 10 x", bare, name),
        Figure(memory, _peak_kib(1_000_000), "KiB", "constant", _peak_kib(100_000), "by chunking 100,000"),
    ]


def _data(lengths: Iterable[int]) -> list[Datum]:
    return [
        Datum(
            ModelInput.from_ints(np.zeros(length, np.int32)),
            {"target_tokens": TensorData(np.zeros(length, np.int64)), "weights": TensorData(np.ones(length, "<f4"))},
        )
        for length in lengths
    ]


def _batches(lengths: Any) -> Iterator[TokenBatch]:
    for start in range(0, len(lengths), BATCH):
        offsets = np.concatenate(([0], np.cumsum(lengths[start : start + BATCH])))
        yield TokenBatch(np.zeros(int(offsets[-1]), "<u2"), offsets)


def _drain(chunks: Iterable[object]) -> None:
    for _ in chunks:
        pass


def _peak_kib(count: int) -> float:
    lengths = np.random.default_rng(1).poisson(8, count)
    tracemalloc.start()
    try:
        _drain(chunk_columns(_batches(lengths), LOSS_INPUTS))
        return tracemalloc.get_traced_memory()[1] / 1024
    finally:
        tracemalloc.stop()


def _baseline(lengths: Iterable[int]) -> tuple[str, Callable[[], object]]:
    """Return the SDK's own generator over its own data; without the SDK, a plain loop over ours."""
    try:
        import tinker
        from tinker.lib.public_interfaces.training_client import TrainingClient
    except ImportError:
        data = _data(lengths)
        return "the rule, written down plainly", lambda: _drain(_plain(data))
    theirs = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints([0] * int(length)),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData.from_numpy(np.zeros(length, np.int64)),
                "weights": tinker.TensorData.from_numpy(np.ones(length, "<f4")),
            },
        )
        for length in lengths
    ]
    limits = SimpleNamespace(fwdbwd_max_chunk_len=BYTES.limits.items, fwdbwd_max_chunk_bytes_count=BYTES.limits.size)
    client: Any = SimpleNamespace(holder=SimpleNamespace(_client_config=limits))
    generate: Any = TrainingClient._chunked_requests_generator
    return f"the generator of the tinker SDK {tinker.__version__}", lambda: _drain(generate(client, theirs))


def _plain(data: Iterable[Datum]) -> Iterator[list[Datum]]:
    held: list[Datum] = []
    size = 0
    for datum in data:
        estimate = BYTES.estimate(datum)
        if (len(held) > 0 and size + estimate > BYTES.limits.size) or len(held) == BYTES.limits.items:
            yield held
            held, size = [], 0
        held.append(datum)
        size += estimate
    if held:
        yield held
