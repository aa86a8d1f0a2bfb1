"""Counts what some of a dataset's samples are made of: lengths of documents and frequencies of tokens.

A few places, evenly spaced over one pass, are read: about `PROFILE_BYTES`, however large the data are. The rule kept
here: a document is counted if it begins in one of them, and is read to its end, so that long ones are counted as often
as short ones. Where samples are shuffled, what follows is elsewhere: then only whole documents are counted.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from epochal.data_providers.mixes.mixture import PERIOD
from epochal.data_providers.protocol import MAX_REQUEST_SAMPLES, DataProvider, Rejected, TokenBatch, Tokens
from epochal.data_providers.providers.local import LocalDataProvider
from epochal.data_providers.providers.ranged import RangedDataProvider
from epochal.runtime.long_work import long_work
from epochal.state.intervals import DataIds

PROFILE_BYTES = 8 * 1024**2
"""Approximate number of bytes of samples that are read."""
MAX_FOLLOWED_BYTES = 4 * 1024**2
"""Approximate number of bytes that are read beyond a place to find where its last document ends."""
MAX_PLACES = 16
MAX_PLACE_SAMPLES = 256
"""Of samples whose length varies."""
FOLLOWED_AT_ONCE_BYTES = 64 * 1024
"""Approximate number of bytes of a request beyond a place."""
MOST_FREQUENT = 16
"""Number of the most frequent tokens that are kept."""
_TOKEN_BYTES = 2
_GUESSED_SAMPLE_BYTES = 4096
"""Of samples whose length varies."""


@dataclass(frozen=True, slots=True)
class LengthBucket:
    """The number of documents of `least` to `most` tokens."""

    least: int
    most: int
    count: int


@dataclass(frozen=True, slots=True)
class TokenCount:
    """The count of a token."""

    token: int
    count: int


@dataclass(frozen=True, slots=True)
class DataProfile:
    """The counts of what was read.

    Attributes:
        unit: of the lengths: `tokens`, or `bytes` of records that a task encoder has yet to encode.
        samples, tokens: that were inspected; bytes of records.
        learnt_tokens: those with a label; None where labels are the tokens themselves.
        knows_ends: whether it is known where documents end.
        documents: that were read from beginning to end.
        endless: those that begin in what was inspected and do not end in the next `MAX_FOLLOWED_BYTES`, or in a file.
        median, longest: lengths of these documents; 0 without any.
        lengths: buckets whose bounds double, from the shortest document to the longest.
        distinct_tokens: different tokens seen; 0 for records.
        most_frequent: the most frequent ones, first the most frequent.
    """

    unit: str
    samples: int
    tokens: int
    learnt_tokens: int | None
    knows_ends: bool
    documents: int
    endless: int
    median: int
    longest: int
    lengths: tuple[LengthBucket, ...]
    distinct_tokens: int
    most_frequent: tuple[TokenCount, ...]


@dataclass
class _Seen:
    samples: int = 0
    tokens: int = 0
    learnt: int = 0
    has_labels: bool = False
    is_text: bool = False
    endless: int = 0
    lengths: list[npt.NDArray[np.int64]] = field(default_factory=list)
    flat: list[Tokens] = field(default_factory=list)


async def profile_of(provider: DataProvider, end_token: int | None = None) -> DataProfile:
    """Read some of a provider's samples and count what they are made of.

    Args:
        provider: delivers the data; not closed here.
        end_token: the token that ends each document of token files; None if it is not known, and then documents of
            such files are not counted.

    Raises:
        DataError: as `DataProvider.get_samples`.
    """
    seen = _Seen()
    places = tuple(_places(provider))
    with long_work("reading some of the data", len(places), "places") as work:
        for place in places:
            try:
                batch = await provider.get_samples(place)
            except Rejected:  # samples of varying length, which are longer than thought
                place = DataIds(place.start, place.start)
                batch = await provider.get_samples(place)
            _count(seen, batch, _stretches(provider, place), end_token)
            if end_token is not None and _is_in_file_order(provider):
                await _follow(seen, provider, place, batch, end_token)
            work.advance()
            if seen.tokens * _TOKEN_BYTES >= PROFILE_BYTES:
                break
    return _profile(seen)


def _places(provider: DataProvider) -> Iterator[DataIds]:
    """Yield the data indices to read: evenly spaced stretches of one pass."""
    end = PERIOD if provider.sequence_count is None else provider.sequence_count
    length = _length_of(provider)
    affordable = max(1, PROFILE_BYTES // (_GUESSED_SAMPLE_BYTES if length is None else length * _TOKEN_BYTES))
    most = MAX_PLACE_SAMPLES if length is None else max(1, min(affordable // MAX_PLACES, MAX_REQUEST_SAMPLES))
    places = min(MAX_PLACES, affordable, -(-end // most))  # a small dataset is read whole
    count = max(1, min(most, end // places))
    for number in range(places):
        start = 0 if places == 1 else (end - count) * number // (places - 1)
        yield DataIds(start, start + count - 1)


def _is_in_file_order(provider: DataProvider) -> TypeGuard[LocalDataProvider | RangedDataProvider]:
    if not isinstance(provider, LocalDataProvider | RangedDataProvider):
        return False
    return provider.order.spec.shuffle_seed is None


async def _follow(
    seen: _Seen, provider: LocalDataProvider | RangedDataProvider, place: DataIds, batch: TokenBatch, end_token: int
) -> None:
    """Read on from a place to the end of the document that begins last in it."""
    order = provider.order
    last = order.locate(place)[-1]
    length = order.spec.sequence_length
    tail = batch.input_ids[-last.length * length :]
    ends = np.flatnonzero(tail == end_token)
    begun = len(tail) - 1 - int(ends[-1]) if len(ends) else 0
    if not begun:
        return
    left = order.files[last.file].token_count // length - (last.sequence + last.length)
    left = min(left, MAX_FOLLOWED_BYTES // (length * _TOKEN_BYTES))
    at_once = min(max(1, FOLLOWED_AT_ONCE_BYTES // (length * _TOKEN_BYTES)), MAX_REQUEST_SAMPLES)
    at = place.end + 1
    while left > 0:
        more = (await provider.get_samples(DataIds(at, at + min(left, at_once) - 1))).input_ids
        ends = np.flatnonzero(more == end_token)
        if len(ends):
            seen.lengths.append(np.array([begun + int(ends[0]) + 1], np.int64))
            return
        begun, at, left = begun + len(more), at + at_once, left - at_once
    seen.endless += 1


def _length_of(provider: DataProvider) -> int | None:
    if not isinstance(provider, LocalDataProvider | RangedDataProvider):
        return None
    return provider.order.spec.sequence_length


def _stretches(provider: DataProvider, place: DataIds) -> list[int]:
    """Return how many samples of a place are neighbours in a file, one number for each such stretch."""
    if not isinstance(provider, LocalDataProvider | RangedDataProvider):
        return [place.count]
    return [extent.length for extent in provider.order.locate(place)]


def _count(seen: _Seen, batch: TokenBatch, stretches: list[int], end_token: int | None) -> None:
    seen.samples += batch.sample_count
    seen.tokens += batch.input_ids.size
    seen.is_text = batch.is_text
    if batch.labels is not None:
        seen.has_labels = True
        seen.learnt += int((batch.labels >= 0).sum())
    sample_lengths = np.diff(batch.offsets)
    if batch.is_text:
        seen.lengths.append(sample_lengths)
        return
    seen.flat.append(batch.input_ids)
    if batch.sequence_lengths is not None:
        seen.lengths.append(batch.sequence_lengths.astype(np.int64))
    elif (sample_lengths != sample_lengths[:1]).any():
        seen.lengths.append(sample_lengths)
    elif end_token is not None:
        edges = np.concatenate(([0], np.cumsum(stretches)))
        for first, last in itertools.pairwise(batch.offsets[edges].tolist()):
            seen.lengths.append(np.diff(np.flatnonzero(batch.input_ids[first:last] == end_token)))


def _profile(seen: _Seen) -> DataProfile:
    lengths = np.sort(np.concatenate([np.empty(0, np.int64), *seen.lengths]))
    lengths = lengths[lengths > 0]
    tokens, counts = np.unique(np.concatenate([np.empty(0, "<u2"), *seen.flat]), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:MOST_FREQUENT]
    return DataProfile(
        unit="bytes" if seen.is_text else "tokens",
        samples=seen.samples,
        tokens=seen.tokens,
        learnt_tokens=seen.learnt if seen.has_labels else None,
        knows_ends=bool(seen.lengths),
        documents=len(lengths),
        endless=seen.endless,
        median=int(lengths[len(lengths) // 2]) if len(lengths) else 0,
        longest=int(lengths[-1]) if len(lengths) else 0,
        lengths=tuple(_buckets(lengths)),
        distinct_tokens=len(tokens),
        most_frequent=tuple(TokenCount(int(tokens[at]), int(counts[at])) for at in order),
    )


def _buckets(lengths: npt.NDArray[np.int64]) -> Iterator[LengthBucket]:
    """Yield buckets of 1, 2 to 3, 4 to 7, … for sorted lengths, from the first that is not empty to the last."""
    if not len(lengths):
        return
    for power in range(int(lengths[0]).bit_length() - 1, int(lengths[-1]).bit_length()):
        least, most = 2**power, 2 ** (power + 1) - 1
        first, stop = np.searchsorted(lengths, (least, most + 1))
        yield LengthBucket(least, most, int(stop - first))
