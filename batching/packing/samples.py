"""Samples as a provider delivers them, as a task encoder returns them, and as a row holds them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from epochal.data_providers.protocol import IGNORED_LABEL, CorruptData, TokenBatch, Tokens
from epochal.state.wire import load_json

NO_INDEX = -1
"""The index of an encoded sample that the packer has not seen yet."""

Labels = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class RawSample:
    """One sample as its provider delivers it.

    Attributes:
        index: its data index in the run.
        tokens: one-dimensional, uint16 or uint32. For a JSON record, the bytes of its text.
        labels: flat like `tokens`, as in `TokenBatch`; None for the tokens themselves.
        sequence_lengths: lengths of the documents in it; None for one.
        is_text: whether it is a JSON record.
    """

    index: int
    tokens: Tokens
    labels: Labels | None = None
    sequence_lengths: npt.NDArray[np.integer[Any]] | None = None
    is_text: bool = False

    def record(self) -> Any:
        """Return the JSON document of a record; `CorruptData` if the sample is not a record, or not JSON."""
        if not self.is_text:
            raise CorruptData(f"data index {self.index} holds tokens, not a JSON record", data_index=self.index)
        try:
            return load_json(self.tokens.astype(np.uint8).tobytes())
        except (ValueError, RecursionError) as error:
            raise CorruptData(f"data index {self.index} is not JSON: {error}", data_index=self.index) from error


def raw_samples(batch: TokenBatch, indices: Iterator[int]) -> Iterator[RawSample]:
    """Yield a batch's samples one by one, with the next data indices of `indices`."""
    begins = batch.offsets.tolist()
    ids, labels, lengths = batch.input_ids, batch.labels, batch.sequence_lengths
    ends = None if lengths is None else np.cumsum(lengths, dtype=np.int64)
    for begin, end in itertools.pairwise(begins):
        documents = None
        if lengths is not None and ends is not None:
            # A document belongs to the sample in which it ends; an empty one belongs to none.
            first, stop = np.searchsorted(ends, (begin, end), side="right")
            documents = lengths[first:stop][lengths[first:stop] > 0]
        sample_labels = None if labels is None else labels[begin:end]
        yield RawSample(next(indices), ids[begin:end], sample_labels, documents, batch.is_text)


@dataclass(slots=True, eq=False)
class EncodedSample:
    """One sample as a task encoder returns it, and as it is packed.

    Attributes:
        input_ids: tokens, one-dimensional, of an unsigned integer type.
        labels: flat like `input_ids`, as in `TokenBatch`; None for the tokens themselves.
        sequence_lengths: lengths of the documents in it; None for one.
        index: its data index in the run; the packer sets it.
        start: number of the sample's tokens in earlier rows; the packer sets it.
    """

    input_ids: Tokens
    labels: Labels | None = None
    sequence_lengths: npt.NDArray[np.integer[Any]] | None = None
    index: int = NO_INDEX
    start: int = 0

    def __len__(self) -> int:
        return len(self.input_ids)


def check_encoded(encoded: Any, vocabulary: int | None) -> None:
    """Raise `ValueError` unless it is a sample whose parts fit together."""
    if not isinstance(encoded, EncodedSample):
        raise ValueError(f"returned {type(encoded).__name__}; allowed: an EncodedSample")
    ids, labels = encoded.input_ids, encoded.labels
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind != "u":
        raise ValueError("input_ids are not a one-dimensional array of unsigned integers")
    limit = vocabulary or 2**32
    if ids.size and np.maximum.reduce(ids) >= limit:  # what `max` calls, at half the price for one sample
        raise ValueError(f"token {int(ids.max())}; the model's vocabulary allows 0 to {limit - 1}")
    if labels is not None:
        if labels.shape != ids.shape:
            raise ValueError(f"{labels.size} labels for {ids.size} tokens")
        if labels.dtype.kind not in "iu":
            raise ValueError(f"labels of type {labels.dtype}; allowed: integers")
        wrong = (labels >= limit) | ((labels < 0) & (labels != IGNORED_LABEL))
        if wrong.any():
            raise ValueError(f"label {int(labels[wrong][0])}; allowed: 0 to {limit - 1}, and {IGNORED_LABEL}")
    lengths = encoded.sequence_lengths
    if lengths is not None and (lengths.dtype.kind not in "iu" or lengths.ndim != 1):
        raise ValueError("sequence_lengths are not a one-dimensional array of integers")
    if lengths is not None and ((lengths <= 0).any() or int(lengths.sum()) != ids.size):
        raise ValueError(f"sequence_lengths do not add up to {ids.size} tokens")


def part_of(sample: EncodedSample, start: int, stop: int) -> EncodedSample:
    """Return tokens `[start, stop)` of a sample."""
    if start == 0 and stop == len(sample):
        return sample
    lengths = sample.sequence_lengths
    if lengths is not None:
        ends = np.cumsum(lengths, dtype=np.int64)
        lengths = np.clip(ends, start, stop) - np.clip(ends - lengths, start, stop)
        lengths = lengths[lengths > 0]
    labels = None if sample.labels is None else sample.labels[start:stop]
    return EncodedSample(sample.input_ids[start:stop], labels, lengths, sample.index, sample.start + start)


def packed_row(samples: Sequence[EncodedSample]) -> TokenBatch:
    """Return the samples one after the other as one packed sample.

    `sequence_lengths` has each document's length, `position_ids` count from each document's start, and `labels` are
    the samples' own (or their tokens) with `IGNORED_LABEL` at each document's first token.
    """
    parts = [sample.input_ids for sample in samples]
    input_ids = np.concatenate(parts)
    if all([sample.sequence_lengths is None for sample in samples]):  # noqa: C419 (twice as fast for a few samples)
        lengths = np.array([len(part) for part in parts], np.int64)
    else:
        held = [[len(sample)] if sample.sequence_lengths is None else sample.sequence_lengths for sample in samples]
        lengths = np.concatenate(held, dtype=np.int64)
    begins = lengths.cumsum() - lengths
    labels: Labels
    if all([sample.labels is None for sample in samples]):  # noqa: C419
        labels = input_ids.astype(np.int32 if input_ids.dtype.itemsize < 4 else np.int64)
    else:
        given = [sample.input_ids if sample.labels is None else sample.labels for sample in samples]
        labels = np.concatenate(given, dtype=np.int64)
    labels[begins] = IGNORED_LABEL
    position_ids = np.arange(len(input_ids), dtype=np.int32)
    position_ids -= np.repeat(begins.astype(np.int32), lengths)
    offsets = np.array([0, len(input_ids)], np.int64)
    return TokenBatch(input_ids, offsets, labels, position_ids, lengths, check=False)


def padded_row(row: TokenBatch, row_tokens: int) -> TokenBatch:
    """Return the row padded to its full length with zeros, a separate document that is never predicted."""
    missing = row_tokens - len(row.input_ids)
    if not missing:
        return row
    tail = np.zeros(missing, np.int64)
    labels = row.input_ids if row.labels is None else row.labels
    positions = row.position_ids if row.position_ids is not None else np.arange(len(row.input_ids))
    lengths = row.sequence_lengths if row.sequence_lengths is not None else [len(row.input_ids)]
    return TokenBatch(
        np.concatenate([row.input_ids, tail.astype(row.input_ids.dtype)]),
        np.array([0, row_tokens], np.int64),
        np.concatenate([labels, tail + IGNORED_LABEL], dtype=np.int64),
        np.concatenate([positions, tail], dtype=np.int64),
        np.concatenate([lengths, [missing]], dtype=np.int64),
    )
