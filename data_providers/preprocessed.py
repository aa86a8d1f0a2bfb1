"""Samples that are already cut, labelled and maybe packed: parquet files with one row per sample.

Columns, each a list of integers per row: `inputs`, and optionally `labels` and `position_ids` (as long as the inputs)
and `sequence_lengths` (of the documents packed into the row; they add up to its length). pyarrow reads them, an extra
(`pip install 'epochal[parquet]'`). The order is the files' own, by name, pass after pass: such samples are shuffled
when they are written. Row groups are decoded when they are needed, and a limited number is kept.

`data_providers/splits.py` chooses a folder's files.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from data_providers.description import describe_files
from data_providers.file_names import PARQUET_SUFFIX
from data_providers.local_places import cannot_open
from data_providers.order import DataFile, DataOrder, Extent
from data_providers.protocol import (
    MAX_REQUEST_BYTES,
    MAX_REQUEST_SAMPLES,
    CorruptData,
    DatasetSpec,
    Rejected,
    SourceUnavailable,
    TokenBatch,
    dataset_fingerprint,
)
from data_providers.splits import DEFAULT_SPLIT, files_of_split
from state.errors import InternalError, InvalidInput
from state.intervals import DataIds

EXTRA = "pip install 'epochal[parquet]'"
INPUTS = "inputs"
OPTIONAL = ("labels", "position_ids", "sequence_lengths")
MAX_DECODED_BYTES = 512 * 1024**2
"""Maximum size of the decoded row groups that are kept; the least recently used is dropped first."""
MAX_ROW_GROUP_BYTES = 256 * 1024**2
"""A row group that is larger when decoded is refused: write smaller ones (a few thousand samples)."""
DECODED_ROWS = 1024
"""Number of rows that are decoded before their size is checked: a few bytes may encode many equal values."""
MAX_TOKEN = 2**32 - 1
_ROWS = DatasetSpec(token_size_bytes=4, sequence_length=1)
"""For the order a row is a sample of one token."""


@dataclass(frozen=True, slots=True, eq=False)
class RowFile(DataFile):
    """A file as its footer describes it; row group *g* has rows `[starts[g], starts[g + 1])`."""

    path: Path
    columns: tuple[str, ...]
    starts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Column:
    """One list column of some rows: its values one after the other, and each row's first one, `(rows + 1,)`."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def rows(self, first: int, stop: int) -> "_Column":
        begin, end = self.offsets[first], self.offsets[stop]
        return _Column(self.values[begin:end], self.offsets[first : stop + 1] - begin)


