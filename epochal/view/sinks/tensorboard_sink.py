"""TensorBoard's event files, in a folder for each lineage of a run, with a note of the round that comes next."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epochal.runtime.files.durable_files import make_folder, replace_file
from epochal.state.errors import InvalidInput
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import RoundFigures
from epochal.view.sinks.sink import SinkFailed, place_of, plain_name, scalars_of

NOTE_NAME = "next-round"


class TensorBoardSink:
    """A `FigureSink` in a folder of TensorBoard.

    Args:
        folder: TensorBoard's `--logdir`.
    """

    def __init__(self, folder: Path) -> None:
        self.name = f"tensorboard:{folder}"
        self._logs = folder
        self._folder = folder
        self._writer: Any = None

    def open(self, run_id: str, lineage: str) -> int:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._folder = self._logs / plain_name(run_id, lineage)
        note = self._folder / NOTE_NAME
        try:
            make_folder(self._folder)
            self._writer = EventFileWriter(str(self._folder))
            return int(note.read_text(encoding="utf-8")) if note.exists() else 0
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{self._folder} cannot be written: {error}") from error

    def write(self, rows: Sequence[RoundFigures], evaluations: Sequence[Evaluation] = ()) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        try:
            for row in rows:
                scalars = scalars_of(row, evaluations if row is rows[-1] else ())
                values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
                event = Event(wall_time=row.ended_s, step=place_of(row), summary=Summary(value=values))
                self._writer.add_event(event)
            self._writer.flush()
            replace_file(self._folder / NOTE_NAME, str(rows[-1].next_number).encode())
        except OSError as error:
            raise SinkFailed(f"{self._folder} cannot be written: {error.strerror or error}") from error

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
