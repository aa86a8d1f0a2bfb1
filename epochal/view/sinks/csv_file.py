"""A CSV file (RFC 4180) of a run's rounds, a row each, to which rows are appended.

How far it has got, its last whole row says. A row is written in one piece and made durable before the next ones are
asked for; what a crash left of a row is cut off.
"""

import csv
import io
import os
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from epochal.runtime.files.durable_files import sync_folder
from epochal.runtime.visible_text import visible
from epochal.state.errors import InvalidInput
from epochal.state.messages.history_rows import FIGURES, FLOAT_FIGURES, RoundFigures, merged
from epochal.view.sinks.sink import Mark, SinkFailed, SinkLock, SinkPlace, check_run, last_common

COLUMNS = ("run_id", "lineage", *FIGURES)
TAIL_BYTES = 64 * 1024
"""Size of the end of a file in which its last row is searched; a row has about 300 bytes."""
_END = b"\r\n"


class CsvSink:
    """A `FigureSink` in a CSV file.

    Args:
        path: of the file; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.name = f"csv:{path}"
        self._path = path
        self._lock: SinkLock | None = None
        self._file: io.FileIO | None = None
        self._run_id = ""

    def open(self, run_id: str, lineage: str) -> SinkPlace | None:
        del lineage  # the rows name theirs
        self._run_id = run_id
        self._lock = SinkLock(self._path)
        try:
            self._file = self._path.open("a+b", buffering=0)
            return self._held(self._file)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise InvalidInput(f"{self._path} cannot be written: {error.strerror or error}") from error
            raise

    def _held(self, file: io.FileIO) -> SinkPlace | None:
        header = _encoded(COLUMNS)
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        beginning = file.read(len(header))
        if header.startswith(beginning) and len(beginning) < len(header):
            _cut(file, 0)  # a crash left a part of it, or nothing
            self._append(header)
            sync_folder(self._path.parent)
            return None
        if beginning != header:
            raise InvalidInput(
                f"{self._path} is no file that this version wrote: its first line is not {','.join(COLUMNS)}; name "
                "another file"
            )
        first = max(len(header), size - TAIL_BYTES)
        file.seek(first - len(_END))
        tail = file.read(size - first + len(_END))
        whole = tail.rfind(_END) + len(_END)
        if whole < len(tail):
            _cut(file, size - len(tail) + whole)
        last = tail[:whole].removesuffix(_END).rpartition(_END)[2]
        if not last:
            return None
        found = self._parsed(last)
        check_run(str(self._path), found[0], self._run_id)
        return SinkPlace(found[2].next_number, found[1])

    def write(self, lineage: str, rows: Sequence[RoundFigures]) -> None:
        name = visible(self._run_id)
        lines = [_encoded((name, lineage, *(_text(getattr(row, figure)) for figure in FIGURES))) for row in rows]
        self._append(b"".join(lines))

    def go_back(self, lineage: str, marks: Sequence[Mark]) -> int:
        del lineage
        held = [Mark(row.next_number, row.ended_s) for _, _, row in self._rows()]
        common = last_common(held, marks)
        for place, (offset, _, row) in enumerate(self._rows()):
            if row.next_number > common:
                _cut(self._opened, offset)
                return row.number if not place else common
        return common

    def known(self, first: int) -> RoundFigures | None:
        rows = [row for _, _, row in self._rows() if row.number >= first]
        return reduce(merged, rows) if rows else None

    def rows(self) -> Iterator[tuple[str, RoundFigures]]:
        """Yield each row with its lineage."""
        return ((lineage, row) for _, lineage, row in self._rows())

    def clear(self) -> None:
        """Forget every row."""
        _cut(self._opened, len(_encoded(COLUMNS)))

    def remove_empty(self) -> None:
        """Remove the file if it holds no row; only before it is closed, while no other follower writes to it."""
        if self._file is not None and self._file.seek(0, os.SEEK_END) <= len(_encoded(COLUMNS)):
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.release()
        self._file = self._lock = None

    @property
    def _opened(self) -> io.FileIO:
        assert self._file is not None, "the sink was opened"
        return self._file

    def _rows(self) -> Iterator[tuple[int, str, RoundFigures]]:
        """Yield offset in the file, lineage and figures of each row."""
        with self._path.open("rb") as file:
            offset = len(file.readline())
            for line in file:
                _, lineage, row = self._parsed(line.removesuffix(_END))
                yield offset, lineage, row
                offset += len(line)

    def _append(self, data: bytes) -> None:
        size = self._opened.seek(0, os.SEEK_END)
        try:
            view = memoryview(data)
            while view:
                view = view[self._opened.write(view) :]
            os.fsync(self._opened.fileno())
        except OSError as error:
            _cut(self._opened, size)
            raise SinkFailed(f"{self._path} cannot be written: {error.strerror or error}") from error

    def _parsed(self, line: bytes) -> tuple[str, str, RoundFigures]:
        try:
            fields = next(csv.reader([line.decode()]))
            run_id, lineage, *figures = fields
            numbers: list[Any] = [_number(name, text) for name, text in zip(FIGURES, figures, strict=True)]
            return run_id, lineage, RoundFigures(*numbers)
        except (ValueError, TypeError, StopIteration, csv.Error) as error:
            raise InvalidInput(
                f"{self._path}: {line[:80]!r} is no row as this version writes it ({error}); name another file"
            ) from error


def _number(name: str, text: str) -> float | int | None:
    if name in FLOAT_FIGURES:
        return float(text) if text else None
    return int(text)


def _text(value: float | int | None) -> str:
    return "" if value is None else repr(value)


def _encoded(fields: Sequence[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(fields)
    return line.getvalue().encode()


def _cut(file: io.FileIO, size_bytes: int) -> None:
    os.ftruncate(file.fileno(), size_bytes)
    os.fsync(file.fileno())
