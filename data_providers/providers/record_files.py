"""Records from the files of a source: JSON lines and WebDataset's tars, on a disk, over HTTP and in a bucket alike.

Records are not parsed here; the task encoder interprets them (`batching/packing/task_encoder.py`). A file is read once
when it is opened, to find its records' places: sixteen bytes of memory for each line, 32 for each sample of a tar. A
cache keeps the places. A compressed file is unpacked first. The order is that of `data_providers/order.py`, a record
being a sample.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.description import describe_order
from epochal.data_providers.file_names import TAR_SUFFIX
from epochal.data_providers.formats.json_lines import lines_of
from epochal.data_providers.formats.tar import record_of, samples_of_tar
from epochal.data_providers.identity import contents_of
from epochal.data_providers.order import DataFile, DataOrder
from epochal.data_providers.protocol import (
    MAX_REQUEST_BYTES,
    CorruptData,
    DatasetSpec,
    TokenBatch,
    check_answer_bytes,
    check_sample_count,
    dataset_fingerprint,
)
from epochal.data_providers.providers.ranged import AnswerPart, ByteRange, ranges_of, read_ranges
from epochal.data_providers.sources.byte_source import (
    MAX_CONCURRENT_READS,
    ByteSource,
    SourceFile,
    Wanted,
    read_many,
    run_bounded,
)
from epochal.data_providers.sources.cache import BlockCache
from epochal.data_providers.sources.compression import compression_of, stem_of
from epochal.data_providers.sources.range_file import SourceThreads, opened_in_order
from epochal.data_providers.sources.unpacked import Unpacker, opened
from epochal.runtime.files.spool import Spool
from epochal.state.errors import InternalError
from epochal.state.intervals import DataIds

_LINES, _TAR = "JSON lines", "WebDataset"
_NAMES = {_LINES: "json-lines", _TAR: "webdataset"}
"""The kinds of files, and their names in fingerprints."""
_ROWS_OF_PLACES = {_LINES: 2, _TAR: 4}


@dataclass(frozen=True, slots=True, eq=False)
class RecordFile(DataFile):
    """One file; column *i* of `places` is the place of its record *i*, as `Places` of its format."""

    source: SourceFile
    format: str
    places: NDArray[np.int64]

    @property
    def is_packed(self) -> bool:
        """Whether it is compressed."""
        return compression_of(self.name) is not None


class RecordsDataProvider:
    """A `DataProvider` of JSON records. Make one with `open`."""

    def __init__(
        self, source: ByteSource, unpacker: Unpacker, files: Sequence[RecordFile], shuffle_seed: bytes | None
    ) -> None:
        # For the order a record is a sample of one token.
        spec = DatasetSpec(token_size_bytes=2, sequence_length=1, shuffle_seed=shuffle_seed)
        kind = files[0].format
        self.order = DataOrder(
            files,
            spec,
            lambda ordered: dataset_fingerprint(
                _NAMES[kind],
                files=[[file.name, file.size_bytes, file.token_count] for file in ordered],
                shuffle_seed=None if shuffle_seed is None else shuffle_seed.hex(),
            ),
            contents_of([file.source for file in files]),
        )
        self._source = source
        self._unpacker = unpacker
        self._closed = False
        self.files: tuple[RecordFile, ...] = self.order.files
        """The files in their order; a token of theirs is a record."""
        self.sequence_count = self.order.sequence_count
        self.fingerprint = self.order.fingerprint
        self.description = describe_order(kind, self.order)

    @classmethod
    async def open(
        cls,
        source: ByteSource,
        names: Sequence[str],
        shuffle_seed: bytes | None,
        spool: Spool,
        cache: BlockCache | None = None,
    ) -> Self:
        """Return a provider over these files of a source: of JSON lines, or tars. It closes the source.

        Raises:
            SourceUnavailable: the files cannot be read now; retry.
            CorruptData: there are no records, one is too long, or a file is cut off; the fault of the data's owner.
            Rejected: the source refuses, or a compressed file is larger than the spool may be.
            InvalidInput: a package that a compression needs is not installed.
        """
        unpacker, reader = Unpacker(source, spool), SourceThreads()
        try:
            listed = {file.name: file for file in source.files}
            files = [await _indexed(source, listed[name], unpacker, reader, cache) for name in sorted(names)]
            if not any(file.token_count for file in files):
                raise CorruptData(f"{source.location} holds no JSON record", path=source.location)
            return cls(source, unpacker, files, shuffle_seed)
        except BaseException:
            unpacker.close()
            await source.aclose()
            raise
        finally:
            reader.close()

    async def get_samples(self, data_ids: DataIds, most_bytes: int = MAX_REQUEST_BYTES) -> TokenBatch:
        """Return the records of these data indices, as `DataProvider.get_samples`: `is_text`, their bytes as uint16.

        `TooManyBytes` if they take more than `most_bytes`.
        """
        if self._closed:
            raise InternalError("get_samples after aclose")
        check_sample_count(data_ids)
        parts: list[AnswerPart] = []
        size_bytes = 0
        for extent in self.order.locate(data_ids):
            places = self.files[extent.file].places[:, extent.sequence : extent.sequence + extent.length]
            for start, stop in zip(places[::2].T.ravel().tolist(), places[1::2].T.ravel().tolist(), strict=True):
                parts.append(AnswerPart(extent.file, start, size_bytes, stop - start))
                size_bytes += stop - start
        check_answer_bytes(2 * size_bytes, most_bytes)
        body = np.empty(size_bytes, np.uint8)
        await self._read(ranges_of(parts), body.data)
        lengths = [part.length for part in parts]
        if self.files[0].format == _TAR:
            records = self._records_of(parts, body.tobytes())
            lengths, body = [len(record) for record in records], np.frombuffer(b"".join(records), np.uint8)
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return TokenBatch(body.astype("<u2"), offsets, is_text=True)

    async def _read(self, ranges: Sequence[ByteRange], view: memoryview) -> None:
        plain = [one for one in ranges if not self.files[one.file].is_packed]
        packed = [one for one in ranges if self.files[one.file].is_packed]
        await read_ranges(self.files, plain, view, partial(read_many, self._source))
        await read_ranges(self.files, packed, view, self._read_unpacked)

    async def _read_unpacked(self, wanted: Sequence[Wanted]) -> None:
        by_name = {file.name: file.source for file in self.files}

        async def read_one(one: Wanted) -> None:
            content = await self._unpacker.whole(by_name[one.name])
            one.into[:] = await asyncio.to_thread(content.__getitem__, slice(one.start, one.start + len(one.into)))

        await run_bounded(read_one, wanted, MAX_CONCURRENT_READS)

    def _records_of(self, parts: Sequence[AnswerPart], body: bytes) -> list[bytes]:
        """Return a tar's records, of the parts of each sample: its `.json` and its `.txt`."""
        records: list[bytes] = []
        for record, text in zip(parts[::2], parts[1::2], strict=True):
            place = f"{self.files[record.file].source.place}, the sample at byte {max(record.offset, text.offset)}"
            records.append(record_of(_content(record, body), _content(text, body), place))
        return records

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._unpacker.close()
            await self._source.aclose()


