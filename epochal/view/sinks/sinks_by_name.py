"""The sinks that a command names: `csv:FILE`, `parquet:FILE`, `tensorboard:DIR`, `wandb:PROJECT`, `trackio:PROJECT`."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from epochal.state.errors import ExtraMissing, InvalidInput
from epochal.view.sinks.sink import FigureSink

MAX_SINKS = 16
"""Maximum number of sinks of one command."""
ALLOWED = "csv:FILE, parquet:FILE, tensorboard:DIR, wandb:PROJECT or trackio:PROJECT"


@dataclass(frozen=True, slots=True)
class _Kind:
    """The constructor of a kind of sink.

    Attributes:
        target: `module:class` below `epochal.view.sinks`.
        place: makes the class's argument of the place that is named.
        package: that it needs besides Epochal's own; None if it needs none.
        extra: of Epochal that installs it.
    """

    target: str
    place: Callable[[str], Path | str]
    package: str | None = None
    extra: str = ""


def named_sinks(texts: Sequence[str]) -> list[FigureSink]:
    """Return the sinks that `--to` names, none of them open.

    Raises:
        InvalidInput: there is no such sink, one is named twice, its place cannot be used, or a package is missing.
    """
    if len(texts) > MAX_SINKS:
        raise InvalidInput(f"--to is given {len(texts)} times; allowed: at most {MAX_SINKS}")
    for place, text in enumerate(texts):
        if text in texts[:place]:
            raise InvalidInput(f"--to {text} is given twice")
    return [_named(text) for text in texts]


def _named(text: str) -> FigureSink:
    name, _, place = text.partition(":")
    kind = _KINDS.get(name)
    if kind is None or not place.strip():
        raise InvalidInput(f"--to {text}: allowed: {ALLOWED}")
    if kind.package is not None and importlib.util.find_spec(kind.package) is None:
        raise ExtraMissing(f"--to {text} needs {kind.package}: pip install 'epochal[{kind.extra}]'")
    argument = kind.place(place)
    module, _, maker = kind.target.partition(":")
    sink: FigureSink = getattr(importlib.import_module(f"epochal.view.sinks.{module}"), maker)(argument)
    return sink


def _file(place: str) -> Path:
    """Return a file's path. Raise `InvalidInput` if it cannot be one."""
    path = Path(place)
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"lies in {path.parent}, which is no folder"
        raise InvalidInput(f"--to: {path} {what}; allowed: a file in a folder that exists")
    return path


def _folder(place: str) -> Path:
    """Return a folder's path, which need not exist. Raise `InvalidInput` if it cannot be one."""
    path = Path(place)
    if path.exists() and not path.is_dir():
        raise InvalidInput(f"--to: {path} is no folder; allowed: a folder, which is made if it does not exist")
    return path


_KINDS = {
    "csv": _Kind("csv_file:CsvSink", _file),
    "parquet": _Kind("parquet_file:ParquetSink", _file, "pyarrow", "parquet"),
    "tensorboard": _Kind("tensorboard_files:TensorBoardSink", _folder, "tensorboard", "tensorboard"),
    "wandb": _Kind("wandb_run:WandbSink", str, "wandb", "wandb"),
    "trackio": _Kind("trackio_run:TrackioSink", str, "trackio", "trackio"),
}
