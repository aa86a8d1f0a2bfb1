"""Logging at the entry points: constant messages with fields, as JSON lines for machines or short lines for people."""

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, TextIO

from epochal.cli.output.people_lines import ForPeople, sentence_of, short
from epochal.runtime.explanations import explanation_of
from epochal.state.text.visible import visible

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
MAX_FIELD_CHARS = 2000
NOISY = ("httpx", "httpx2", "httpcore", "httpcore2", "uvicorn.access", "asyncio", "transitions")
"""Loggers of libraries that write a line for each request, or each callback: only their warnings are shown."""


class LogFormat(StrEnum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


def record_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that a log call passed as `extra`."""
    return {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time_s, level, logger, event and the call's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time_s": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **record_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-MAX_FIELD_CHARS:]
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """`12:34:56 info event key=value …`. The first warning of a kind names its explanation.

    Args:
        for_people: whether numbers and digests are shortened, and lines of rounds are sentences.
    """

    def __init__(self, *, for_people: bool = False) -> None:
        super().__init__()
        self._for_people = for_people
        self._explained: set[str] = set()

    def format(self, record: logging.LogRecord) -> str:
        clock = self.formatTime(record, "%H:%M:%S")
        sentence = sentence_of(record) if self._for_people else None
        if sentence is not None:
            return f"{clock} {visible(sentence)}"
        shown = short if self._for_people else str
        fields = " ".join(f"{key}={visible(shown(value))}" for key, value in record_fields(record).items())
        line = f"{clock} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip() + self._where(record)
        return line if not record.exc_info else f"{line}\n{self.formatException(record.exc_info)}"

    def _where(self, record: logging.LogRecord) -> str:
        event = record.getMessage()
        if record.levelno < logging.WARNING or event in self._explained or explanation_of(event) is None:
            return ""
        self._explained.add(event)  # of the events that have an explanation, which are few
        return f" (see: epochal explain {event})"


class _LineHandler(logging.StreamHandler[TextIO]):
    """Writes log lines to a stream, or above what a terminal shows at its bottom."""

    def emit(self, record: logging.LogRecord) -> None:
        above = _above
        if above is None:
            super().emit(record)
            return
        try:
            above(self.format(record))
        except Exception:
            self.handleError(record)


WriteLine = Callable[[str], object]
_above: WriteLine | None = None


@contextlib.contextmanager
def lines_above(write: WriteLine) -> Iterator[None]:
    """Give each log line to `write` while the context is entered, because a display holds the terminal's bottom."""
    global _above
    before, _above = _above, write
    try:
        yield
    finally:
        _above = before


def start_logging(log_format: LogFormat, *, verbose: bool, stream: TextIO | None = None) -> None:
    """Send every log line of this process to `stream` (standard error if None); on a terminal those for people."""
    handler = _LineHandler(stream or sys.stderr)
    for_people = log_format is LogFormat.TEXT and not verbose and handler.stream.isatty()
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter(for_people=for_people))
    if for_people:
        handler.addFilter(ForPeople())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def show_warnings() -> None:
    """Let a command that starts no log show warnings with their fields, on standard error, instead of bare names."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(TextFormatter())
