"""Rows of parquet and Arrow files as samples: lists of integers, or whole rows as JSON records. pyarrow reads them.

Columns of token samples, each a list of integers per row: `inputs`, and optionally `labels` and `position_ids` (as long
as the inputs) and `sequence_lengths`. In a file without `inputs` a row is a record of all columns but those that hold
bytes (images, sound), which have no form in JSON.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.protocol import CorruptData
from epochal.state.errors import ExtraMissing
from epochal.state.reader_limits import MAX_RECORDS_BYTES
from epochal.state.reader_limits import MAX_ROW_GROUP_BYTES as MAX_ROW_GROUP_BYTES

EXTRA = "pip install 'epochal[parquet]'"
INPUTS = "inputs"
OPTIONAL = ("labels", "position_ids", "sequence_lengths")
RECORD = "record"
"""The column of rows that are records: their text."""
DECODED_ROWS = 1024
"""Number of rows that are decoded before their size is checked: a few bytes may encode many equal values."""
MAX_TOKEN = 2**32 - 1
_SHOWN_CHARACTERS = 60
_PLACE_BYTES = 8


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
    """Import and return pyarrow. Raise `InvalidInput`, which names the extra to install, if it is missing."""
    try:
        import pyarrow
        import pyarrow.compute
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
    for field in schema:
        _check_kind(field.type, field.name, place)
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


def _check_kind(kind: Any, name: str, place: str) -> None:
    """Raise `CorruptData` for types whose values are views of each other: few bytes may expand to any number."""
    types = pyarrow().types
    views = (types.is_run_end_encoded, types.is_list_view, types.is_large_list_view, types.is_union)
    if any(is_view(kind) for is_view in (*views, types.is_string_view, types.is_binary_view)):
        raise CorruptData(f"{place}: column {name!a} holds {str(kind)[:_SHOWN_CHARACTERS]}; not supported", path=place)
    for number in range(kind.num_fields if types.is_nested(kind) else 0):
        _check_kind(kind.field(number).type, name, place)


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
            taken_bytes -= batch.nbytes
            for part in _small_parts(batch, place):
                rows = [json.dumps(row, ensure_ascii=False, default=str).encode() for row in part.to_pylist()]
                lines += rows
                taken_bytes += sum(map(len, rows))
                if taken_bytes > MAX_ROW_GROUP_BYTES:
                    break
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


def _small_parts(batch: Any, place: str) -> Iterator[Any]:
    """Yield a batch's rows in parts of at most `MAX_RECORDS_BYTES`. Raise `CorruptData` for a row that is larger."""
    size_bytes = sum(_expanded_bytes(column) for column in batch.columns)
    if size_bytes <= MAX_RECORDS_BYTES:
        yield batch
    elif batch.num_rows == 1:
        raise CorruptData(f"{place} holds a row of {size_bytes} bytes; at most {MAX_RECORDS_BYTES}", path=place)
    else:
        half = batch.num_rows // 2
        yield from _small_parts(batch.slice(0, half), place)
        yield from _small_parts(batch.slice(half), place)


def _expanded_bytes(array: Any) -> int:
    """Return the size of an array's values and of their offsets, each counted wherever it occurs."""
    arrow = pyarrow()
    kind, places_bytes = array.type, _PLACE_BYTES * len(array)
    if arrow.types.is_dictionary(kind):
        lengths = arrow.compute.binary_length(array.dictionary).take(array.indices)
        return places_bytes + (arrow.compute.sum(lengths).as_py() or 0)
    if arrow.types.is_struct(kind):
        return places_bytes + sum(_expanded_bytes(field) for field in array.flatten())
    if arrow.types.is_map(kind):
        array = array.cast(arrow.list_(arrow.struct([kind.key_field, kind.item_field])))
    if arrow.types.is_nested(kind):
        return places_bytes + _expanded_bytes(array.flatten())
    return max(places_bytes, int(array.nbytes))


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


def as_ours(error: Exception, place: str, trouble: str) -> CorruptData:
    """Return the error for what pyarrow raised while it read a file."""
    return CorruptData(f"{place} {trouble}: {str(error).partition(chr(10))[0]}", path=place)
