"""The sinks that a command names: `csv:FILE`, `parquet:FILE`, `tensorboard:DIR`, `wandb:PROJECT`, `trackio:PROJECT`."""

from collections.abc import Callable, Sequence
from pathlib import Path

from epochal.sinks.protocol import FigureSink
from state.errors import InvalidInput

MAX_SINKS = 16
"""Maximum number of sinks of one command."""


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
    kind, colon, place = text.partition(":")
    if kind not in _KINDS or not colon or not place.strip():
        raise InvalidInput(f"--to {text}: allowed: {ALLOWED}")
    return _KINDS[kind](place)


def _csv(place: str) -> FigureSink:
    from epochal.sinks.csv_file import CsvSink

    return CsvSink(_file(place, f"csv:{place}"))


def _file(place: str, name: str) -> Path:
    """Return a file's path. Raise `InvalidInput` if it cannot be one."""
    path = Path(place)
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"lies in {path.parent}, which is no folder"
        raise InvalidInput(f"--to {name}: {path} {what}; allowed: a file in a folder that exists")
    return path


_KINDS: dict[str, Callable[[str], FigureSink]] = {"csv": _csv}
ALLOWED = "csv:FILE"
