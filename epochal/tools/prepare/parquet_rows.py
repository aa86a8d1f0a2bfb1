"""The texts of a parquet file's column, a few rows at a time."""

from collections.abc import Iterator
from typing import Any

from epochal.state.errors import ExtraMissing
from epochal.tools.prepare.portions import PORTION_BYTES
from epochal.tools.prepare.source_bytes import EXTRA, BadFile, RawFile

MAX_ROWS = 1024
"""Maximum number of rows that are decoded at a time."""
READ_BUFFER_BYTES = 1024**2
MAX_COLUMNS_SHOWN = 20


def row_batches(name: str, raw: RawFile, column: str, first_row: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the number of a row, from 0, and the texts of the rows from there on; the missing ones are empty.

    Args:
        name: the file's name, for messages.
        raw: the file.
        column: the name of the column of texts.
        first_row: number of rows to leave out at the beginning.

    Raises:
        BadFile: it is no parquet file, is damaged, or has no such column of texts.
        InvalidInput: pyarrow is not installed.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ExtraMissing(f"parquet files need the pyarrow package: {EXTRA}") from error
    try:
        file = parquet.ParquetFile(raw, buffer_size=READ_BUFFER_BYTES)
        _check_column(arrow, name, file.schema_arrow, column)
        at = 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            if at + group.num_rows <= first_row:
                at += group.num_rows
                continue
            rows = max(1, min(MAX_ROWS, PORTION_BYTES * group.num_rows // max(1, _column_bytes(group, column))))
            batches = file.iter_batches(rows, row_groups=[number], columns=[column], use_threads=False)
            for batch in batches:
                if at + batch.num_rows > first_row:
                    left_out = max(0, first_row - at)
                    values = batch.column(0).slice(left_out).cast(arrow.large_binary()).to_pylist()
                    yield at + left_out, [value or b"" for value in values]
                at += batch.num_rows
    except (arrow.ArrowException, OSError, ValueError, EOFError) as error:
        reason = str(error).partition("\n")[0]
        raise BadFile(f"{name} is truncated or no parquet file: {reason}", file=name) from error


def _check_column(arrow: Any, name: str, schema: Any, column: str) -> None:
    if column not in schema.names:
        shown = ", ".join(schema.names[:MAX_COLUMNS_SHOWN])
        raise BadFile(f"{name} has no column {column!r}; allowed for --text-column: {shown}", file=name)
    kind = schema.field(column).type
    types = arrow.types
    if not (types.is_string(kind) or types.is_large_string(kind)):
        raise BadFile(f"{name}: the column {column!r} holds {kind}; allowed: text", file=name)


def _column_bytes(group: Any, column: str) -> int:
    sizes = (group.column(number) for number in range(group.num_columns))
    return sum(size.total_uncompressed_size for size in sizes if size.path_in_schema == column)
