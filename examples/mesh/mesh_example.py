"""What the jax and the torch example share: a host's rows of each global batch, and the check of every row.

python mesh_example.py FOLDER    writes the data: the standard library's sources, one byte a token
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from epochal import (
    BatchId,
    DataFetcher,
    DataIds,
    DatasetSpec,
    FetchSettings,
    GlobalBatch,
    LocalDataProvider,
    MeshLayout,
    RoundPlan,
    RowArrays,
    RowReader,
    global_batches,
    loaded_indices,
    system_jitter,
)
from epochal.tools.testnet.demo_data import write_demo_data

SEQUENCE_LENGTH = 128
BATCH_SIZE = 4
SAMPLES_PER_BATCH = 3
PLAN = RoundPlan(
    step=1,
    assignment=(BatchId(20, 24), BatchId(3, 4)),
    data_indices_per_batch=SAMPLES_PER_BATCH,
    learning_rates=(0.001,),
)
"""The client's assignment: 21 samples, so the last global batch has fewer than rows, spread over the shards."""
SETTINGS = FetchSettings(1, samples_per_request=8, attempts=3, timeout_s=10, prefetch_requests=2)


@dataclass(frozen=True)
class Host:
    """One host of the mesh."""

    layout: MeshLayout
    number: int

    def say(self, text: str, sign: str = "") -> None:
        print(f"{sign}Host {self.number}{text}", flush=True)

    def introduce(self, should_load: bool, local_shards: int) -> None:
        local_batch_size = BATCH_SIZE * local_shards
        if should_load:
            self.say(f": Loading data from dataset (local_shards={local_shards}, local_batch_size={local_batch_size})")
        else:
            self.say(": Creating dummy data iterator (will receive via broadcast)")
            self.say(f": local_shards={local_shards}, local_batch_size={local_batch_size}")

    async def run(self, folder: Path, assemble: Callable[[RowArrays], NDArray[np.int32]]) -> None:
        """Load this host's rows of every global batch, assemble them, and check every row of the result.

        Args:
            assemble: returns the rows of the global batch, given those that this host needs.
        """
        provider = LocalDataProvider.open(folder, DatasetSpec(2, SEQUENCE_LENGTH, shuffle_seed=bytes(32)))
        wanted = await expected_rows(provider)
        fetcher = DataFetcher(provider, SETTINGS, system_jitter)
        loads = self.layout.loading(self.number).should_load
        async with asyncio.TaskGroup() as group:
            # Hosts share batches; for this fetcher each data index is a batch.
            indices = loaded_indices(PLAN, self.layout, self.number)
            samples = fetcher.fetch_data([ids.to_batches(1) for ids in indices], group)
            reader = RowReader(self.layout, self.number, SEQUENCE_LENGTH, samples)
            for batch in global_batches(PLAN, self.layout.global_batch_size):
                before = reader.rows_loaded
                rows = await reader.read(batch)
                found = RowArrays(assemble(rows))
                if loads:
                    self.say(f" loaded {reader.rows_loaded - before} examples", "✓ ")
                else:
                    self.say(" created zeros, received via broadcast", "○ ")
                self.check(batch, found, wanted)
            samples.close()
        await provider.aclose()
        self.say(f": all {PLAN.sequence_count} rows are the provider's, {reader.rows_loaded} of them loaded here")

    def check(self, batch: GlobalBatch, found: RowArrays, wanted: NDArray[np.int64]) -> None:
        """Check that every row of the global batch is the provider's sample, or has no weight."""
        count, shards = batch.row_count, self.layout.shard_count
        is_sample = found.weights == 1
        assert found.data.shape[0] == self.layout.global_batch_size, found.data.shape
        assert (found.tokens[is_sample] == wanted[batch.start : batch.start + count]).all(), "tokens"
        assert (found.labels[is_sample] == found.tokens[is_sample]).all(), "labels"
        of_shards = is_sample.reshape(shards, BATCH_SIZE).sum(axis=1)
        assert sorted(of_shards) == sorted((count + place) // shards for place in range(shards)), "evenly spread"


async def expected_rows(provider: LocalDataProvider) -> NDArray[np.int64]:
    """Return the assignment's samples `(samples, length)`, one by one from the provider."""
    return np.concatenate([(await provider.get_samples(DataIds(i, i))).rows() for i in _indices()]).astype(np.int64)


def _indices() -> Iterator[int]:
    for interval in PLAN.assignment:
        yield from interval.to_data_ids(SAMPLES_PER_BATCH)


if __name__ == "__main__":
    write_demo_data(Path(sys.argv[1]), 1024 * 1024)
