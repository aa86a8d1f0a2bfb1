"""Samples that are fetched ahead of the round that will train on them, while the present round ends.

What will be needed is only expected: the run document names a provisional next round. So the rules kept here are:

- Nothing is fetched before the present round's own samples are there (`hold_back`, `release`).
- A round's real assignment alone decides what is needed; samples of it that are held are taken, by data index.
- An error is silent, because the real request raises it.
- No more than `max_bytes` are kept. What turns out not to be needed is thrown away, and counted.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from epochal.data_providers.mixes.weighted import interleaved
from epochal.data_providers.protocol import DataProvider, TokenBatch, expecting
from epochal.state.config.state_file import StateFile
from epochal.state.intervals import DataIds, coalesce, subtract, total_count

LARGEST_TOKEN_BYTES = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AheadLimits:
    """Limits of fetching ahead.

    Attributes:
        max_bytes: maximum size of the samples that are kept; 0 fetches nothing ahead.
        sample_bytes: usual size of a sample, until the first ones have arrived.
        timeout_s: maximum time of one request.
    """

    max_bytes: int
    sample_bytes: int
    timeout_s: float

    @classmethod
    def of(cls, state: StateFile, provider: DataProvider) -> "AheadLimits":
        """Return the limits of a run; 0 bytes where the samples are at hand anyway."""
        sample_bytes = state.model.LLM.max_seq_len * LARGEST_TOKEN_BYTES
        return cls(0 if is_at_hand(provider) else state.client.ahead_bytes, sample_bytes, state.client.fetch_timeout_s)


def is_at_hand(provider: DataProvider) -> bool:
    """Return whether a provider's samples are there as soon as they are asked for; it may say so as `is_at_hand`."""
    return bool(getattr(provider, "is_at_hand", False))


@dataclass(slots=True, eq=False)
class _Piece:
    """The samples of some data indices: on their way, there, or (without a batch) not to be had."""

    data_ids: DataIds
    arriving: asyncio.Task[None] | None = None
    batch: TokenBatch | None = None
    taken: tuple[DataIds, ...] = ()

    @property
    def size_bytes(self) -> int:
        return 0 if self.batch is None else batch_bytes(self.batch)

    @property
    def left(self) -> tuple[DataIds, ...]:
        """The data indices of samples that nobody has taken yet."""
        return subtract((self.data_ids,), self.taken)


