"""The rows of global batches: which data indices a process of a mesh loads, and the arrays of its rows.

A data assignment is cut into global batches one after the other, within each local step; row *i* of a global batch is
the *i*-th of its samples. The last global batch of a local step may have fewer: they are spread over the devices, and
each shard is filled up with rows of zero weight. So the plan and the layout alone determine which samples a process
loads, and all processes have arrays of the same shape.

Where a run packs, the rows are those of one packer over the whole assignment, as in a client of one process. One
process makes them, and gives the others theirs.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from epochal.batching.mesh.layout import MeshLayout
from epochal.batching.micro_batches import Example, own_positions, packed_steps
from epochal.batching.round_plan import RoundPlan
from epochal.data_providers.protocol import IGNORED_LABEL, CorruptData, TokenBatch
from epochal.state.errors import TrainerFailed
from epochal.state.intervals import DataIds

PADDING_POSITION = -1
MAX_TOKEN = 2**31 - 1
_BLOCKS = 4
"""Arrays of a row's length that one row has."""


@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """The rows of one step of all processes together.

    Attributes:
        local_step: the local step that it belongs to, from 0.
        start: its first row's position in the data assignment, or among the packed rows.
        row_count: number of rows with a sample.
        ends_step: whether it is the last one of its local step.
    """

    local_step: int
    start: int
    row_count: int
    ends_step: bool


def global_batches(plan: RoundPlan, global_batch_size: int) -> Iterator[GlobalBatch]:
    """Yield a round's global batches, in order. The last one of each local step may have fewer rows."""
    start = 0
    for local_step, size in enumerate(plan.micro_batch_sizes):
        yield from _batches_of_step(local_step, start, size, global_batch_size)
        start += size


def _batches_of_step(local_step: int, start: int, size: int, global_batch_size: int) -> Iterator[GlobalBatch]:
    for at in range(0, size, global_batch_size):
        count = min(global_batch_size, size - at)
        yield GlobalBatch(local_step, start + at, count, ends_step=at + count == size)


def loaded_indices(plan: RoundPlan, layout: MeshLayout, process: int) -> list[DataIds]:
    """Return the data indices that a process loads for a round, in the order of its rows; neighbours joined."""
    places = [np.empty(0, np.int64)]
    for batch in global_batches(plan, layout.global_batch_size):
        shards = layout.row_devices(batch.row_count) // layout.replica_count
        places.append(batch.start + np.flatnonzero(layout.holders[shards, 0] == process))
    intervals = [interval.to_data_ids(plan.data_indices_per_batch) for interval in plan.assignment]
    counts = np.array([interval.count for interval in intervals], np.int64)
    ends = np.cumsum(counts)
    moved_by = np.array([interval.start for interval in intervals], np.int64) - (ends - counts)
    place = np.concatenate(places)
    indices = place + moved_by[np.searchsorted(ends, place, side="right")]
    runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    return [DataIds(int(run[0]), int(run[-1])) for run in runs if run.size]


def computed_rows(layout: MeshLayout, process: int, row_count: int) -> list[int]:
    """Return the rows on which a process computes, of those that `RowReader.read` returns for a global batch."""
    devices = layout.row_devices(row_count)
    own = np.flatnonzero(layout.holders.ravel()[devices] == process)
    shards = devices[own] // layout.replica_count
    in_shard = own - np.searchsorted(devices, shards * layout.replica_count)
    number = np.searchsorted(layout.loading(process).needed_shards, shards)
    found: list[int] = (number * layout.batch_size + in_shard).tolist()
    return found


class RowArrays:
    """Rows of one length, as arrays that can be sent whole.

    Attributes:
        data: int32, `(rows, 4 · length + 1)`, contiguous; the others are views of it.
        tokens: int32, `(rows, length)`; 0 beyond a row's end.
        labels: int32, `(rows, length)`, as in `TokenBatch`; `IGNORED_LABEL` beyond a row's end.
        positions: int32, `(rows, length)`: each token's position in its document, −1 beyond a row's end.
        position_ids: int32, `(rows, length)`: each token's position for models that know positions, where the data have
            their own; otherwise, and beyond a row's end, −1.
        weights: float32, `(rows,)`: 1 for a sample, 0 for a row without one.
    """

    def __init__(self, data: NDArray[np.int32]) -> None:
        length = data.shape[1] // _BLOCKS
        self.data = data
        self.tokens, self.labels, self.positions, self.position_ids = (
            data[:, at * length : (at + 1) * length] for at in range(_BLOCKS)
        )
        self.weights: NDArray[np.float32] = data[:, -1].view(np.float32)

    @classmethod
    def zeros(cls, row_count: int, length: int) -> Self:
        """Return rows of zero weight, to receive other processes' rows."""
        return cls(np.zeros((row_count, _BLOCKS * length + 1), dtype=np.int32))

    def clear(self, rows: slice) -> None:
        """Remove the tokens and the weight of these rows."""
        self.data[rows] = 0
        self.labels[rows] = IGNORED_LABEL
        self.positions[rows] = PADDING_POSITION
        self.position_ids[rows] = PADDING_POSITION

    def put(self, row: int, batch: TokenBatch, sample: int) -> None:
        """Put a sample into a row, with weight 1.

        Raises:
            CorruptData: it is too long, or a token or position id is outside the numbers that a row holds.
        """
        start, stop = int(batch.offsets[sample]), int(batch.offsets[sample + 1])
        length = stop - start
        tokens = batch.input_ids[start:stop]
        if length > self.tokens.shape[1]:
            raise CorruptData(f"a sample of {length} tokens; a row has room for {self.tokens.shape[1]}")
        if length and int(tokens.max()) > MAX_TOKEN:
            raise CorruptData(f"token {int(tokens.max())}; rows hold tokens up to {MAX_TOKEN}")
        self.clear(slice(row, row + 1))
        self.tokens[row, :length] = tokens
        self.labels[row, :length] = tokens if batch.labels is None else batch.labels[start:stop]
        self.positions[row, :length] = _positions(batch, start, stop)
        if batch.position_ids is not None and length:
            given = batch.position_ids[start:stop]
            if not 0 <= int(given.min()) <= int(given.max()) <= MAX_TOKEN:
                raise CorruptData(
                    f"position ids from {given.min()} to {given.max()}; rows hold those from 0 to {MAX_TOKEN}"
                )
            self.position_ids[row, :length] = given
        self.weights[row] = 1

    def examples(self, rows: Sequence[int]) -> list[Example]:
        """Return the examples of these rows, except of those without weight."""
        found: list[Example] = []
        for row in rows:
            positions = self.positions[row]
            length = int(np.count_nonzero(positions != PADDING_POSITION))
            if not self.weights[row] or not length:
                continue
            cuts = np.flatnonzero(positions[1:length] == 0) + 1
            tokens = np.split(self.tokens[row, :length].astype(np.uint32), cuts)
            labels = np.split(self.labels[row, :length], cuts)
            position_ids = map(_given_positions, np.split(self.position_ids[row, :length], cuts))
            found += [Example(*parts) for parts in zip(tokens, labels, position_ids, strict=True)]
        return found