def _content(part: AnswerPart, body: bytes) -> bytes | None:
    return body[part.target : part.target + part.length] if part.offset >= 0 else None


async def _indexed(
    source: ByteSource, file: SourceFile, unpacker: Unpacker, reader: SourceThreads, cache: BlockCache | None
) -> RecordFile:
    """Return the file with the places of its records: those that the cache keeps, or else by reading it once."""
    kind = _TAR if stem_of(file.name).endswith(TAR_SUFFIX) else _LINES
    key = _key_of_places(file, kind)
    held = None if cache is None else await reader.run(partial(cache.get, key))
    if held is not None:
        places = np.frombuffer(held, np.int64).reshape(_ROWS_OF_PLACES[kind], -1)
        return RecordFile(file.name, file.size_bytes, places.shape[1], file, kind, places)
    if compression_of(file.name) is None:
        readable: BinaryIO = opened_in_order(source, file)
        size_bytes = file.size_bytes
    else:
        content = await unpacker.whole(file)
        readable, size_bytes = opened(content), content.size_bytes
    places = await reader.run(partial(_found, kind, readable, size_bytes, file.place))
    if cache is not None:
        await reader.run(partial(cache.put, key, memoryview(places.tobytes())))
    return RecordFile(file.name, file.size_bytes, places.shape[1], file, kind, places)


def _key_of_places(file: SourceFile, kind: str) -> str:
    """Return the name in a cache of the places of a file's records; another version of the file has another one."""
    parts = (f"places/v1/{_NAMES[kind]}", file.place, file.name, str(file.size_bytes), file.version, file.distinction)
    return hashlib.sha256("\x00".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _found(kind: str, opened: BinaryIO, size_bytes: int, place: str) -> NDArray[np.int64]:
    with opened as file:
        if kind == _TAR:
            return samples_of_tar(file, size_bytes, place)
        places, read_bytes = lines_of(file, place)
        if read_bytes != size_bytes:
            raise CorruptData(f"{place} ends at byte {read_bytes}; it was longer", path=place)
        return places
