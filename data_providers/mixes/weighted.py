"""The provider of a mix of several others, each with a share of the samples, in the order of `mix_schedule.py`."""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.mixes.mixture import MixPhase, ScheduledOrder, Share, with_later
from epochal.data_providers.protocol import (
    MAX_REQUEST_BYTES,
    MAX_REQUEST_SAMPLES,
    CorruptData,
    DataProvider,
    Rejected,
    TokenBatch,
    check_sample_count,
    dataset_fingerprint,
    expecting,
)
from epochal.data_providers.sources.byte_source import MAX_CONCURRENT_READS, run_bounded
from epochal.state.dataset_descriptions import MAX_DESCRIBED_SOURCES, DatasetDescription
from epochal.state.errors import DataError, InternalError, InvalidInput
from epochal.state.intervals import MAX_INDEX, DataIds
from epochal.state.text.visible import visible

_FLAT_PARTS = ("input_ids", "labels", "position_ids")
_Flat: TypeAlias = NDArray[Any]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Weighted:
    """One source of a mix. `name` is for messages; `weight` holds where no schedule sets others."""

    name: str
    provider: DataProvider
    weight: float = 1.0


class WeightedDataProvider:
    """A `DataProvider` over others, which it closes.

    Args:
        sources: the mix's sources.
        phases: the schedule of their weights; None for the sources' own, which never change.

    Attributes:
        sources: in the order of their numbers.
        schedule: the data index from which each phase holds that changes the order, and each source's number of samples
            in a period of `PERIOD` data indices.

    Raises:
        InvalidInput: the weights or the phases are not allowed; the fault of the mix's author.
    """

    def __init__(self, sources: Sequence[Weighted], phases: Sequence[MixPhase] | None = None) -> None:
        phases = phases or (MixPhase(0, tuple(source.weight for source in sources)),)
        names = [source.name for source in sources]
        self._names, self._phases = names, tuple(phases)
        self._order = ScheduledOrder(phases)
        self.schedule = tuple(
            (start, dict(zip(names, counts, strict=True)))
            for start, counts in zip(self._order.starts, self._order.counts, strict=True)
        )
        self.sequence_count = None  # a mix has no passes of its own: each source is read pass after pass
        self.sources = tuple(sources)
        self._closed = False
        self.fingerprint = _fingerprint(sources, self._order)
        changes = f", whose weights change {len(self.schedule) - 1} times" if len(self.schedule) > 1 else ""
        are_short = len(names) <= MAX_DESCRIBED_SOURCES and all(visible(name) == name for name in names)
        described = tuple(names) if are_short else ()
        self.description = DatasetDescription(f"a mix of {len(sources)} sources{changes}", sources=described)
        facts = {"phases": len(self.schedule), "fingerprint": self.fingerprint}
        log.info("mix_opened", extra={"counts": self.schedule[0][1], **facts})

    async def follow(self, later: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Give samples out by the weights to which the run has changed (`with_later`); the fingerprint stays.

        A change that names another source is left out, here as at every other member, and logged.
        """
        known = []
        for change in later:
            try:
                with_later((), self._names, [change])
                known.append(change)
            except InvalidInput as error:
                log.warning("mix_change_left_out", extra={"reason": error.message, "data_index": change[0]})
        phases = with_later(self._phases, self._names, known)
        self._order = await asyncio.to_thread(ScheduledOrder, phases)

    @property
    def is_at_hand(self) -> bool:
        """Whether no source has to be waited for."""
        return all(getattr(source.provider, "is_at_hand", False) for source in self.sources)

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`; an error names the source.

        Also raises `CorruptData` if only some sources have labels, positions or lengths of documents.
        """
        if self._closed:
            raise InternalError("get_samples after aclose")
        check_sample_count(data_ids)
        shares = self._order.shares(data_ids)
        found: dict[int, TokenBatch] = {}

        async def ask(share: Share) -> None:
            source = self.sources[share.source]
            try:
                found[share.source] = await source.provider.get_samples(share.local)
            except DataError as error:
                raise of_source(source.name, error) from error
            if sum(batch.input_ids.nbytes for batch in found.values()) > MAX_REQUEST_BYTES:
                raise Rejected(
                    f"data indices {data_ids} are more than {MAX_REQUEST_BYTES} bytes; ask for less at a time"
                )

        await run_bounded(ask, shares, MAX_CONCURRENT_READS)
        return interleaved([(found[share.source], share.rows) for share in shares])

    @contextmanager
    def expecting(self, data_ids: Sequence[DataIds], samples_per_request: int) -> Iterator[None]:
        """Let every source read its part ahead within the context, as `Expecting.expecting`."""
        parts: dict[int, list[DataIds]] = {}
        left = MAX_REQUEST_SAMPLES
        for interval in data_ids:
            if left > 0 and interval.end < MAX_INDEX:
                known = DataIds(interval.start, min(interval.end, interval.start + left - 1))
                left -= known.count
                for share in self._order.shares(known):
                    parts.setdefault(share.source, []).append(share.local)
        total = sum(interval.count for intervals in parts.values() for interval in intervals)
        with ExitStack() as told:
            for number, intervals in parts.items():
                share_of_request = sum(interval.count for interval in intervals) * samples_per_request // total
                provider = self.sources[number].provider
                told.enter_context(expecting(provider, intervals, max(share_of_request, 1)))
            yield

    async def aclose(self) -> None:
        """Close every source, even if closing one of them fails."""
        self._closed = True
        async with AsyncExitStack() as closing:
            for source in self.sources:
                closing.push_async_callback(source.provider.aclose)


def _fingerprint(sources: Sequence[Weighted], order: ScheduledOrder) -> str:
    fingerprints = [source.provider.fingerprint for source in sources]
    phases = [list(pair) for pair in zip(order.starts, order.counts, strict=True)]
    return dataset_fingerprint("mixture", sources=fingerprints, phases=phases)


def of_source(name: str, error: DataError) -> DataError:
    """Return a source's error, of the same kind, with the source's name."""
    return type(error)(f"source {name} of the mix: {error.message}", **error.context)


def interleaved(parts: Sequence[tuple[TokenBatch, NDArray[np.int64]]]) -> TokenBatch:
    """Return the samples of several batches as one batch, each at its row.

    If one of them has labels, position ids or sequence lengths, the others get those that they mean without: the tokens
    themselves, positions from each sample's start, one document a sample.

    Args:
        parts: batches, each with int64 `(sample_count,)` rows; all rows together are 0, 1, 2, … without a gap.

    Raises:
        CorruptData: only some of the batches hold records.
    """
    if len(parts) == 1:
        return parts[0][0]
    parts = _completed(parts)
    rows = np.concatenate([rows for _, rows in parts])
    lengths = np.empty(len(rows), dtype=np.int64)
    lengths[rows] = np.concatenate([np.diff(batch.offsets) for batch, _ in parts])
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    if (lengths == lengths[0]).all():
        # Whole rows at a time, which is many times faster and needs no index for every token.
        flat = {name: _placed([(getattr(batch, name), rows) for batch, rows in parts]) for name in _FLAT_PARTS}
    else:
        sources = _token_sources(parts, lengths)
        flat = {name: _gathered([getattr(batch, name) for batch, _ in parts], sources) for name in _FLAT_PARTS}
    assert flat["input_ids"] is not None
    texts = {batch.is_text for batch, _ in parts}
    if len(texts) > 1:
        raise CorruptData("only some sources of the mix hold JSON records")
    (is_text,) = texts
    return TokenBatch(
        flat["input_ids"], offsets, flat["labels"], flat["position_ids"], _documents(parts), is_text=is_text
    )


def _completed(parts: Sequence[tuple[TokenBatch, NDArray[np.int64]]]) -> list[tuple[TokenBatch, NDArray[np.int64]]]:
    """Return the batches with the parts that any of them has, written out where they were None."""
    batches = [batch for batch, _ in parts]
    has_labels, has_positions, has_lengths = (
        any(getattr(batch, name) is not None for batch in batches)
        for name in ("labels", "position_ids", "sequence_lengths")
    )
    found: list[tuple[TokenBatch, NDArray[np.int64]]] = []
    for batch, rows in parts:
        labels, positions, documents = batch.labels, batch.position_ids, batch.sequence_lengths
        lengths = np.diff(batch.offsets)
        if has_labels and labels is None:
            labels = batch.input_ids.astype(np.int64)
        if has_positions and positions is None:
            positions = np.arange(len(batch.input_ids)) - np.repeat(batch.offsets[:-1], lengths)
        if has_lengths and documents is None:
            documents = lengths[lengths > 0]
        whole = TokenBatch(batch.input_ids, batch.offsets, labels, positions, documents, batch.is_text, check=False)
        found.append((whole, rows))
    return found


def _token_sources(
    parts: Sequence[tuple[TokenBatch, NDArray[np.int64]]], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return, for each token of the answer, its position in the parts written one after the other."""
    begins = np.empty(len(lengths), dtype=np.int64)
    before = 0
    for batch, rows in parts:
        begins[rows] = batch.offsets[:-1] + before
        before += len(batch.input_ids)
    ends = np.cumsum(lengths)
    return np.repeat(begins - (ends - lengths), lengths) + np.arange(before, dtype=np.int64)


def _placed(parts: Sequence[tuple[_Flat | None, NDArray[np.int64]]]) -> _Flat | None:
    """Return the flat parts of samples of one length, each sample at its row."""
    held = [flat for flat, _ in parts if flat is not None]
    if not held:
        return None
    count = sum(len(rows) for _, rows in parts)
    placed = np.empty((count, sum(map(len, held)) // count), dtype=np.result_type(*held))
    for flat, (_, rows) in zip(held, parts, strict=True):
        placed[rows] = flat.reshape(len(rows), -1) if len(flat) else 0
    return placed.reshape(-1)


def _gathered(flats: Sequence[_Flat | None], sources: NDArray[np.int64]) -> _Flat | None:
    held = [flat for flat in flats if flat is not None]
    return np.concatenate(held)[sources] if held else None


def _documents(parts: Sequence[tuple[TokenBatch, NDArray[np.int64]]]) -> NDArray[np.int64] | None:
    """Return the documents' lengths in the order of the answer."""
    held = [batch.sequence_lengths for batch, _ in parts if batch.sequence_lengths is not None]
    if not held:
        return None
    by_row: list[tuple[int, NDArray[np.int64]]] = []
    for batch, rows in parts:
        lengths = np.asarray(batch.sequence_lengths, dtype=np.int64)
        cuts = np.searchsorted(np.cumsum(lengths), batch.offsets[1:-1], side="right")
        by_row += list(zip(rows.tolist(), np.split(lengths, cuts), strict=True))
    return np.concatenate([lengths for _, lengths in sorted(by_row, key=lambda pair: pair[0])])
