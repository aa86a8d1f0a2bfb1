"""The order of the data: the file and place of each data index, the same for every provider.

The samples of a dataset are numbered file after file, the files sorted by name; a pass visits each of them once,
and data index *d* is position `d mod N` of pass `d div N`, where *N* is the number of samples. Without a shuffle seed,
positions are sample numbers. With one, each pass permutes *blocks* of neighbouring samples by its own key and keeps
the order within a block, so that a request reads few contiguous places:

- a block has `block_sequences(N)` samples. The last block may be shorter; its place in the order is keyed too;
- the other blocks are in the order of `epochal.state.permutation.permute`.

Memory grows with the number of files, not of samples. All machines must compute this order: golden vectors pin it.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.identity import Contents, content_fingerprint, identified_by
from epochal.data_providers.protocol import CorruptData, DatasetSpec, OutOfRange, dataset_fingerprint
from epochal.state.intervals import MAX_INDEX, DataIds
from epochal.state.permutation import permutation_key, permute

MAX_BLOCK_SEQUENCES = 16
"""Samples of one block in a large dataset: 64 KiB for samples of 2,048 two-byte tokens."""

MIN_BLOCKS = 1024
"""Minimum number of blocks of a dataset with at least that many samples; smaller ones are shuffled by sample."""

MAX_PASSES = 2**32
"""Maximum number of passes over the data; data indices beyond them do not exist."""

MAX_FILES_NAMED = 3
"""Maximum number of files that a message names."""

WINDOW_PLACES = 256
"""Number of places in a pass's order of blocks that are computed together, as clients ask for neighbours soon."""

KEPT_WINDOWS = 64
_BLOCKS_DOMAIN = b"epochal/order/blocks/v1"
_SHORT_BLOCK_DOMAIN = b"epochal/order/short-block/v1"

