"""The provider over a `ByteSource`: samples from token files, by few range requests of bounded size."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from epochal.data_providers.description import describe_tokens
from epochal.data_providers.file_names import TOKEN_FILES
from epochal.data_providers.formats.discovery import discover
from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.identity import contents_of
from epochal.data_providers.order import DataFile, DataOrder, Extent
from epochal.data_providers.protocol import CorruptData, DatasetSpec, TokenBatch, Tokens
from epochal.data_providers.providers.read_ahead import ReadAhead
from epochal.data_providers.sources.byte_source import ByteSource, Wanted, closed_on_failure, read_many
from epochal.state.errors import InternalError
from epochal.state.intervals import DataIds

MAX_RANGE_BYTES = 16 * 1024**2
"""A longer stretch is cut, so that its parts are read concurrently."""

MAX_GAP_BYTES = 16 * 1024
"""Maximum number of unwanted bytes between two ranges that are requested as one."""


class AnswerPart(NamedTuple):
    """A part of an answer: `length` bytes from `offset` on of a file, by its position in the order, to `target`."""

    file: int
    offset: int
    target: int
    length: int


class Piece(NamedTuple):
    """The destination of a part of a range: `length` bytes from `source` in the range to `target` in the answer."""

    source: int
    target: int
    length: int


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `[start, stop)` of a file, by its position in the dataset's order, and the wanted pieces; never empty."""

    file: int
    start: int
    stop: int
    pieces: tuple[Piece, ...]


class TokenFilesProvider:
    """The base of every `DataProvider` over the token files of a source, which it closes.

    Attributes:
        encodings: how the tokens were made, as far as a manifest says it, by the files' names.
    """

    def __init__(self, source: ByteSource, files: Sequence[TokenFile], spec: DatasetSpec) -> None:
        if not files:
            raise CorruptData(f"{source.location} holds no token files ({TOKEN_FILES})", location=source.location)
        self.order = DataOrder(files, spec, contents=contents_of(source.files))
        self.encodings = {file.name: file.encoding for file in source.files if file.encoding is not None}
        self.sequence_count = self.order.sequence_count
        self.fingerprint = self.order.fingerprint
        self.description = describe_tokens("token files", self.order)
        self._source = source
        self._closed = False

    async def aclose(self) -> None:
        self._closed = True
        await self._source.aclose()


class RangedDataProvider(TokenFilesProvider):
    """A `DataProvider` over the token files of a source. Make one with `open`."""

    def __init__(self, source: ByteSource, files: Sequence[TokenFile], spec: DatasetSpec) -> None:
        super().__init__(source, files, spec)
        self._ahead = ReadAhead(self._fill, spec)

    @classmethod
    async def open(cls, source: ByteSource, spec: DatasetSpec) -> Self:
        """Open every token file of a source. The provider closes the source.

        Raises:
            SourceUnavailable: the source does not answer now; retry.
            CorruptData: there are no token files, or one of them is not in its format; the fault of the data's owner.
            Rejected: the source refuses.
        """
        async with closed_on_failure(source):
            return cls(source, await discover(source, spec), spec)

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`."""
        if self._closed:
            raise InternalError("get_samples after aclose")
        self.order.spec.check_request(data_ids)
        return TokenBatch.fixed_length(await self._ahead.get(data_ids), self.order.spec.sequence_length)

    def expecting(self, data_ids: Sequence[DataIds], samples_per_request: int) -> AbstractContextManager[None]:
        """Read ahead within the context, as `Expecting.expecting`."""
        return self._ahead.expecting(data_ids, samples_per_request)

    async def _fill(self, data_ids: DataIds, tokens: Tokens) -> None:
        """Fill an array with the samples of these data indices."""
        view = tokens.view(np.uint8).data
        ranges = plan_ranges(self.order.locate(data_ids), self.order.files, self.order.spec)
        await read_ranges(self.order.files, ranges, view, partial(read_many, self._source))

    async def aclose(self) -> None:
        self._closed = True
        await self._ahead.aclose()
        await super().aclose()


async def read_ranges(
    files: Sequence[DataFile],
    ranges: Sequence[ByteRange],
    view: memoryview,
    read: Callable[[Sequence[Wanted]], Awaitable[None]],
) -> None:
    """Fill `view` with the pieces of these ranges, by `read`, whose errors are raised."""
    wanted: list[Wanted] = []
    scattered: list[tuple[ByteRange, memoryview]] = []
    for one in ranges:
        (piece, *more) = one.pieces
        if more:
            into = np.empty(one.stop - one.start, np.uint8).data
            scattered.append((one, into))
        else:
            into = view[piece.target : piece.target + piece.length]
        wanted.append(Wanted(files[one.file].name, one.start, into))
    await read(wanted)
    for one, found in scattered:
        for begin, target, length in one.pieces:
            view[target : target + length] = found[begin : begin + length]


def parts_of(extents: Iterable[Extent], files: Sequence[TokenFile], spec: DatasetSpec) -> list[AnswerPart]:
    """Return the parts of an answer.

    Args:
        extents: the places of a request, in the order of the answer.
        files: the dataset's files, in its order.
    """
    parts: list[AnswerPart] = []
    target = 0
    for file, sequence, count in extents:
        length = count * spec.sequence_bytes
        parts.append(AnswerPart(file, files[file].offset_bytes(sequence, spec), target, length))
        target += length
    return parts


def plan_ranges(extents: Iterable[Extent], files: Sequence[TokenFile], spec: DatasetSpec) -> list[ByteRange]:
    """Return the ranges of bytes that hold the extents, as `ranges_of`. Arguments as `parts_of`."""
    return ranges_of(parts_of(extents, files, spec))


def ranges_of(parts: Iterable[AnswerPart]) -> list[ByteRange]:
    """Return the ranges that hold these parts, by file and offset."""
    ranges: list[ByteRange] = []
    pieces: list[Piece] = []
    file, start, stop = -1, 0, 0
    for next_file, offset, target, length in sorted(_cut_long(parts)):
        joins = next_file == file and offset <= stop + MAX_GAP_BYTES and offset + length - start <= MAX_RANGE_BYTES
        if not joins:
            if pieces:
                ranges.append(ByteRange(file, start, stop, tuple(pieces)))
            file, start, stop, pieces = next_file, offset, offset, []
        pieces.append(Piece(offset - start, target, length))
        stop = max(stop, offset + length)
    if pieces:
        ranges.append(ByteRange(file, start, stop, tuple(pieces)))
    return ranges


def _cut_long(parts: Iterable[AnswerPart]) -> Iterator[AnswerPart]:
    """Yield the parts, those of more than `MAX_RANGE_BYTES` in several."""
    for file, offset, target, left in parts:
        while left:
            length = min(left, MAX_RANGE_BYTES)
            yield AnswerPart(file, offset, target, length)
            offset, target, left = offset + length, target + length, left - length
