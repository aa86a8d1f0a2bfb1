"""Rows of parquet and Arrow files as samples: lists of integers, or whole rows as JSON records. pyarrow reads them.

Columns of token samples, each a list of integers per row: `inputs`, and optionally `labels` and `position_ids` (as long
as the inputs) and `sequence_lengths`. In a file without `inputs` a row is a record of all columns but those that hold
bytes (images, sound), which have no form in JSON.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_providers.protocol import CorruptData, SourceUnavailable
from state.errors import ExtraMissing

EXTRA = "pip install 'epochal[parquet]'"
INPUTS = "inputs"
OPTIONAL = ("labels", "position_ids", "sequence_lengths")
RECORD = "record"
"""The column of rows that are records: their text."""
MAX_ROW_GROUP_BYTES = 256 * 1024**2
"""A row group, or a record batch, that is larger when decoded is refused: write smaller ones (a few thousand rows)."""
DECODED_ROWS = 1024
"""Number of rows that are decoded before their size is checked: a few bytes may encode many equal values."""
MAX_TOKEN = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Column:
    """One list column of some rows: its values one after the other, and each row's first one, `(rows + 1,)`."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def rows(self, first: int, stop: int) -> "Column":
        """Return rows `[first, stop)`."""
        begin, end = self.offsets[first], self.offsets[stop]
        return Column(self.values[begin:end], self.offsets[first : stop + 1] - begin)

    @property
    def size_bytes(self) -> int:
        return self.values.nbytes + self.offsets.nbytes


def pyarrow() -> Any:
    """Import and return pyarrow; `InvalidInput`, which says what to install, if that is not possible."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise ExtraMissing(f"parquet and Arrow files need pyarrow: {EXTRA}") from error
    return pyarrow


def columns_of(schema: Any, place: str, *, records: bool) -> tuple[str, ...]:
    """Return the columns to read of a file: those of token samples, or all that a record may have.

    Args:
        schema: of arrow.
        place: of the file, for messages.
        records: whether rows without tokens may be records.

    Raises:
        CorruptData: there are no tokens where there must be, or a column is not as it must be.
    """
    try:
        return _columns_of(schema, place, records)
    except UnicodeDecodeError as error:
        raise CorruptData(f"{place} has a column whose name is not UTF-8: {error.object[:50]!r}", path=place) from error


def _columns_of(schema: Any, place: str, records: bool) -> tuple[str, ...]:
    names: list[str] = schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    found = tuple(name for name in (INPUTS, *OPTIONAL) if name in names)
    if INPUTS not in names:
        texts = tuple(field.name for field in schema if not _holds_bytes(field.type))
        if not records or not texts:
            allowed = f"one must be {INPUTS!r}" + ("" if records else ", as the run does not pack")
            raise CorruptData(f"{place} has columns {names[:50]}; {allowed}", path=place, holds_records=bool(texts))
        if twice is not None:
            raise CorruptData(f"{place} has several columns {twice!r}", path=place)
        return texts
    types = pyarrow().types
    for column in found:
        if names.count(column) > 1:
            raise CorruptData(f"{place} has several columns {column!r}", path=place)
        kind = schema.field(column).type
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not is_list or not types.is_integer(kind.value_type):
            raise CorruptData(f"{place}: column {column!r} holds {kind}; allowed: lists of integers", path=place)
    return found


def _holds_bytes(kind: Any) -> bool:
    types = pyarrow().types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return True
    fields = [kind.field(number) for number in range(kind.num_fields)] if types.is_nested(kind) else []
    return any(_holds_bytes(field.type) for field in fields)


def decoded(batches: Iterable[Any], columns: Sequence[str], count: int, group: int, place: str) -> dict[str, Column]:
    """Return the columns of a row group, from its parts; of records the column `RECORD`.

    Raises:
        CorruptData: it is larger than `MAX_ROW_GROUP_BYTES`, or has nulls or another number of rows than `count`.
        ArrowException, ValueError, OSError: what pyarrow raises, for `as_ours`.
    """
    arrow = pyarrow()
    kept: list[Any] = []
    lines: list[bytes] = []
    taken_bytes = 0
    is_tokens = INPUTS in columns
    for batch in batches:
        taken_bytes += batch.nbytes
        if is_tokens:
            kept.append(batch)
        elif taken_bytes <= MAX_ROW_GROUP_BYTES:
            rows = [json.dumps(row, ensure_ascii=False, default=str).encode() for row in batch.to_pylist()]
            lines += rows
            taken_bytes += sum(map(len, rows)) - batch.nbytes
        if taken_bytes > MAX_ROW_GROUP_BYTES:
            raise too_large(place, group, taken_bytes)
    if not is_tokens:
        if len(lines) != count:
            raise CorruptData(f"{place}: row group {group} has another number of rows than its footer says", path=place)
        offsets = np.concatenate(([0], np.cumsum([len(line) for line in lines], dtype=np.int64)))
        return {RECORD: Column(np.frombuffer(b"".join(lines), np.uint8), offsets)}
    if not kept:
        return {name: Column(np.zeros(0, "<u4"), np.zeros(1, np.int64)) for name in columns} if not count else {}
    found = arrow.Table.from_batches(kept)
    return {name: _column(found.column(name).combine_chunks(), name, place, count) for name in columns}


def _column(array: Any, name: str, place: str, count: int) -> Column:
    arrow = pyarrow()
    if array.null_count or array.flatten().null_count or len(array) != count:
        raise CorruptData(f"{place}: column {name!r} has nulls, or another number of rows than its footer says")
    if arrow.types.is_fixed_size_list(array.type):
        array = array.cast(arrow.large_list(array.type.value_type))
    values = array.flatten().to_numpy(zero_copy_only=False)
    offsets = array.offsets.to_numpy().astype(np.int64)
    if name != INPUTS:
        return Column(values.astype(np.int64), offsets - offsets[0])
    if len(values) and (int(values.min()) < 0 or int(values.max()) > MAX_TOKEN):
        bad = int(values.min()) if int(values.min()) < 0 else int(values.max())
        raise CorruptData(f"{place}: token {bad} in {name!r}; allowed: 0 to {MAX_TOKEN}", path=place)
    return Column(values.astype("<u4"), offsets - offsets[0])


def too_large(place: str, group: int, size_bytes: int) -> CorruptData:
    """Return the error for a row group that is too large."""
    return CorruptData(
        f"{place}: row group {group} has {size_bytes} bytes or more; at most {MAX_ROW_GROUP_BYTES}: write smaller ones",
        path=place,
    )


def as_ours(error: Exception, place: str, trouble: str) -> CorruptData | SourceUnavailable:
    """Return the error for what pyarrow raised while it read a file."""
    # pyarrow raises `OSError` for damaged files too; only those of the operating system have an errno.
    if isinstance(error, OSError) and error.errno is not None:
        return SourceUnavailable(f"{place} cannot be read: {error.strerror}", path=place)
    return CorruptData(f"{place} {trouble}: {str(error).partition(chr(10))[0]}", path=place)
