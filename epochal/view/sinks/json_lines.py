"""A file of JSON lines: an object for each round, which pandas and others read (`docs/figures.md`).

How far it has got, its last whole line says; what a crash left of a line is cut off.
"""

import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from epochal.state.errors import InvalidInput
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import RoundFigures
from epochal.view.sinks.sink import SinkFailed

TAIL_BYTES = 64 * 1024
"""Size of the end of a file in which its last line is searched; a line has about 700 bytes."""


class JsonLinesSink:
    """A `FigureSink` in a file.

    Args:
        path: of the file; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.name = f"jsonl:{path}"
        self._path = path
        self._file: io.FileIO | None = None
        self._begins: dict[str, str] = {}

    def open(self, run_id: str, lineage: str) -> int:
        self._begins = {"run_id": run_id, "lineage": lineage}
        try:
            self._file = self._path.open("a+b", buffering=0)
            size = self._file.seek(0, os.SEEK_END)
            self._file.seek(max(0, size - TAIL_BYTES))
            tail = self._file.read(TAIL_BYTES)
            whole, _, part = tail.rpartition(b"\n")
            next_number = self._next_after(whole.rpartition(b"\n")[2], part, run_id, lineage)
            if part:
                self._file.truncate(size - len(part))
        except OSError as error:
            self.close()
            raise InvalidInput(f"{self._path} cannot be written: {error.strerror or error}") from error
        except InvalidInput:
            self.close()
            raise
        return next_number

    def _next_after(self, last: bytes, part: bytes, run_id: str, lineage: str) -> int:
        """Return the number of the round after the one in the last whole line, which a part of another may follow."""
        begins = json.dumps({"run_id": run_id}).removesuffix("}").encode()
        if not last and (begins.startswith(part) or part.startswith(begins)):
            return 0
        try:
            found = json.loads(last)
            known, next_number = (found["run_id"], found["lineage"]), int(found["number"]) + int(found["rounds"])
        except (ValueError, KeyError, TypeError):
            raise InvalidInput(f"{self._path} ends with a line that is no round of a run; name another file") from None
        if known[0] != run_id:
            raise InvalidInput(f"{self._path} holds the figures of run {known[0]!r}, not of {run_id!r}; name another")
        return next_number if known[1] == lineage else 0

    def write(self, rows: Sequence[RoundFigures], evaluations: Sequence[Evaluation] = ()) -> None:
        assert self._file is not None, "the sink was opened"
        lines = [self._begins | asdict(row) for row in rows]
        if evaluations:
            lines[-1]["evaluations"] = [asdict(one) for one in evaluations]
        view = memoryview("".join(f"{json.dumps(line)}\n" for line in lines).encode())
        try:
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise SinkFailed(f"{self._path} cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
