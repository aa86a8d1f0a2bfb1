"""Samples that are already cut, labelled and maybe packed: parquet or Arrow files with one row per sample.

Columns, each a list of integers per row: `inputs`, and optionally `labels` and `position_ids` (as long as the inputs)
and `sequence_lengths` (of the documents packed into the row; they add up to its length). Where a run packs, rows
without `inputs` are JSON records. pyarrow reads them, an extra (`pip install 'epochal[parquet]'`). The order is the
files' own, by name, pass after pass: such samples are shuffled when they are written. Row groups, and record batches,
are decoded when they are needed, and a limited number is kept. Files behind a source are read by ranges: a parquet
file's footer, the heads of an Arrow file, and the columns of the row groups that are needed.

`data_providers/splits.py` chooses a folder's files.
"""

import asyncio
import io
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.description import describe_order
from epochal.data_providers.file_names import PARQUET_SUFFIX, ROW_SUFFIXES
from epochal.data_providers.formats import columns as row_columns
from epochal.data_providers.formats.arrow_ipc import ArrowBatch, batches_of, read_batch
from epochal.data_providers.formats.columns import (
    EXTRA,
    INPUTS,
    OPTIONAL,
    RECORD,
    Column,
    as_ours,
    columns_of,
    decoded,
    pyarrow,
    too_large,
)
from epochal.data_providers.identity import contents_of
from epochal.data_providers.order import DataFile, DataOrder, Extent
from epochal.data_providers.protocol import (
    MAX_REQUEST_BYTES,
    CorruptData,
    DatasetSpec,
    TokenBatch,
    check_answer_bytes,
    check_sample_count,
    dataset_fingerprint,
)
from epochal.data_providers.sources.byte_source import ByteSource, SourceFile, closed_on_failure
from epochal.data_providers.sources.range_file import RangeFile, SourceThreads
from epochal.data_providers.splits import names_of_split
from epochal.data_providers.waits import decoding
from epochal.state.errors import InternalError
from epochal.state.intervals import DataIds

__all__ = ["EXTRA", "PreprocessedDataProvider"]

