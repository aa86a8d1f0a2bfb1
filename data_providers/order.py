"""The one order of the data: which file and place a data index means, the same through every provider.

The samples of a dataset are numbered file after file, the files sorted by name; a pass walks over all of them once,
and data index *d* is position `d mod N` of pass `d div N`, where *N* is the number of samples. Without a shuffle seed,
positions are sample numbers. With one, each pass permutes *blocks* of neighbouring samples by its own key and leaves
the inside of a block alone, so that a request reads few contiguous places:

- a block has `block_sequences(N)` samples. The last block may be shorter, and stands at a place that is keyed too;
- the other blocks stand in the order of `state.permutation.permute`.

Memory grows with the number of files, not of samples. This order is a contract between machines: golden vectors pin it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_providers.protocol import CorruptData, DatasetSpec, OutOfRange
from state.intervals import MAX_BATCH_NUMBER, BatchId
from state.permutation import permutation_key, permute
from state.wire import document_digest

MAX_BLOCK_SEQUENCES = 16
"""Samples of one block in a large dataset: 64 KiB of 2,048 two-byte tokens."""

MIN_BLOCKS = 1024
"""A dataset of at least so many samples has at least so many blocks: small ones are shuffled sample by sample."""

MAX_PASSES = 2**32
"""Data indices beyond so many passes do not exist."""

WINDOW_BLOCKS = 256
"""Blocks whose places are computed together; one call for many costs little more than one for a few."""

KEPT_WINDOWS = 16
_BLOCKS_DOMAIN = b"epochal/order/blocks/v1"
_SHORT_BLOCK_DOMAIN = b"epochal/order/short-block/v1"
_FINGERPRINT_FORMAT = "epochal/dataset/v1"

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DataFile:
    """One token file of a dataset.

    Attributes:
        name: relative to the dataset's folder, with `/`; unique, and what files are sorted by (by code point).
        size_bytes: of the whole file, header included.
        token_count: tokens that it holds.
    """

    name: str
    size_bytes: int
    token_count: int


class Run(NamedTuple):
    """Samples that lie one after the other in one file.

    Attributes:
        file: the file's position in `DataOrder.files`.
        sequence: the first sample's number within the file.
        length: how many samples.
    """

    file: int
    sequence: int
    length: int


def block_sequences(sequence_count: int) -> int:
    """How many samples of a dataset of `sequence_count` samples form a block."""
    return min(max(sequence_count // MIN_BLOCKS, 1), MAX_BLOCK_SEQUENCES)


class DataOrder:
    """Maps data indices to places in files.

    Attributes:
        files: the dataset's files, sorted by name.
        spec: how they are read.
        sequence_count: samples of one pass.
        dropped_tokens: by file name, how many tokens at a file's end are shorter than a sample and belong to none.
        fingerprint: 64 hex characters over the files' names and sizes, the token size, sequence length and shuffle.
    """

    def __init__(self, files: Iterable[DataFile], spec: DatasetSpec) -> None:
        """
        Raises:
            CorruptData: no file holds a whole sample, or two have one name. The data's owner's fault.
        """
        self.files = tuple(sorted(files, key=lambda file: file.name))
        self.spec = spec
        for file, following in zip(self.files, self.files[1:], strict=False):
            if file.name == following.name:
                raise CorruptData(f"two files are named {file.name}")
        length = spec.sequence_length
        counts = [file.token_count // length for file in self.files]
        self.dropped_tokens = {file.name: file.token_count % length for file in self.files if file.token_count % length}
        self.sequence_count = sum(counts)
        if not self.sequence_count:
            raise CorruptData(f"{len(self.files)} files hold no sequence of {length} tokens", files=len(self.files))
        if self.sequence_count > MAX_BATCH_NUMBER:
            raise CorruptData(f"{self.sequence_count} sequences are more than data indices can name")
        # Files without a whole sample are left out here, so that every place is in exactly one entry.
        self._file_numbers = np.array([number for number, count in enumerate(counts) if count], dtype=np.int64)
        self._file_starts = np.concatenate(([0], np.cumsum([count for count in counts if count], dtype=np.int64)))
        self._block = block_sequences(self.sequence_count)
        self._full_blocks, self._short = divmod(self.sequence_count, self._block)
        self._window = lru_cache(maxsize=KEPT_WINDOWS)(self._permuted_window)
        self._short_place = lru_cache(maxsize=KEPT_WINDOWS)(self._place_of_short_block)
        self.fingerprint = fingerprint(self.files, spec)

    def locate(self, data_ids: BatchId) -> list[Run]:
        """The places of a closed interval of data indices, in their order; neighbours in one file form one run.

        Raises:
            OutOfRange: an index is beyond the last pass; the asker's fault.
        """
        last_pass, _ = divmod(data_ids.end, self.sequence_count)
        if last_pass >= MAX_PASSES:
            raise OutOfRange(f"data index {data_ids.end} is beyond {MAX_PASSES} passes of {self.sequence_count}")
        stretches = [
            self._stretches(
                number,
                max(data_ids.start - number * self.sequence_count, 0),
                min(data_ids.end + 1 - number * self.sequence_count, self.sequence_count),
            )
            for number in range(data_ids.start // self.sequence_count, last_pass + 1)
        ]
        if len(stretches) == 1:
            return self._runs(*stretches[0])
        return self._runs(*(np.concatenate(parts) for parts in zip(*stretches, strict=True)))

    def _stretches(self, pass_number: int, first: int, stop: int) -> tuple[Numbers, Numbers]:
        """Where positions `[first, stop)` of a pass lie: each stretch's first sample number, and its length."""
        if self.spec.shuffle_seed is None:
            return np.array([first], dtype=np.int64), np.array([stop - first], dtype=np.int64)
        short_place = self._short_place(pass_number) if self._short else self._full_blocks
        places = np.arange(
            self._place_of(first, short_place), self._place_of(stop - 1, short_place) + 1, dtype=np.int64
        )
        is_short, is_after = places == short_place, places > short_place
        # The short block has no number among the full ones; what is looked up for it is not used.
        numbers = np.minimum(places - is_after, self._full_blocks - 1)
        blocks = np.where(is_short, self._full_blocks, self._permuted(pass_number, numbers))
        counts = np.where(is_short, self._short, self._block)
        starts = blocks * self._block
        first_begin = int(places[0]) * self._block - (self._block - self._short if is_after[0] else 0)
        starts[0] += first - first_begin
        counts[0] -= first - first_begin
        counts[-1] -= int(counts.sum()) - (stop - first)
        return starts, counts

    def _place_of(self, position: int, short_place: int) -> int:
        """Which place in the pass's order of blocks holds a position; the short block stands at `short_place`."""
        before = short_place * self._block
        if position < before:
            return position // self._block
        return short_place if position < before + self._short else (position - self._short) // self._block + 1

    def _permuted(self, pass_number: int, numbers: Numbers) -> Numbers:
        """The images of ascending, consecutive numbers of full blocks under the pass's permutation."""
        first = int(numbers[0]) // WINDOW_BLOCKS
        windows = [self._window(pass_number, window) for window in range(first, int(numbers[-1]) // WINDOW_BLOCKS + 1)]
        images = windows[0] if len(windows) == 1 else np.concatenate(windows)
        return images[numbers - first * WINDOW_BLOCKS]

    def _permuted_window(self, pass_number: int, window: int) -> Numbers:
        numbers = np.arange(
            window * WINDOW_BLOCKS, min((window + 1) * WINDOW_BLOCKS, self._full_blocks), dtype=np.uint64
        )
        key = permutation_key(self.spec.shuffle_seed or b"", _BLOCKS_DOMAIN, pass_number)
        return permute(key, self._full_blocks, numbers).astype(np.int64)

    def _place_of_short_block(self, pass_number: int) -> int:
        key = permutation_key(self.spec.shuffle_seed or b"", _SHORT_BLOCK_DOMAIN, pass_number)
        return int(permute(key, self._full_blocks + 1, np.zeros(1, dtype=np.uint64))[0])

    def _runs(self, starts: Numbers, counts: Numbers) -> list[Run]:
        """The stretches cut where files end, and joined where they continue each other in one file."""
        first_entries = np.searchsorted(self._file_starts, starts, side="right") - 1
        last_entries = np.searchsorted(self._file_starts, starts + counts - 1, side="right") - 1
        if (last_entries != first_entries).any():
            pieces = last_entries - first_entries + 1
            stretch = np.repeat(np.arange(len(starts)), pieces)
            entries = first_entries[stretch] + np.arange(len(stretch)) - (np.cumsum(pieces) - pieces)[stretch]
            stops = np.minimum((starts + counts)[stretch], self._file_starts[entries + 1])
            starts = np.maximum(starts[stretch], self._file_starts[entries])
            counts = stops - starts
        else:
            entries = first_entries
        continued = (entries[1:] == entries[:-1]) & (starts[1:] == starts[:-1] + counts[:-1])
        if continued.any():
            heads = np.flatnonzero(np.concatenate((np.array([True]), ~continued)))
            entries, starts, counts = entries[heads], starts[heads], np.add.reduceat(counts, heads)
        sequences = starts - self._file_starts[entries]
        return list(map(Run, self._file_numbers[entries].tolist(), sequences.tolist(), counts.tolist()))


def fingerprint(files: Sequence[DataFile], spec: DatasetSpec) -> str:
    """64 hex characters that name the dataset: the files' names and sizes, how they are cut and ordered."""
    return document_digest(
        {
            "format": _FINGERPRINT_FORMAT,
            "files": [[file.name, file.size_bytes] for file in files],
            "token_size_bytes": spec.token_size_bytes,
            "sequence_length": spec.sequence_length,
            "shuffle_seed": None if spec.shuffle_seed is None else spec.shuffle_seed.hex(),
        }
    )