class PreprocessedDataProvider:
    """A `DataProvider` over parquet files. Make one with `open`."""

    def __init__(self, files: Sequence[RowFile], max_tokens: int | None) -> None:
        columns = files[0].columns
        self._order = DataOrder(
            files,
            _ROWS,
            lambda ordered: dataset_fingerprint(
                "preprocessed",
                files=[[file.name, file.size_bytes, file.token_count] for file in ordered],
                columns=list(columns),
            ),
        )
        self.files: tuple[RowFile, ...] = self._order.files
        """The files in their order; a token of theirs is a row."""
        self.columns = columns
        self._max_tokens = max_tokens
        self._decoded: OrderedDict[tuple[int, int], dict[str, _Column]] = OrderedDict()
        self._decoded_bytes = 0
        self._reading = asyncio.Lock()
        self._closed = False
        self.sequence_count = self._order.sequence_count
        self.fingerprint = self._order.fingerprint
        self.description = describe_files("parquet files", self.files, self.sequence_count)

    @classmethod
    def open(cls, path: Path, max_tokens: int | None = None, split: str = DEFAULT_SPLIT) -> Self:
        """Open a parquet file, or a folder's of one split, with samples of at most `max_tokens`. Blocks.

        Raises:
            SourceUnavailable: the files cannot be read now; retry.
            Rejected: there is no such path, or this user may not read it.
            CorruptData: no parquet files, or one that does not hold samples; the fault of the data's owner.
            InvalidInput: pyarrow is not installed, or the folder has several splits and not the one asked for.
        """
        _pyarrow()
        try:
            if not path.is_dir():
                return cls([_row_file(path, path.name)], max_tokens)
            names = files_of_split(path, PARQUET_SUFFIX, split)
            tables = [_row_file(path / name, name) for name in sorted(names)]
        except OSError as error:
            raise cannot_open(path, error) from error
        first = tables[0]
        for table in tables:
            if table.columns != first.columns:
                raise CorruptData(f"{table.path} has columns {table.columns}, {first.name} has {first.columns}")
        return cls(tables, max_tokens)

    async def get_samples(self, data_ids: DataIds) -> TokenBatch:
        """Return the samples of these data indices, as `DataProvider.get_samples`; they may differ in length.

        `input_ids` are uint32, all other arrays int64.
        """
        if self._closed:
            raise InternalError("get_samples after aclose")
        if data_ids.count > MAX_REQUEST_SAMPLES:
            raise Rejected(f"data indices {data_ids}: at most {MAX_REQUEST_SAMPLES} at a time")
        async with self._reading:  # so that a row group is decoded once, however many calls need it
            return await asyncio.to_thread(self._read, self._order.locate(data_ids))

    async def aclose(self) -> None:
        self._closed = True
        self._decoded.clear()

    def _read(self, extents: Sequence[Extent]) -> TokenBatch:
        parts: dict[str, list[_Column]] = {name: [] for name in self.columns}
        taken_bytes = 0
        for extent in extents:
            row, stop = extent.sequence, extent.sequence + extent.length
            starts = self.files[extent.file].starts
            while row < stop:
                group = int(np.searchsorted(starts, row, side="right")) - 1
                begin, end = int(starts[group]), min(stop, int(starts[group + 1]))
                for name, column in self._row_group(extent.file, group).items():
                    part = column.rows(row - begin, end - begin)
                    taken_bytes += part.values.nbytes
                    if taken_bytes > MAX_REQUEST_BYTES:
                        raise Rejected(f"the samples asked for take more than {MAX_REQUEST_BYTES} bytes; ask for fewer")
                    parts[name].append(part)
                row = end
        batch = _batch({name: _joined(columns) for name, columns in parts.items()})
        longest = int(np.diff(batch.offsets).max(initial=0))
        if self._max_tokens is not None and longest > self._max_tokens:
            raise CorruptData(f"a sample has {longest} tokens; the run's max_seq_len is {self._max_tokens}")
        return batch

    def _row_group(self, file: int, group: int) -> dict[str, _Column]:
        key = (file, group)
        if key in self._decoded:
            self._decoded.move_to_end(key)
            return self._decoded[key]
        found = _decode(self.files[file], group)
        self._decoded[key] = found
        self._decoded_bytes += _bytes_of(found)
        while self._decoded_bytes > MAX_DECODED_BYTES and len(self._decoded) > 1:
            self._decoded_bytes -= _bytes_of(self._decoded.popitem(last=False)[1])
        return found


def _batch(columns: dict[str, _Column]) -> TokenBatch:
    inputs = columns[INPUTS]
    for name in ("labels", "position_ids"):
        if name in columns and not np.array_equal(columns[name].offsets, inputs.offsets):
            raise CorruptData(f"{name} and {INPUTS} differ in length within a row")
    labels, position_ids, sequence_lengths = (columns[name].values if name in columns else None for name in OPTIONAL)
    return TokenBatch(inputs.values, inputs.offsets, labels, position_ids, sequence_lengths)


def _joined(parts: Sequence[_Column]) -> _Column:
    values = np.concatenate([part.values for part in parts])
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return _Column(values, np.concatenate(([0], np.cumsum(lengths))))


def _bytes_of(columns: dict[str, _Column]) -> int:
    return sum(column.values.nbytes + column.offsets.nbytes for column in columns.values())


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InvalidInput(f"preprocessed samples need pyarrow: {EXTRA}") from error
    return pyarrow