MAX_DECODED_BYTES = 512 * 1024**2
"""Maximum size of the decoded row groups that are kept; the least recently used is dropped first."""
VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Size of a decoded value of a physical type; texts and bytes have at least their place, of `PLACE_BYTES`."""
PLACE_BYTES = 4
_ROWS = DatasetSpec(token_size_bytes=4, sequence_length=1)
"""For the order a row is a sample of one token."""


Opening = Callable[[SourceFile], Any]
"""Opens a file for pyarrow, in a thread; its reads raise `CorruptData` if it changed."""


@dataclass(frozen=True, slots=True, eq=False)
class RowFile(DataFile):
    """A file as its footer describes it; row group *g* has rows `[starts[g], starts[g + 1])`.

    Attributes:
        source: the file.
        columns: those that are read.
        schema: of an Arrow file, for its batches.
        batches: of an Arrow file; None for parquet.
        metadata: of a parquet file, its footer.
    """

    source: SourceFile
    columns: tuple[str, ...]
    starts: NDArray[np.int64]
    schema: Any = None
    batches: tuple[ArrowBatch, ...] | None = None
    metadata: Any = None


class PreprocessedDataProvider:
    """A `DataProvider` over rows of parquet or Arrow files. Make one with `open`."""

    def __init__(self, files: Sequence[RowFile], max_tokens: int | None, opening: Opening, source: ByteSource) -> None:
        columns = files[0].columns
        for file in files:
            if file.columns != columns:
                other = f"{files[0].name} has {list(columns)}"
                raise CorruptData(f"{file.source.place} has columns {list(file.columns)}, {other}")
        self.is_text = INPUTS not in columns
        """Whether rows are JSON records."""
        self.order = DataOrder(
            files,
            _ROWS,
            lambda ordered: dataset_fingerprint(
                "row-records" if self.is_text else "preprocessed",
                files=[[file.name, file.size_bytes, file.token_count] for file in ordered],
                columns=list(columns),
            ),
            contents_of([file.source for file in files]),
        )
        self.files: tuple[RowFile, ...] = self.order.files
        """The files in their order; a token of theirs is a row."""
        self.columns = columns
        self.encodings = {file.name: file.source.encoding for file in files if file.source.encoding is not None}
        """The encoding of each file's tokens, as far as a manifest records it."""
        self._max_tokens = max_tokens
        self._opening = opening
        self._source = source
        self._threads = SourceThreads()
        self._decoded: OrderedDict[tuple[int, int], dict[str, Column]] = OrderedDict()
        self._decoded_bytes = 0
        self._reading = asyncio.Lock()
        self._closed = False
        self.sequence_count = self.order.sequence_count
        self.fingerprint = self.order.fingerprint
        kind = "parquet files" if all(file.batches is None for file in files) else "Arrow files"
        self.description = describe_order(kind, self.order)

    @classmethod
    async def open(cls, source: ByteSource, names: Collection[str], max_tokens: int | None, *, records: bool) -> Self:
        """Open files of a source. It closes the source.

        Args:
            source: holds the files.
            names: of those to open.
            max_tokens: maximum length of a sample; None for any.
            records: whether rows without tokens are taken as JSON records.

        Raises:
            SourceUnavailable: the files cannot be read now; retry.
            CorruptData: no such files, or one that does not hold samples; the fault of the data's owner.
            InvalidInput: pyarrow is not installed.
        """
        threads, loop, wanted = SourceThreads(), asyncio.get_running_loop(), set(names)

        def opening(file: SourceFile) -> Any:
            return RangeFile(source, file, loop=loop)

        try:
            async with closed_on_failure(source):
                pyarrow()
                chosen = sorted((file for file in source.files if file.name in wanted), key=lambda file: file.name)
                files = [await threads.run(partial(_row_file, file, opening, records)) for file in chosen]
                return cls(files, max_tokens, opening, source)
        finally:
            threads.close()

    async def get_samples(self, data_ids: DataIds, most_bytes: int = MAX_REQUEST_BYTES) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`; they may differ in length.

        `input_ids` are uint32, all other arrays int64. `TooManyBytes` if they take more than `most_bytes`.
        """
        if self._closed:
            raise InternalError("get_samples after aclose")
        check_sample_count(data_ids)
        async with self._reading:  # so that a row group is decoded once, however many calls need it
            return await self._threads.run(partial(self._read, self.order.locate(data_ids), most_bytes))

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._decoded.clear()
        self._threads.close()
        await self._source.aclose()

    def _read(self, extents: Sequence[Extent], most_bytes: int) -> TokenBatch:
        parts: dict[str, list[Column]] = {name: [] for name in ([RECORD] if self.is_text else self.columns)}
        taken_bytes = 0
        for extent in extents:
            row, stop = extent.sequence, extent.sequence + extent.length
            starts = self.files[extent.file].starts
            while row < stop:
                group = int(np.searchsorted(starts, row, side="right")) - 1
                begin, end = int(starts[group]), min(stop, int(starts[group + 1]))
                for name, column in self._row_group(extent.file, group).items():
                    part = column.rows(row - begin, end - begin)
                    taken_bytes += part.values.nbytes * (2 if self.is_text else 1)
                    check_answer_bytes(taken_bytes, most_bytes)
                    parts[name].append(part)
                row = end
        batch = _batch({name: _joined(columns) for name, columns in parts.items()})
        longest = int(np.diff(batch.offsets).max(initial=0))
        if not self.is_text and self._max_tokens is not None and longest > self._max_tokens:
            raise CorruptData(f"a sample has {longest} tokens; the run's max_seq_len is {self._max_tokens}")
        return batch

    def _row_group(self, file: int, group: int) -> dict[str, Column]:
        key = (file, group)
        if key in self._decoded:
            self._decoded.move_to_end(key)
            return self._decoded[key]
        with decoding():
            found = _decode(self.files[file], group, self._opening)
        self._decoded[key] = found
        self._decoded_bytes += _bytes_of(found)
        while self._decoded_bytes > MAX_DECODED_BYTES and len(self._decoded) > 1:
            self._decoded_bytes -= _bytes_of(self._decoded.popitem(last=False)[1])
        return found


def _batch(columns: dict[str, Column]) -> TokenBatch:
    if RECORD in columns:
        records = columns[RECORD]
        return TokenBatch(records.values.astype("<u2"), records.offsets, is_text=True)
    inputs = columns[INPUTS]
    for name in ("labels", "position_ids"):
        if name in columns and not np.array_equal(columns[name].offsets, inputs.offsets):
            raise CorruptData(f"{name} and {INPUTS} differ in length within a row")
    labels, position_ids, sequence_lengths = (columns[name].values if name in columns else None for name in OPTIONAL)
    return TokenBatch(inputs.values, inputs.offsets, labels, position_ids, sequence_lengths)


def _joined(parts: Sequence[Column]) -> Column:
    values = np.concatenate([part.values for part in parts])
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Column(values, np.concatenate(([0], np.cumsum(lengths))))


def _bytes_of(columns: dict[str, Column]) -> int:
    return sum(column.size_bytes for column in columns.values())


def chosen_rows(source: ByteSource, split: str) -> list[str]:
    """Return the names of a folder's parquet or Arrow files of one split. Raises as `names_of_split`."""
    names = [file.name for file in source.files]
    has_parquet = any(name.endswith(PARQUET_SUFFIX) for name in names)
    suffixes = (
        (PARQUET_SUFFIX,) if has_parquet or not any(name.endswith(ROW_SUFFIXES) for name in names) else ROW_SUFFIXES
    )
    return names_of_split(names, suffixes, source.location, split)


def _row_file(file: SourceFile, opening: Opening, records: bool) -> RowFile:
    if file.name.endswith(PARQUET_SUFFIX) or not file.name.endswith(ROW_SUFFIXES):
        return _parquet_file(file, opening, records)
    with _buffered(opening(file)) as opened:
        schema, batches = batches_of(opened, file.size_bytes, file.place)
    columns = columns_of(schema, file.place, records=records)
    starts = np.concatenate(([0], np.cumsum([batch.rows for batch in batches], dtype=np.int64)))
    return RowFile(file.name, file.size_bytes, int(starts[-1]), file, columns, starts, schema, tuple(batches))


def _buffered(opened: Any) -> BinaryIO:
    return cast("BinaryIO", io.BufferedReader(opened, 16 * 1024))


def _parquet_file(file: SourceFile, opening: Opening, records: bool) -> RowFile:
    arrow = pyarrow()
    place = file.place
    try:
        with arrow.parquet.ParquetFile(opening(file)) as opened:
            metadata, schema = opened.metadata, opened.schema_arrow
            counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    except (arrow.ArrowException, ValueError, OSError) as error:
        raise as_ours(error, place, "is not a parquet file") from error
    columns = columns_of(schema, place, records=records)
    for group in range(metadata.num_row_groups):
        _check_row_group(metadata.row_group(group), group, place)
    starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    return RowFile(file.name, file.size_bytes, int(starts[-1]), file, columns, starts, metadata=metadata)


def _check_row_group(group: Any, number: int, place: str) -> None:
    """Raise `CorruptData` if a row group has an impossible number of rows or is too large.

    Run lengths and dictionaries make few bytes of many equal values, so its values are counted as well, as its footer
    has them.
    """
    if group.num_rows < 0:
        raise CorruptData(f"{place}: row group {number} has {group.num_rows} rows", path=place)
    columns = (group.column(column) for column in range(group.num_columns))
    decoded_bytes = sum(one.num_values * VALUE_BYTES.get(one.physical_type, PLACE_BYTES) for one in columns)
    size_bytes = max(group.total_byte_size, decoded_bytes)
    if size_bytes > row_columns.MAX_ROW_GROUP_BYTES:
        raise too_large(place, number, size_bytes)


def _decode(file: RowFile, group: int, opening: Opening) -> dict[str, Column]:
    arrow = pyarrow()
    place = file.source.place
    count = int(file.starts[group + 1] - file.starts[group])
    try:
        opened = opening(file.source)
        if file.batches is not None:
            with _buffered(opened) as readable:
                batch = read_batch(readable, file.batches[group], file.schema, group, place).select(list(file.columns))
                rows = range(0, max(batch.num_rows, 1), row_columns.DECODED_ROWS)
                parts = (batch.slice(row, row_columns.DECODED_ROWS) for row in rows)
                return decoded(parts, file.columns, count, group, place)
        with arrow.parquet.ParquetFile(opened, metadata=file.metadata, pre_buffer=True) as parquet:
            parts = parquet.iter_batches(row_columns.DECODED_ROWS, row_groups=[group], columns=list(file.columns))
            return decoded(parts, file.columns, count, group, place)
    except (arrow.ArrowException, ValueError, OSError) as error:
        raise as_ours(error, place, f"holds a row group {group} that cannot be decoded") from error
