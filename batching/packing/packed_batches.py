"""Packs the samples of a data assignment on their way from the fetcher to the trainer.

The rule kept here: each data assignment has its own packer, which is emptied at the assignment's end. So a result
covers exactly its samples, and every client packs the same assignment into the same rows.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, Self

from epochal.batching.chunking.datum_records import DatumBatch, DatumCounts
from epochal.batching.packing.datum_rows import DatumRows
from epochal.batching.packing.packer import Packer
from epochal.batching.packing.samples import RawSample, raw_samples
from epochal.batching.packing.task_encoder import EncoderContext, Split, open_encoder
from epochal.data_providers.protocol import TokenBatch
from epochal.data_providers.waits import WaitTimes
from epochal.runtime.permissions import Permissions
from epochal.runtime.worker_thread import Worker
from epochal.state.config.model_table import DataType
from epochal.state.config.state_file import StateFile
from epochal.state.errors import DataError
from epochal.state.intervals import BatchId, DataIds


class AssignedBatches(Protocol):
    """A data assignment's batches in order.

    Attributes:
        failed_batch: the batches on which the iteration failed.
        waited: seconds for which the iterations have waited, by cause.
        token_count: number of tokens so far, without padding.
    """

    failed_batch: BatchId | None

    @property
    def waited(self) -> WaitTimes: ...

    @property
    def token_count(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[TokenBatch]: ...

    async def __anext__(self) -> TokenBatch: ...


class RowMaker(Protocol):
    """Makes rows of samples: a `Packer`, or `DatumRows`.

    Attributes:
        token_count: number of tokens in the rows so far, without padding.
    """

    @property
    def token_count(self) -> int: ...

    def take(self, samples: Iterator[RawSample]) -> bool:
        """Take samples. Return False if they ended before a row can be made of them."""
        ...

    def next_row(self) -> TokenBatch | None:
        """Return the next row; None if samples are wanted first, or none are left."""
        ...

    def finish(self) -> None:
        """Note that no sample will follow."""
        ...


class Packing:
    """Packs a run's samples: made once per client; every data assignment gets a new packer.

    Args:
        packer: returns a new packer.
        data_indices_per_batch: samples of one batch.
        worker: where samples are encoded; not closed here.
    """

    def __init__(self, packer: Callable[[], RowMaker], data_indices_per_batch: int, worker: Worker) -> None:
        self._packer = packer
        self._data_indices_per_batch = data_indices_per_batch
        self._worker = worker
        packer()  # raises before the first round if config and encoder do not go together

    @classmethod
    def of(
        cls, state: StateFile, vocabulary: int | None, worker: Worker, permissions: Permissions, split: Split = "train"
    ) -> Self | None:
        """Return the packing that the run's state file describes; None if each sample is a row of tokens.

        Args:
            vocabulary: tokens are below it; None if unknown.
            permissions: of the state file, which may name a task encoder.
            split: whether the samples are for training or for validation.

        Raises:
            InvalidInput: the task encoder cannot be imported or does not go with the method.
            NotAllowed: it is of a package that the owner of this machine did not allow.
        """
        llm, per_batch = state.model.LLM, state.config.data_indices_per_batch
        if llm.data_type is DataType.PRETRAINING:
            return None
        if llm.data_type is DataType.MULTIMODAL:
            return cls(partial(DatumRows, llm.max_seq_len, vocabulary), per_batch, worker)
        context = EncoderContext(state.run_id, llm.max_seq_len, vocabulary, split)
        encoder = open_encoder(state.packing.task_encoder, context, permissions)
        return cls(partial(Packer, state.packing, encoder), per_batch, worker)

    async def rehearse(self, batch: TokenBatch, data_ids: DataIds) -> DatumCounts:
        """Pack these samples by themselves as in a round, and forget the rows; return what images they hold.

        Raises:
            DataError: a sample that cannot be encoded, with more of them than the run tolerates.
            TrainerFailed: the task encoder failed.
        """
        packer = self._packer()

        def pack() -> DatumCounts:
            counts = DatumCounts()
            arrived = raw_samples(batch, iter(data_ids))
            is_full = True
            while is_full:
                is_full = packer.take(arrived)
                if not is_full:
                    packer.finish()
                while (row := packer.next_row()) is not None:
                    counts += DatumCounts.of(row.datums) if isinstance(row, DatumBatch) else DatumCounts()
            return counts

        return await self._worker.run(pack)

    def rows_of(self, data_assignments: Sequence[BatchId], batches: AssignedBatches) -> "PackedBatches":
        """Return the rows of one data assignment; `batches` delivers its samples."""
        return PackedBatches(self._packer(), data_assignments, batches, self._data_indices_per_batch, self._worker)


class PackedBatches:
    """A data assignment's rows: iterate to get batches of one packed sample each.

    Attributes:
        failed_batch: the batches on which fetching or encoding failed, once the iteration has raised.
    """

    def __init__(
        self,
        packer: RowMaker,
        data_assignments: Sequence[BatchId],
        batches: AssignedBatches,
        data_indices_per_batch: int,
        worker: Worker,
    ) -> None:
        self.failed_batch: BatchId | None = None
        self._packing_s = 0.0
        self._packer = packer
        self._batches = batches
        self._per_batch = data_indices_per_batch
        self._worker = worker
        self._indices = itertools.chain.from_iterable(
            interval.to_data_ids(data_indices_per_batch) for interval in data_assignments
        )
        self._arrived: Iterator[RawSample] = iter(())

    def __aiter__(self) -> "PackedBatches":
        return self

    @property
    def waited(self) -> WaitTimes:
        """Seconds for which iterations have waited: for samples, and for rows made of them."""
        of_samples = self._batches.waited
        return WaitTimes(of_samples.fetching_s, of_samples.decoding_s, of_samples.packing_s + self._packing_s)

    @property
    def token_count(self) -> int:
        """Number of tokens in the rows so far, without padding."""
        return self._packer.token_count

    async def __anext__(self) -> TokenBatch:
        """Return the next row. The last batch may be empty; its `source_count` counts the samples left out at the end.

        Raises:
            DataError: the provider's, or a sample that cannot be encoded.
            TrainerFailed: the task encoder failed.
        """
        while True:
            try:
                row, wants_samples = await self._packed()
                if row is not None:
                    return row
                if not wants_samples:
                    raise StopAsyncIteration
                await self._fetch()
            except DataError as error:
                self.failed_batch = self._blamed(error)
                raise

    async def _packed(self) -> tuple[TokenBatch | None, bool]:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        try:
            return await self._worker.run(self._advance)
        finally:
            self._packing_s += loop.time() - started_s

    def _advance(self) -> tuple[TokenBatch | None, bool]:
        """Return the next row from the samples that have arrived, or None; and whether more samples are wanted."""
        is_full = self._packer.take(self._arrived)
        return self._packer.next_row(), not is_full

    async def _fetch(self) -> None:
        try:
            batch = await anext(self._batches)
        except StopAsyncIteration:
            self._packer.finish()
        else:
            self._arrived = raw_samples(batch, self._indices)

    def _blamed(self, error: DataError) -> BatchId | None:
        if self._batches.failed_batch is not None:
            return self._batches.failed_batch
        index = error.context.get("data_index")
        return None if index is None else DataIds(index, index).to_batches(self._per_batch)