class RowReader:
    """Fills a process's rows from the samples that it loads.

    Args:
        layout: the mesh.
        process: number of this process in the layout.
        length: number of tokens in a row.
        batches: the samples of `loaded_indices`, in order, however grouped.
    """

    def __init__(self, layout: MeshLayout, process: int, length: int, batches: AsyncIterator[TokenBatch]) -> None:
        self.rows_loaded = 0
        self._layout = layout
        self._loading = layout.loading(process)
        self._length = length
        self._batches = batches
        self._batch: TokenBatch | None = None
        self._sample = 0

    async def read(self, batch: GlobalBatch) -> RowArrays:
        """Return the rows of a global batch that this process needs, `needed_shards · batch_size` of them by shard.

        Rows that the process loads hold their samples, before the shard's rows of zero weight; rows that it receives
        are zeros.

        Raises:
            DataError: whatever `batches` raises.
            CorruptData: a sample does not fit into a row.
            TrainerFailed: the data ended early.
        """
        loading, size = self._loading, self._layout.batch_size
        rows = RowArrays.zeros(len(loading.needed_shards) * size, self._length)
        shards = self._layout.row_devices(batch.row_count) // self._layout.replica_count
        counts = np.bincount(shards, minlength=self._layout.shard_count).tolist()
        for number, shard in enumerate(loading.needed_shards):
            if shard in loading.received_from:
                continue
            rows.clear(slice(number * size, (number + 1) * size))
            for row in range(counts[shard]):
                rows.put(number * size + row, *await self._next())
                self.rows_loaded += 1
        return rows

    async def _next(self) -> tuple[TokenBatch, int]:
        while self._batch is None or self._sample == self._batch.sample_count:
            try:
                self._batch, self._sample = await anext(self._batches), 0
            except StopAsyncIteration:
                raise TrainerFailed(f"the data ended after {self.rows_loaded} rows") from None
        self._sample += 1
        return self._batch, self._sample - 1


async def packed_rows(
    plan: RoundPlan, layout: MeshLayout, length: int, batches: AsyncIterator[TokenBatch]
) -> AsyncIterator[tuple[GlobalBatch, list[RowArrays]]]:
    """Yield a round's global batches of packed rows, each with the rows on which every process computes.

    All processes' arrays have the same shape; the one with fewer rows has some of zero weight.

    Args:
        plan: the round's.
        layout: the mesh.
        length: number of tokens in a row.
        batches: the packed rows of the whole assignment, in order, one in each.

    Raises:
        CorruptData: a token or position id is outside the numbers that a row holds.
        DataError, TrainerFailed: as `packed_steps`.
    """
    start = 0
    async for local_step, packs in packed_steps(plan, batches):
        for batch in _batches_of_step(local_step, start, len(packs), layout.global_batch_size):
            owners = layout.holders.ravel()[layout.row_devices(batch.row_count)]
            owned = [np.flatnonzero(owners == process).tolist() for process in range(int(layout.holders.max()) + 1)]
            rows = [RowArrays.zeros(max(map(len, owned)), length) for _ in owned]
            for arrays, places in zip(rows, owned, strict=True):
                for row, place in enumerate(places):
                    arrays.put(row, packs[batch.start - start + place], 0)
            yield batch, rows
        start += len(packs)


def _given_positions(position_ids: NDArray[np.int32]) -> NDArray[np.integer[Any]] | None:
    """Return the data's own positions of one document; None if they have none, or if these count from 0."""
    return None if position_ids[0] == PADDING_POSITION else own_positions(position_ids)


def _positions(batch: TokenBatch, start: int, stop: int) -> NDArray[np.int64]:
    places = np.arange(start, stop)
    if batch.sequence_lengths is None:
        return places - start
    ends = np.cumsum(batch.sequence_lengths, dtype=np.int64)
    owners = np.searchsorted(ends, places, side="right")
    return places - (ends - batch.sequence_lengths)[owners]
