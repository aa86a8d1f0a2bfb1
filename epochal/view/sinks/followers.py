"""Writes a run's rounds to sinks as they end, each sink from where it had got to.

Theory of operation. Every sink has a feed of its own, so a slow one holds nobody up, and one that is behind catches up
alone. A row is written, kept, and only then is the next one asked for. An evaluation is kept with the first round that
ends after it was recorded. For those that come after the last round its row is written again: a follower reads the row
before the one that it lacks, whose end says which evaluations a sink has. A run that went back to a backup has another
lineage, which a sink takes as a history of its own.
"""

import asyncio
import importlib.util
import io
import json
import os
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from epochal.coordinator_client.round_feed import OtherLineage, RoundFeed
from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.files.durable_files import make_folder, replace_file
from epochal.runtime.retry import RetryPolicy
from epochal.state.errors import ExtraMissing, InvalidInput
from epochal.state.messages.evaluation_reports import Evaluation
from epochal.state.messages.history_rows import RoundFigures
from epochal.state.text.visible import visible
from epochal.view.sinks.sink import FigureSink, SinkFailed, place_of, plain_name, scalars_of, with_evaluations

TAIL_BYTES = 64 * 1024
"""Size of the end of a file in which its last line is searched; a line has about 700 bytes."""
NOTE_NAME = "next-round"
ALLOWED = "jsonl:FILE, tensorboard:DIR or wandb:PROJECT"


class JsonLinesSink:
    """A `FigureSink` in a file of JSON lines: an object for each round, which pandas and others read.

    How far it has got, its last whole line says; what a crash left of a line is cut off.

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


class WandbSink:
    """A `FigureSink` in a project of W&B. `WANDB_MODE`, `WANDB_DIR` and its other variables hold.

    A lineage of the run is one run of W&B, under an id that follows from both. How far it has got, W&B says by the last
    step of the run that is resumed. Offline it does not know, so the rounds are written again from the first on; W&B's
    server takes each step once.

    Args:
        project: its name.
    """

    def __init__(self, project: str) -> None:
        self.name = f"wandb:{project}"
        self._project = project
        self._run: Any = None

    def open(self, run_id: str, lineage: str) -> int:
        import wandb

        name = plain_name(run_id, lineage)
        settings = wandb.Settings(
            console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True
        )
        try:
            self._run = wandb.init(
                project=self._project,
                id=name,
                name=name,
                group=visible(run_id),
                resume="allow",
                config={"run_id": visible(run_id), "lineage": lineage},
                settings=settings,
            )
        except (wandb.Error, OSError, ValueError) as error:
            raise SinkFailed(
                f"{self.name} cannot be opened: {error}; WANDB_API_KEY says who you are, and WANDB_MODE=offline writes "
                "to this machine alone"
            ) from error
        return 0 if self._run.offline else int(self._run.step)

    def write(self, rows: Sequence[RoundFigures], evaluations: Sequence[Evaluation] = ()) -> None:
        import wandb

        try:
            for row in rows:
                place = max(place_of(row), int(self._run.step))  # a row that is repeated has a later step
                self._run.log(scalars_of(row, evaluations if row is rows[-1] else ()), step=place)
        except (wandb.Error, OSError) as error:
            raise SinkFailed(f"{self.name} takes no figures: {error}") from error

    def close(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()


class TensorBoardSink:
    """A `FigureSink` in TensorBoard's event files: a folder for each lineage, with a note of the round that comes next.

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


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """Options for following a run.

    Attributes:
        is_once: whether to end with the rounds that have ended, instead of with the run.
        policy: how long to retry when the coordinator does not answer.
        say: called with a line for each event.
    """

    is_once: bool
    policy: RetryPolicy
    say: Callable[[str], None]


def named_sink(text: str) -> FigureSink:
    """Return the sink that a `--to` names, not open.

    Raises:
        InvalidInput: there is no such sink, or its place cannot be used.
        ExtraMissing: a package is missing.
    """
    kind, _, place = text.partition(":")
    path = Path(place)
    if kind not in ("jsonl", "tensorboard", "wandb") or not place.strip():
        raise InvalidInput(f"--to {text}: allowed: {ALLOWED}")
    if kind == "jsonl":
        if path.is_dir() or not path.parent.is_dir():
            raise InvalidInput(f"--to {text}: allowed: a file in a folder that exists")
        return JsonLinesSink(path)
    if importlib.util.find_spec(kind) is None:
        raise ExtraMissing(f"--to {text} needs {kind}: pip install 'epochal[{kind}]'")
    if kind == "wandb":
        return WandbSink(place)
    if path.exists() and not path.is_dir():
        raise InvalidInput(f"--to {text}: allowed: a folder, which is made if it does not exist")
    return TensorBoardSink(path)


async def follow_into(client: ViewerClient, sinks: Sequence[FigureSink], options: FollowOptions) -> None:
    """Write the run's rounds to each of the sinks until it has finished.

    Raises:
        InvalidInput: a sink belongs to another run.
        SinkFailed: one cannot keep a row.
        CoordinatorUnreachable, Refused, InvalidDocument: as `RoundFeed.all`.
    """
    async with asyncio.TaskGroup() as tasks:
        for sink in sinks:
            tasks.create_task(_follow(client, sink, options))


async def _follow(client: ViewerClient, sink: FigureSink, options: FollowOptions) -> None:
    def say(text: str) -> None:
        options.say(f"{sink.name}: {text}")

    feed = RoundFeed(client, options.policy, options.say)
    last: RoundFigures | None = None
    try:
        first = await _opened(sink, feed, client.run_id, await feed.run_lineage())
        say(f"begins with round {first}")
        async with aclosing(feed.present() if options.is_once else feed.all()) as news:
            async for one in news:
                if isinstance(one, OtherLineage):
                    await asyncio.to_thread(sink.close)
                    first, last = await _opened(sink, feed, client.run_id, one.lineage), None
                    say(f"the run went back and has another lineage; begins with round {first}")
                    continue
                rows = one.page.rounds.rows()
                known = [row for row in rows if row.next_number <= first]
                since_s = max((row.ended_s for row in (last, *known) if row is not None), default=0.0)
                last = rows[-1]
                for group, found in with_evaluations(rows[len(known) :], await feed.evaluations(), since_s):
                    await asyncio.to_thread(sink.write, group, found)
        if last is not None:
            later = [one for one in await feed.evaluations() if one.recorded_s > last.ended_s]
            if later:
                await asyncio.to_thread(sink.write, [last], later)
    finally:
        await asyncio.to_thread(sink.close)
    say(f"written up to round {feed.next - 1}")


async def _opened(sink: FigureSink, feed: RoundFeed, run_id: str, lineage: str) -> int:
    """Open the sink, and let the feed begin one round before the first one that it lacks, whose number is returned."""
    first = await asyncio.to_thread(sink.open, run_id, lineage)
    feed.seek(max(0, first - 1), lineage)
    return first