def _row_file(path: Path, name: str) -> RowFile:
    arrow = _pyarrow()
    try:
        with arrow.parquet.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
            counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    except (arrow.ArrowException, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise cannot_open(path, error) from error
        raise _as_ours(error, path, "is not a parquet file") from error
    columns = tuple(column for column in (INPUTS, *OPTIONAL) if column in schema.names)
    if INPUTS not in columns:
        raise CorruptData(f"{path} has columns {schema.names}; one must be {INPUTS!r}", path=str(path))
    for column in columns:
        if schema.names.count(column) > 1:
            raise CorruptData(f"{path} has several columns {column!r}", path=str(path))
        kind = schema.field(column).type
        if not _is_list(arrow, kind) or not arrow.types.is_integer(kind.value_type):
            raise CorruptData(f"{path}: column {column!r} holds {kind}; allowed: lists of integers", path=str(path))
    for group in range(metadata.num_row_groups):
        _check_row_group(metadata.row_group(group), group, path)
    starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    return RowFile(name, path.stat().st_size, int(starts[-1]), path, columns, starts)


def _check_row_group(group: Any, number: int, path: Path) -> None:
    """Raise `CorruptData` if a row group has an impossible number of rows or is too large.

    Its columns' metadata are not read: pyarrow checks them when it decodes, but reading damaged ones alone ends the
    process (github.com/apache/arrow/issues/45283).
    """
    if group.num_rows < 0:
        raise CorruptData(f"{path}: row group {number} has {group.num_rows} rows", path=str(path))
    if group.total_byte_size > MAX_ROW_GROUP_BYTES:
        raise _too_large(path, number, group.total_byte_size)


def _too_large(path: Path, group: int, size_bytes: int) -> CorruptData:
    return CorruptData(
        f"{path}: row group {group} has {size_bytes} bytes or more; at most {MAX_ROW_GROUP_BYTES}: write smaller ones",
        path=str(path),
    )


def _is_list(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _decode(table: RowFile, group: int) -> dict[str, _Column]:
    arrow = _pyarrow()
    try:
        if table.path.stat().st_size != table.size_bytes:
            raise CorruptData(f"{table.path} changed: it had {table.size_bytes} bytes", path=str(table.path))
        with arrow.parquet.ParquetFile(table.path) as file:
            found = _rows_of(file, table, group)
    except (arrow.ArrowException, ValueError, OSError) as error:
        raise _as_ours(error, table.path, f"holds a row group {group} that cannot be decoded") from error
    count = int(table.starts[group + 1] - table.starts[group])
    return {name: _column(found.column(name).combine_chunks(), name, table, count) for name in table.columns}


def _rows_of(file: Any, table: RowFile, group: int) -> Any:
    """Return a row group as an arrow table, decoded in parts so that one that is too large is noticed in time."""
    columns = list(table.columns)
    batches, taken_bytes = [], 0
    for batch in file.iter_batches(DECODED_ROWS, row_groups=[group], columns=columns):
        batches.append(batch)
        taken_bytes += batch.nbytes
        if taken_bytes > MAX_ROW_GROUP_BYTES:
            raise _too_large(table.path, group, taken_bytes)
    return _pyarrow().Table.from_batches(batches, file.schema_arrow if not batches else None)


def _as_ours(error: Exception, path: Path, trouble: str) -> CorruptData | SourceUnavailable:
    # pyarrow raises `OSError` for damaged files too; only those of the operating system have an errno.
    if isinstance(error, OSError) and error.errno is not None:
        return SourceUnavailable(f"{path} cannot be read: {error.strerror}", path=str(path))
    return CorruptData(f"{path} {trouble}: {str(error).partition(chr(10))[0]}", path=str(path))


def _column(array: Any, name: str, table: RowFile, count: int) -> _Column:
    arrow = _pyarrow()
    if array.null_count or array.flatten().null_count or len(array) != count:
        raise CorruptData(f"{table.path}: column {name!r} has nulls, or another number of rows than its footer says")
    if arrow.types.is_fixed_size_list(array.type):
        array = array.cast(arrow.large_list(array.type.value_type))
    values = array.flatten().to_numpy(zero_copy_only=False)
    offsets = array.offsets.to_numpy().astype(np.int64)
    if name != INPUTS:
        return _Column(values.astype(np.int64), offsets - offsets[0])
    if len(values) and (int(values.min()) < 0 or int(values.max()) > MAX_TOKEN):
        bad = int(values.min()) if int(values.min()) < 0 else int(values.max())
        raise CorruptData(f"{table.path}: token {bad} in {name!r}; allowed: 0 to {MAX_TOKEN}", path=str(table.path))
    return _Column(values.astype("<u4"), offsets - offsets[0])
