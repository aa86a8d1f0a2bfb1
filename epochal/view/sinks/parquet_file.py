"""A parquet file of a run's rounds, a row each, which can be read at any time.

A parquet file cannot be appended to. So rows go first to a CSV file beside it, which is durable with each of them
(`csv_file.py`); now and then, and at the end, they are merged into a new file that replaces the old one. Rows that a
crash left in both are known by their numbers.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from epochal.runtime.files.durable_files import sync_folder
from epochal.runtime.visible_text import visible
from epochal.state.errors import InvalidInput
from epochal.state.messages.history_rows import FIGURES, FLOAT_FIGURES, MAX_INT64, RoundFigures, merged
from epochal.view.sinks.csv_file import CsvSink
from epochal.view.sinks.sink import Mark, SinkFailed, SinkPlace, check_run, last_common

MERGE_ROWS = 4096
"""Number of rows beside the file from which they are merged into it at once."""
MERGE_S = 30.0
"""Time after which waiting rows are merged into the file with the next one."""


class ParquetSink:
    """A `FigureSink` in a parquet file.

    Args:
        path: of the file; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.name = f"parquet:{path}"
        self._path = path
        self._fresh = path.with_name(f".{path.name}.new")
        self._waiting = CsvSink(path.with_name(f".{path.name}.new-rows.csv"))
        self._waiting_count = 0
        self._merged_s = time.monotonic()
        self._run_id = ""

    def open(self, run_id: str, lineage: str) -> SinkPlace | None:
        self._run_id = run_id
        self._table()  # what is no such file is refused before anything is written
        self._waiting.open(run_id, lineage)
        try:
            self._fresh.unlink(missing_ok=True)  # of a follower that was killed: nobody else writes it now
            self._merge()
            found = self._last()
        except BaseException:
            self._waiting.close()
            raise
        if found is None:
            return None
        return SinkPlace(found[1].next_number, found[0])

    def write(self, lineage: str, rows: Sequence[RoundFigures]) -> None:
        self._waiting.write(lineage, rows)
        self._waiting_count += len(rows)
        if self._waiting_count >= MERGE_ROWS or time.monotonic() > self._merged_s + MERGE_S:
            self._merge()

    def go_back(self, lineage: str, marks: Sequence[Mark]) -> int:
        del lineage  # the rows name theirs
        self._merge()
        held = self._rows()
        common = last_common([Mark(row.next_number, row.ended_s) for _, row in held], marks)
        kept = [(name, row) for name, row in held if row.next_number <= common]
        self._publish(self._table_of(kept))
        return common if kept or not held else held[0][1].number

    def known(self, first: int) -> RoundFigures | None:
        self._merge()
        rows = [row for _, row in self._rows() if row.number >= first]
        return reduce(merged, rows) if rows else None

    def close(self) -> None:
        try:
            if self._waiting_count:
                self._merge()
            self._waiting.remove_empty()
        finally:
            self._waiting.close()

    def _merge(self) -> None:
        """Take the waiting rows into the file, then forget them; those that it has already are not taken again."""
        waiting = list(self._waiting.rows())
        if waiting or not self._path.exists():
            import pyarrow as pa

            last, table = self._last(), self._table()
            first = 0 if last is None else last[1].next_number
            new = self._table_of([(name, row) for name, row in waiting if row.number >= first])
            self._publish(new if table is None else pa.concat_tables([table, new]))
            self._waiting.clear()
        self._waiting_count, self._merged_s = 0, time.monotonic()

    def _publish(self, table: Any) -> None:
        """Replace the file by one with these rows, so that a reader finds the one or the other."""
        import pyarrow.parquet as pq

        fresh = self._fresh
        try:
            pq.write_table(table, fresh)
            with fresh.open("rb+") as file:
                os.fsync(file.fileno())
            fresh.replace(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise SinkFailed(f"{self._path} cannot be written: {error.strerror or error}") from error

    def _table(self) -> Any:
        """Return the file's rows, or None if there is no file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._path.exists():
            return None
        try:
            table = pq.read_table(self._path)
        except (pa.ArrowException, OSError) as error:
            raise InvalidInput(f"{self._path} is no parquet file ({error}); name another") from error
        if table.schema.names != _schema().names:
            raise InvalidInput(f"{self._path} has other columns than this version writes; name another file")
        if table.num_rows:
            check_run(str(self._path), table["run_id"][-1].as_py(), self._run_id)
        return table

    def _rows(self) -> list[tuple[str, RoundFigures]]:
        table = self._table()
        return [] if table is None else _rows_of(table)

    def _last(self) -> tuple[str, RoundFigures] | None:
        table = self._table()
        return _rows_of(table.slice(table.num_rows - 1))[0] if table is not None and table.num_rows else None

    def _table_of(self, rows: Sequence[tuple[str, RoundFigures]]) -> Any:
        import pyarrow as pa

        columns: dict[str, list[Any]] = {
            name: [
                getattr(row, name) if name in FLOAT_FIGURES else min(getattr(row, name), MAX_INT64) for _, row in rows
            ]
            for name in FIGURES
        }
        names = {"run_id": [visible(self._run_id)] * len(rows), "lineage": [lineage for lineage, _ in rows]}
        return pa.table(names | columns, schema=_schema())


def _rows_of(table: Any) -> list[tuple[str, RoundFigures]]:
    columns = table.to_pydict()
    numbers = zip(*(columns[name] for name in FIGURES), strict=True)
    return [(lineage, RoundFigures(*row)) for lineage, row in zip(columns["lineage"], numbers, strict=True)]


def _schema() -> Any:
    import pyarrow as pa

    figures = [(name, pa.float64() if name in FLOAT_FIGURES else pa.int64()) for name in FIGURES]
    return pa.schema([("run_id", pa.string()), ("lineage", pa.string()), *figures])
