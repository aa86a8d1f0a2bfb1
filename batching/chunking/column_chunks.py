"""Chunks of samples in columns, as a run's remote trainer sends them; cut as in `policies.py`, vectorised."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from epochal.batching.chunking.policies import BYTES, ChunkEnd, ChunkLimits, ChunkPolicy
from epochal.data_providers.protocol import TokenBatch


class Rows(NamedTuple):
    """Samples `[start, stop)` of a batch."""

    batch: TokenBatch
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The samples of one request, in columns.

    Attributes:
        parts: the samples, as ranges of batches, in order.
        items: number of samples.
        size: estimated size.
        end: why the chunk ended.
    """

    parts: tuple[Rows, ...]
    items: int
    size: int
    end: ChunkEnd


def chunk_columns(
    batches: Iterable[TokenBatch], loss_inputs: int, policy: ChunkPolicy = BYTES, limits: ChunkLimits | None = None
) -> Iterator[ColumnChunk]:
    """Yield the samples of batches in chunks, cut where `chunk_data` cuts the same samples.

    Args:
        loss_inputs: number of arrays that the loss needs, each as long as its sample.
        policy: one that counts every number alike.
        limits: of the service; the policy's by default.
    """
    limits = limits or policy.limits
    scale = policy.number_size * (1 + loss_inputs)
    parts: list[Rows] = []
    items = size = 0
    for batch in batches:
        # before[i]: the size of all samples of the batch before sample i; Arrow's offsets are int32, too small for it.
        before = batch.offsets.astype(np.int64, copy=False) * scale
        count = batch.sample_count
        start = 0
        while start < count:
            fits = int(np.searchsorted(before, before[start] + (limits.size - size), side="right")) - 1
            stop = min(max(fits, start), start + limits.items - items, count)
            if stop == start and not items:
                stop = start + 1  # larger than the limit: it goes alone
            if stop > start:
                parts.append(Rows(batch, start, stop))
                items += stop - start
                size += int(before[stop] - before[start])
                start = stop
            if start < count:
                end = ChunkEnd.ITEMS if items == limits.items else ChunkEnd.SIZE
                yield ColumnChunk(tuple(parts), items, size, end)
                parts, items, size = [], 0, 0
    if items:
        yield ColumnChunk(tuple(parts), items, size, ChunkEnd.END)
