"""Chunks of samples in columns, as a run's remote trainer sends them: the cuts of `policies.py`, vectorised."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from batching.chunking.policies import BYTES, ChunkEnd, ChunkLimits, ChunkPolicy
from data_providers.protocol import TokenBatch


class Rows(NamedTuple):
    """Samples `[start, stop)` of a batch."""

    batch: TokenBatch
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """What goes into one request, in columns.

    Attributes:
        parts: where its samples are, in order.
        items: how many they are.
        size: estimated.
    """

    parts: tuple[Rows, ...]
    items: int
    size: int
    end: ChunkEnd


def chunk_columns(
    batches: Iterable[TokenBatch],
    loss_inputs: int,
    policy: ChunkPolicy = BYTES,
    limits: ChunkLimits | None = None,
) -> Iterator[ColumnChunk]:
    """The samples of batches in chunks with the cuts that `chunk_data` makes of the same samples as data.

    Sizes are computed from `offsets` for a whole batch at a time, and a chunk's end is searched for, not walked to.

    Args:
        loss_inputs: arrays of the loss, each as long as its sample.
        policy: a policy that counts numbers alike wherever they stand.
        limits: the service's own; the policy's by default.
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
                yield ColumnChunk(tuple(parts), items, size, _reason(items, limits))
                parts, items, size = [], 0, 0
    if items:
        yield ColumnChunk(tuple(parts), items, size, ChunkEnd.END)


def _reason(items: int, limits: ChunkLimits) -> ChunkEnd:
    return ChunkEnd.ITEMS if items == limits.items else ChunkEnd.SIZE
