"""Weights & Biases: one run of a project for each lineage of the run, under an id that follows from both.

How far it has got, W&B itself says: online by the run's last step, offline by the files of earlier sessions, which are
read here. What waited in W&B's buffers when a follower was killed is therefore written again, and nothing twice.
"""

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from epochal.runtime.visible_text import visible
from epochal.state.messages.history_rows import RoundFigures
from epochal.view.sinks.scalars import place_of, scalars_of
from epochal.view.sinks.sink import Mark, SinkFailed, SinkPlace, plain_name

_FILE_HEAD_BYTES = 7
"""Size of `:W&B`, two bytes and a version, with which W&B's files begin."""
_BLOCK_BYTES = 32_768
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class WandbSink:
    """A `FigureSink` in a project of W&B. `WANDB_MODE`, `WANDB_DIR` and its other variables hold.

    Args:
        project: its name.
    """

    def __init__(self, project: str) -> None:
        self.name = f"wandb:{project}"
        self._project = project
        self._run_id = ""
        self._run: Any = None

    def open(self, run_id: str, lineage: str) -> SinkPlace | None:
        self._run_id = run_id
        first = self._begin(lineage)
        return SinkPlace(first, lineage) if first else None

    def write(self, lineage: str, rows: Sequence[RoundFigures]) -> None:
        import wandb

        del lineage  # the run is the lineage's
        try:
            for row in rows:
                self._run.log(scalars_of(row), step=place_of(row))
        except (wandb.Error, OSError) as error:
            raise SinkFailed(f"{self.name} takes no figures: {error}") from error

    def go_back(self, lineage: str, marks: Sequence[Mark]) -> int | None:
        del marks  # the lineages lie side by side
        self.close()
        return self._begin(lineage) or None

    def known(self, first: int) -> RoundFigures | None:
        del first  # points are means
        return None

    def close(self) -> None:
        if self._run is not None:
            run, self._run = self._run, None
            run.finish()

    def _begin(self, lineage: str) -> int:
        """Begin or resume the lineage's run; return the number of the round that comes next."""
        import wandb

        name = plain_name(self._run_id, lineage)
        settings = wandb.Settings(
            console="off", silent=True, save_code=False, disable_git=True, x_disable_stats=True, x_disable_meta=True
        )
        try:
            self._run = wandb.init(
                project=self._project,
                id=name,
                name=name,
                group=visible(self._run_id),
                resume="allow",
                config={"run_id": visible(self._run_id), "lineage": lineage},
                settings=settings,
            )
        except (wandb.Error, OSError, ValueError) as error:
            raise SinkFailed(
                f"{self.name} cannot be opened: {error}; WANDB_API_KEY says who you are, and WANDB_MODE=offline writes "
                "to this machine alone"
            ) from error
        if not self._run.offline:
            return int(self._run.step)
        folder = Path(self._run.dir).parent.parent
        files = sorted(folder.glob(f"offline-run-*-{name}/run-{name}.wandb"))
        return max((step + 1 for file in files for step in steps_in(file)), default=0)


def steps_in(file: Path) -> Iterator[int]:
    """Yield the steps of the rows in a file of W&B, as far as it is whole."""
    from wandb.proto.wandb_internal_pb2 import Record

    for data in _records_in(file.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("history"):
            yield record.history.step.num


def _records_in(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log as LevelDB writes it (its `doc/log_format.md`), behind W&B's own head."""
    place, parts = _FILE_HEAD_BYTES, list[bytes]()
    while place + _CHUNK.size <= len(data):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < _CHUNK.size:
            place += left
            continue
        _, length, kind = _CHUNK.unpack_from(data, place)
        start = place + _CHUNK.size
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or start + length > len(data):
            return
        parts = [data[start : start + length]] if kind in (_FULL, _FIRST) else [*parts, data[start : start + length]]
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
        place = start + length