Numbers = NDArray[np.int64]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a dataset.

    Attributes:
        name: relative to the dataset's folder, with `/`; unique. Files are sorted by name (by code point).
        size_bytes: of the whole file, header included.
        token_count: number of its tokens; of its samples if the spec's samples have one token.
    """

    name: str
    size_bytes: int
    token_count: int


File = TypeVar("File", bound=DataFile)


class Extent(NamedTuple):
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
    """Return the number of samples of a block, for a dataset of `sequence_count` samples."""
    return min(max(sequence_count // MIN_BLOCKS, 1), MAX_BLOCK_SEQUENCES)


class DataOrder(Generic[File]):
    """The order of a dataset: the file and the place in it of each data index.

    Args:
        files: the dataset's files.
        spec: how they are read.
        fingerprint_of: returns the fingerprint of sorted files without regard to their contents, of data that are not
            plain tokens.
        contents: the files' contents, as far as manifests name them.

    Attributes:
        files: the dataset's files, sorted by name.
        spec: how they are read.
        sequence_count: samples of one pass.
        dropped_tokens: by file name, the number of tokens at a file's end that are too few for a sample.
        fingerprint: 64 hex characters; of plain tokens over the files' names, sizes and known contents, the token
            size, sequence length and shuffle.
        contents: the files' contents, as far as manifests name them.
        identified_by: in words, the property of the files that the fingerprint covers.
        read_as: in words, how plain tokens are read, which the fingerprint covers as well; "" of other data.

    Raises:
        CorruptData: no file holds a whole sample, or two have the same name. The fault of the data's owner.
    """

    def __init__(
        self,
        files: Iterable[File],
        spec: DatasetSpec,
        fingerprint_of: Callable[[tuple[File, ...]], str] | None = None,
        contents: Contents = MappingProxyType({}),
    ) -> None:
        self.files: tuple[File, ...] = tuple(sorted(files, key=lambda file: file.name))
        self.spec = spec
        for file, following in zip(self.files, self.files[1:], strict=False):
            if file.name == following.name:
                raise CorruptData(f"two files are named {file.name}")
        length = spec.sequence_length
        counts = [file.token_count // length for file in self.files]
        self.dropped_tokens = {file.name: file.token_count % length for file in self.files if file.token_count % length}
        self.sequence_count = sum(counts)
        if not self.sequence_count:
            shown = ", ".join(file.name for file in self.files[:MAX_FILES_NAMED])
            more = ", …" if len(self.files) > MAX_FILES_NAMED else ""
            held = f"{len(self.files)} files ({shown}{more})" if self.files else "no files"
            raise CorruptData(f"{held} hold no sequence of {length} tokens", files=len(self.files))
        if self.sequence_count > MAX_INDEX:
            raise CorruptData(f"{self.sequence_count} sequences are more than there are data indices")
        # Files without a whole sample are left out here, so that every place is in exactly one entry.
        self._file_numbers = np.array([number for number, count in enumerate(counts) if count], dtype=np.int64)
        self._file_starts = np.concatenate(([0], np.cumsum([count for count in counts if count], dtype=np.int64)))
        self._block = block_sequences(self.sequence_count)
        self._full_blocks, self._short = divmod(self.sequence_count, self._block)
        self._window = lru_cache(maxsize=KEPT_WINDOWS)(self._compute_window)
        self._short_place = lru_cache(maxsize=KEPT_WINDOWS)(self._compute_short_place)
        self.contents = contents
        names = [file.name for file in self.files]
        self.identified_by = identified_by(names, contents)
        order = "in the files' order" if spec.shuffle_seed is None else "shuffled"
        words = f"{spec.token_size_bytes}-byte tokens, {length:,} a sample, {order}"
        self.read_as = "" if fingerprint_of else words
        by_name = (fingerprint_of or self._fingerprint_of_tokens)(self.files)
        self.fingerprint = content_fingerprint(by_name, names, contents)
        facts = {
            "files": len(self.files),
            "sequences": self.sequence_count,
            "files_with_dropped_tail": len(self.dropped_tokens),
            "dropped_tokens": sum(self.dropped_tokens.values()),
            "fingerprint": self.fingerprint,
            "identified_by": self.identified_by,
        }
        _log.info("dataset opened", extra=facts)

    def _fingerprint_of_tokens(self, files: tuple[File, ...]) -> str:
        spec = self.spec
        return dataset_fingerprint(
            "dataset",
            files=[[file.name, file.size_bytes] for file in files],
            token_size_bytes=spec.token_size_bytes,
            sequence_length=spec.sequence_length,
            shuffle_seed=None if spec.shuffle_seed is None else spec.shuffle_seed.hex(),
        )

    def locate(self, data_ids: DataIds) -> list[Extent]:
        """Return the places of these data indices, in order, as few extents.

        Raises:
            OutOfRange: they are beyond the last pass.
        """
        last_pass = data_ids.end // self.sequence_count
        if last_pass >= MAX_PASSES:
            raise OutOfRange(f"data index {data_ids.end} is beyond {MAX_PASSES} passes of {self.sequence_count}")
        extents: list[Extent] = []
        for pass_number in range(data_ids.start // self.sequence_count, last_pass + 1):
            begin = pass_number * self.sequence_count
            first, stop = max(data_ids.start - begin, 0), min(data_ids.end + 1 - begin, self.sequence_count)
            if self.spec.shuffle_seed is None:
                extents += self._extents_in_order(first, stop)
            else:
                extents += self._shuffled_extents(pass_number, first, stop)
        return extents

    def _extents_in_order(self, first: int, stop: int) -> list[Extent]:
        """Return the places of samples `[first, stop)` of the files."""
        entry = int(self._file_starts.searchsorted(first, side="right")) - 1
        if stop <= self._file_starts[entry + 1]:  # of one file, as most requests are
            return [Extent(int(self._file_numbers[entry]), first - int(self._file_starts[entry]), stop - first)]
        return self._split_at_files(np.array([first]), np.array([stop - first]))[0]

    def _shuffled_extents(self, pass_number: int, first: int, stop: int) -> list[Extent]:
        """Return the places of positions `[first, stop)` of a pass, in their order."""
        short_place = self._short_place(pass_number)
        first_place, last_place = self._place_of(first, short_place), self._place_of(stop - 1, short_place)
        extents: list[Extent] = []
        for number in range(first_place // WINDOW_PLACES, last_place // WINDOW_PLACES + 1):
            window = self._window(pass_number, number)
            begin = number * WINDOW_PLACES
            head = window.heads[max(first_place - begin, 0)]
            extents += window.extents[head : window.heads[min(last_place + 1 - begin, WINDOW_PLACES)]]
        first_begin = first_place * self._block - (self._block - self._short if first_place > short_place else 0)
        return _cut(extents, first - first_begin, stop - first)

    def _place_of(self, position: int, short_place: int) -> int:
        """Return the place, in the pass's order of blocks, of the block with this position."""
        before = short_place * self._block
        if position < before:
            return position // self._block
        return short_place if position < before + self._short else (position - self._short) // self._block + 1

    def _compute_short_place(self, pass_number: int) -> int:
        """Return the short block's place in the pass's order of blocks; without one, the place after all others."""
        if not self._short:
            return self._full_blocks
        return int(self._permute(_SHORT_BLOCK_DOMAIN, pass_number, self._full_blocks + 1, np.zeros(1, np.uint64))[0])

    def _compute_window(self, pass_number: int, number: int) -> "_Window":
        """Return the extents of `WINDOW_PLACES` places of a pass's order of blocks, fewer at its end."""
        short_place = self._short_place(pass_number)
        end = self._full_blocks + (1 if self._short else 0)
        places = np.arange(number * WINDOW_PLACES, min((number + 1) * WINDOW_PLACES, end))
        is_short = places == short_place
        # The short block has no number among the full ones; its image is not used.
        numbers = np.minimum(places - (places > short_place), self._full_blocks - 1).astype(np.uint64)
        images = self._permute(_BLOCKS_DOMAIN, pass_number, self._full_blocks, numbers)
        blocks = np.where(is_short, self._full_blocks, images)
        extents, heads = self._split_at_files(blocks * self._block, np.where(is_short, self._short, self._block))
        return _Window(extents, heads + [len(extents)] * (WINDOW_PLACES + 1 - len(places)))

    def _permute(self, domain: bytes, pass_number: int, n: int, numbers: NDArray[np.uint64]) -> Numbers:
        return permute(permutation_key(self.spec.shuffle_seed or b"", domain, pass_number), n, numbers).astype(np.int64)

    def _split_at_files(self, starts: Numbers, lengths: Numbers) -> tuple[list[Extent], list[int]]:
        """Cut stretches of neighbouring samples into extents where files end; also return each one's first extent."""
        first_entries = np.searchsorted(self._file_starts, starts, side="right") - 1
        last_entries = np.searchsorted(self._file_starts, starts + lengths - 1, side="right") - 1
        pieces = last_entries - first_entries + 1
        heads = np.cumsum(pieces) - pieces
        stretch = np.repeat(np.arange(len(starts)), pieces)
        entries = first_entries[stretch] + np.arange(len(stretch)) - heads[stretch]
        begins = np.maximum(starts[stretch], self._file_starts[entries])
        ends = np.minimum((starts + lengths)[stretch], self._file_starts[entries + 1])
        sequences, counts = begins - self._file_starts[entries], ends - begins
        extents = map(Extent, self._file_numbers[entries].tolist(), sequences.tolist(), counts.tolist())
        return list(extents), heads.tolist()


class _Window(NamedTuple):
    """The extents of consecutive places; those of place *i* are `extents[heads[i]:heads[i + 1]]`."""

    extents: list[Extent]
    heads: list[int]


def _cut(extents: list[Extent], skipped: int, length: int) -> list[Extent]:
    """Return the `length` samples of the extents that follow the first `skipped` ones."""
    cut: list[Extent] = []
    for extent in extents:
        if skipped >= extent.length:
            skipped -= extent.length
            continue
        taken = min(extent.length - skipped, length)
        if not taken:
            break
        cut.append(extent if taken == extent.length else Extent(extent.file, extent.sequence + skipped, taken))
        length -= taken
        skipped = 0
    return cut
