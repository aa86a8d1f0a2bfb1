"""The provider over a `ByteSource`: samples from token files, by few range requests of bounded size."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
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


class ByteRange(NamedTuple):
    """Bytes `[start, stop)` of a file, by its position in the dataset's order, and the parts in them; never empty."""

    file: int
    start: int
    stop: int
    parts: Sequence[AnswerPart]


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
    """Fill `view` with the parts in these ranges, by `read`, whose errors are raised."""
    wanted: list[Wanted] = []
    scattered: list[tuple[ByteRange, memoryview]] = []
    for one in ranges:
        file, start, stop, parts = one
        if len(parts) > 1:
            into = np.empty(stop - start, np.uint8).data
            scattered.append((one, into))
        else:
            _, _, target, length = parts[0]
            into = view[target : target + length]
        wanted.append(Wanted(files[file].name, start, into))
    await read(wanted)
    for one, found in scattered:
        for _, offset, target, length in one.parts:
            view[target : target + length] = found[offset - one.start : offset - one.start + length]


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
    file, start, stop = -1, 0, 0
    held: list[AnswerPart] = []
    for part in sorted(_cut_long(parts)):
        next_file, offset, _, length = part
        end = offset + length
        if next_file == file and offset <= stop + MAX_GAP_BYTES and end - start <= MAX_RANGE_BYTES:
            held.append(part)
            stop = max(stop, end)
            continue
        if held:
            ranges.append(ByteRange(file, start, stop, held))
        file, start, stop, held = next_file, offset, end, [part]
    if held:
        ranges.append(ByteRange(file, start, stop, held))
    return ranges


def _cut_long(parts: Iterable[AnswerPart]) -> Iterator[AnswerPart]:
    """Yield the parts, those of more than `MAX_RANGE_BYTES` in several."""
    for part in parts:
        file, offset, target, left = part
        while left > MAX_RANGE_BYTES:
            yield AnswerPart(file, offset, target, MAX_RANGE_BYTES)
            offset, target, left = offset + MAX_RANGE_BYTES, target + MAX_RANGE_BYTES, left - MAX_RANGE_BYTES
        if left:
            yield part if left == part.length else AnswerPart(file, offset, target, left)
