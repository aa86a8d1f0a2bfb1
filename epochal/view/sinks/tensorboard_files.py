"""TensorBoard's event files, one for each lineage of the run, in a folder that has the run's name.

The values of a round are one record of a file: a length, its checksum, an event, its checksum (TensorFlow, "TFRecord
files"). So a round is in it whole or not at all; what a crash left of a record is cut off. The last event says how far
the file has got. Where the run went back, a new file begins with `SessionLog.START` at the first round that is another
one, from which TensorBoard drops the older points.
"""

import io
import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from epochal.runtime.files.durable_files import make_folder, replace_file
from epochal.state.errors import InvalidInput
from epochal.state.messages.history_rows import RoundFigures
from epochal.view.sinks.scalars import place_of, scalars_of
from epochal.view.sinks.sink import Mark, SinkFailed, SinkLock, SinkPlace, last_common, run_name

_NAME = re.compile(r"events\.out\.tfevents\.([0-9]{10})\.epochal-([0-9a-f]{1,64})")
"""TensorBoard reads files in the order of their names."""
_HEAD = struct.Struct("<QI")
_FOOT = struct.Struct("<I")
MAX_RECORD_BYTES = 1024 * 1024
_SUITE_VERSION = "brain.Event:2"


class TensorBoardSink:
    """A `FigureSink` in a folder of TensorBoard.

    Args:
        folder: TensorBoard's `--logdir`.
    """

    def __init__(self, folder: Path) -> None:
        self.name = f"tensorboard:{folder}"
        self._logs = folder
        self._folder = folder
        self._lock: SinkLock | None = None
        self._file: io.FileIO | None = None

    def open(self, run_id: str, lineage: str) -> SinkPlace | None:
        self._folder = self._logs / run_name(run_id)
        try:
            make_folder(self._folder)
            self._lock = SinkLock(self._folder / "events")
            files = self._files()
            if not files:
                self._begin(lineage, 0)
                return None
            self._file = files[-1].open("a+b", buffering=0)
            self._cut()
            held = self._marks()
        except OSError as error:
            self.close()
            raise InvalidInput(f"{self._folder} cannot be written: {error.strerror or error}") from error
        found = _NAME.fullmatch(files[-1].name)
        assert found is not None, "files were chosen by their names"
        return SinkPlace(held[-1].next, found[2]) if held else None

    def write(self, lineage: str, rows: Sequence[RoundFigures]) -> None:
        del lineage  # the file has its name
        self._append([_event(row) for row in rows])

    def go_back(self, lineage: str, marks: Sequence[Mark]) -> int | None:
        held = self._marks()
        common = last_common(held, marks)
        if self._file is not None:
            self._file.close()
        self._begin(lineage, common)
        return common or None

    def known(self, first: int) -> RoundFigures | None:
        del first  # points are means
        return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.release()
        self._file = self._lock = None

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))

    def _begin(self, lineage: str, begins_at: int) -> None:
        """Begin a new file; from a round on, its points replace those of the files before it.

        The first file begins a session, too: TensorBoard takes only a second beginning for a restart.
        """
        files = self._files()
        number = int(_NAME.fullmatch(files[-1].name)[1]) + 1 if files else 0  # type: ignore[index]
        path = self._folder / f"events.out.tfevents.{number:010}.epochal-{lineage}"
        replace_file(path, b"".join(map(_record, _opening(begins_at))))
        self._file = path.open("a+b", buffering=0)

    def _append(self, events: Sequence[bytes]) -> None:
        file = self._file
        assert file is not None, "the sink was opened"
        size = file.seek(0, os.SEEK_END)
        try:
            view = memoryview(b"".join(map(_record, events)))
            while view:
                view = view[file.write(view) or 0 :]
            os.fsync(file.fileno())
        except OSError as error:
            file.truncate(size)
            raise SinkFailed(f"{self._folder} cannot be written: {error.strerror or error}") from error

    def _cut(self) -> None:
        """Cut off what a crash left of a record."""
        assert self._file is not None, "the sink was opened"
        data = Path(self._file.name).read_bytes()
        whole = sum(_HEAD.size + len(event) + _FOOT.size for event in _events_in(data))
        if whole < len(data):
            self._file.truncate(whole)
            os.fsync(self._file.fileno())

    def _marks(self) -> list[Mark]:
        """Return the boundaries of the points that TensorBoard shows."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        found: list[Mark] = []
        for path in self._files():
            for data in _events_in(path.read_bytes()):
                event = Event.FromString(data)
                if event.HasField("session_log") and event.session_log.status == SessionLog.START:
                    found = [mark for mark in found if mark.next <= event.step]
                elif event.HasField("summary"):
                    found.append(Mark(event.step + 1, event.wall_time))
        return found


def _opening(begins_at: int) -> Iterator[bytes]:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    yield Event(file_version=_SUITE_VERSION).SerializeToString()
    yield Event(step=begins_at, session_log=SessionLog(status=SessionLog.START)).SerializeToString()


def _event(row: RoundFigures) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars_of(row).items()]
    event: Any = Event(wall_time=row.ended_s, step=place_of(row), summary=Summary(value=values))
    encoded: bytes = event.SerializeToString()
    return encoded


def _record(event: bytes) -> bytes:
    head = struct.pack("<Q", len(event))
    return head + _checksum(head) + event + _checksum(event)


def _events_in(data: bytes) -> Iterator[bytes]:
    """Yield the events of a file's whole records, up to the first incomplete one."""
    place = 0
    while place + _HEAD.size <= len(data):
        (length, _), start = _HEAD.unpack_from(data, place), place + _HEAD.size
        event, foot = data[start : start + length], data[start + length : start + length + _FOOT.size]
        is_head = data[place + 8 : start] == _checksum(data[place : place + 8])
        if not is_head or length > MAX_RECORD_BYTES or len(event) < length or foot != _checksum(event):
            return
        yield event
        place = start + length + _FOOT.size


def _checksum(data: bytes) -> bytes:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    return _FOOT.pack(masked_crc32c(data))