class AheadSamples:
    """The samples that a client holds ahead.

    Args:
        provider: the client's data; not closed here.
        group: where samples are fetched; it must outlive this.

    Attributes:
        used_count: number of samples that were there, or on their way, when a round needed them.
        dropped_count: number of samples that were fetched and not needed.
    """

    def __init__(self, provider: DataProvider, group: asyncio.TaskGroup) -> None:
        self._provider = provider
        self._group = group
        self._seen_sample_bytes = 0.0
        self._pieces: list[_Piece] = []
        self._may_fetch = asyncio.Event()
        self._may_fetch.set()
        self.used_count = 0
        self.dropped_count = 0
        self._reported = (0, 0)

    @property
    def held_bytes(self) -> int:
        """Size of the samples that are held now."""
        return sum(piece.size_bytes for piece in self._pieces)

    @property
    def held(self) -> tuple[DataIds, ...]:
        """The data indices of samples that are held or on their way."""
        return coalesce(part for piece in self._pieces for part in piece.left)

    def hold_back(self) -> None:
        """Begin no request from now on: the present round's own samples come first."""
        self._may_fetch.clear()

    def release(self) -> None:
        """Go on: the present round's own samples are there."""
        self._may_fetch.set()

    async def wait_for_turn(self) -> None:
        """Return as soon as the present round's own samples are there."""
        await self._may_fetch.wait()

    def keep(self, wanted: Iterable[DataIds]) -> None:
        """Throw away the samples of all other data indices, and cancel requests for nothing but them."""
        wanted = coalesce(wanted)
        kept: list[_Piece] = []
        for piece in self._pieces:
            lost = subtract(piece.left, wanted)
            if total_count(lost) < total_count(piece.left):
                kept.append(piece)
            else:
                self._drop(piece)
        self._pieces = kept

    async def fetch(self, requests: Iterable[DataIds], limits: AheadLimits) -> None:
        """Fetch the samples of these requests one after the other, as far as there is room, and drop all others.

        It ends at the first request that fails. When it is cancelled, the request under way continues until `keep` ends
        it, because the round that begins may need its samples.
        """
        requests = tuple(requests)
        await self.wait_for_turn()
        self.keep(requests)
        wanted: list[DataIds] = []
        for request in requests:
            wanted += subtract((request,), (*self.held, *wanted))
        with expecting(self._provider, wanted, max((part.count for part in wanted), default=1)):
            for data_ids in wanted:
                await self.wait_for_turn()
                size_bytes = data_ids.count * (self._seen_sample_bytes or limits.sample_bytes)
                if self.held_bytes + size_bytes > limits.max_bytes:
                    return
                piece = _Piece(data_ids)
                self._pieces.append(piece)
                piece.arriving = self._group.create_task(self._get(piece, limits), name="samples ahead")
                await asyncio.wait({piece.arriving})
                if piece.batch is None:
                    return

    async def missing_of(self, data_ids: DataIds) -> tuple[DataIds, ...]:
        """Return the data indices whose samples are not held; wait for those that are on their way."""
        while True:
            arriving = {
                piece.arriving
                for piece in self._pieces
                if piece.arriving is not None and subtract((data_ids,), piece.left) != (data_ids,)
            }
            if not arriving:
                return subtract((data_ids,), self.held)
            await asyncio.wait(arriving)

    def take(self, data_ids: DataIds) -> list[tuple[DataIds, TokenBatch]]:
        """Return the held samples among these data indices, each stretch with its own; they are no longer held."""
        found: list[tuple[DataIds, TokenBatch]] = []
        for piece in self._pieces:
            if piece.batch is None:
                continue
            for part in piece.left:
                start, end = max(part.start, data_ids.start), min(part.end, data_ids.end)
                if start <= end:
                    wanted, first = DataIds(start, end), piece.data_ids.start
                    found.append((wanted, cut(piece.batch, start - first, end + 1 - first)))
                    piece.taken = (*piece.taken, wanted)
                    self.used_count += wanted.count
        self._pieces = [piece for piece in self._pieces if piece.left]
        return found

    def counts_since_last(self) -> tuple[int, int]:
        """Return how many samples were used, and how many thrown away, since the last call."""
        used, dropped = self._reported
        self._reported = self.used_count, self.dropped_count
        return self.used_count - used, self.dropped_count - dropped

    async def aclose(self) -> None:
        """Cancel what is under way, and forget everything."""
        tasks = [piece.arriving for piece in self._pieces if piece.arriving is not None]
        for piece in self._pieces:
            self._drop(piece)
        self._pieces = []
        if tasks:
            await asyncio.wait(tasks)

    async def _get(self, piece: _Piece, limits: AheadLimits) -> None:
        try:
            async with asyncio.timeout(limits.timeout_s):
                batch = await self._provider.get_samples(piece.data_ids)
            is_whole = batch.sample_count == piece.data_ids.count
            if is_whole and self.held_bytes + batch_bytes(batch) <= limits.max_bytes:
                piece.batch = batch
            else:
                self.dropped_count += batch.sample_count
            self._seen_sample_bytes = batch_bytes(batch) / max(1, batch.sample_count)
        except Exception as error:  # whatever a provider raises: the real request raises it again
            log.debug("not_fetched_ahead", extra={"data_ids": str(piece.data_ids), "reason": str(error)})
        finally:
            piece.arriving = None
            if piece.batch is None and piece in self._pieces:
                self._pieces.remove(piece)

    def _drop(self, piece: _Piece) -> None:
        if piece.arriving is not None:
            piece.arriving.cancel()
        elif piece.batch is not None:
            self.dropped_count += total_count(piece.left)


def batch_bytes(batch: TokenBatch) -> int:
    """Return the size of a batch's arrays in bytes."""
    arrays = (batch.input_ids, batch.offsets, batch.labels, batch.position_ids, batch.sequence_lengths)
    return sum(array.nbytes for array in arrays if array is not None)


def cut(batch: TokenBatch, start: int, stop: int) -> TokenBatch:
    """Return samples `[start, stop)` of a batch, without copying their tokens."""
    if (start, stop) == (0, batch.sample_count):
        return batch
    begin, end = int(batch.offsets[start]), int(batch.offsets[stop])
    lengths = batch.sequence_lengths
    if lengths is not None:
        ends = np.cumsum(lengths, dtype=np.int64)
        lengths = lengths[np.searchsorted(ends, begin, side="right") : np.searchsorted(ends, end, side="right")]
    labels, positions = batch.labels, batch.position_ids
    return TokenBatch(
        batch.input_ids[begin:end],
        batch.offsets[start : stop + 1] - begin,
        None if labels is None else labels[begin:end],
        None if positions is None else positions[begin:end],
        lengths,
        is_text=batch.is_text,
    )


def joined(parts: Sequence[tuple[DataIds, TokenBatch]]) -> TokenBatch:
    """Return the samples of several stretches of data indices as one batch, in the order of their data indices.

    Raises:
        CorruptData: they do not go together; the provider's fault.
    """
    ordered = sorted(parts, key=lambda part: part[0])
    starts = np.cumsum([0, *(data_ids.count for data_ids, _ in ordered)], dtype=np.int64)
    return interleaved(
        [
            (batch, np.arange(start, start + data_ids.count, dtype=np.int64))
            for (data_ids, batch), start in zip(ordered, starts[:-1], strict=True)
        ]
    )
