"""A sink: one place where a run's figures are kept, which knows itself how far it has got.

The rule kept here: what was written lies with the sink alone. A follower that is killed anywhere, and started again,
asks the sink which round comes next, and continues there; nothing else remembers it.
"""

import fcntl
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from epochal.runtime.visible_text import visible
from epochal.state.errors import EpochalError, InvalidInput
from epochal.state.messages.history_rows import RoundFigures

MAX_FILE_NAME_BYTES = 200


class SinkFailed(EpochalError):
    """Figures could not be kept: the disk is full, or the service that takes them fails. Start the command again."""


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """The progress of a sink.

    Attributes:
        next: number of the round that comes next.
        lineage: of the last row that was written; None if it is missing.
    """

    next: int
    lineage: str | None


@dataclass(frozen=True, slots=True)
class Mark:
    """A boundary between rounds that two histories have in common if both have it.

    Attributes:
        next: number of the round that follows.
        ended_s: when the one before it ended, in seconds since 1970.
    """

    next: int
    ended_s: float


class FigureSink(Protocol):
    """A place for a run's figures. Calls are blocking, and one at a time."""

    name: str
    """As the command names it."""

    def open(self, run_id: str, lineage: str) -> SinkPlace | None:
        """Return how far the sink has got with this run; None if nothing was written.

        Raises:
            InvalidInput: it belongs to another run, another follower writes to it, or it is something else.
            SinkFailed: it cannot be read.
        """
        ...

    def write(self, lineage: str, rows: Sequence[RoundFigures]) -> None:
        """Write rows, the first of which is the next one, and return once they are kept.

        Raises:
            SinkFailed: they are not; the sink may have kept the first of them.
        """
        ...

    def go_back(self, lineage: str, marks: Sequence[Mark]) -> int | None:
        """Forget what is not in the run's history of another lineage; return the number of the round that comes next.

        None represents the beginning, because the sink keeps each lineage apart.

        Args:
            lineage: the new one.
            marks: the boundaries of its rows, in their order.
        """
        ...

    def known(self, first: int) -> RoundFigures | None:
        """Return what was written of the rounds from number `first` on as one row; None if the sink cannot say.

        A sink that keeps means over a row's rounds, not sums, need not.
        """
        ...

    def close(self) -> None:
        """Write what waits, and let others write. What was written is kept whether or not this is called."""
        ...


def last_common(held: Sequence[Mark], marks: Sequence[Mark]) -> int:
    """Return the number of the first round that is not in both histories; 0 if they have nothing in common."""
    theirs = set(marks)
    return max((mark.next for mark in held if mark in theirs), default=0)


def run_name(run_id: str) -> str:
    """Return the run's id as a name for files: a run's id may be any text."""
    name = quote(run_id, safe=" ")
    return f"%2E{name[1:]}" if name.startswith(".") else name


def plain_name(run_id: str, lineage: str) -> str:
    """Return a name of letters, digits and hyphens for one lineage of a run."""
    return f"{re.sub('[^A-Za-z0-9]+', '-', run_id).strip('-') or 'run'}-{lineage[:12]}"


def check_run(place: str, found: str, run_id: str) -> None:
    """Raise `InvalidInput` if a place holds the figures of another run."""
    if found != visible(run_id):
        raise InvalidInput(f"{place} holds the figures of run {visible(found)}, not of {visible(run_id)}; name another")


class SinkLock:
    """Keeps other followers from a file, for as long as this process lives and has not released it.

    Args:
        path: the file that is written; the lock is one beside it.
    """

    def __init__(self, path: Path) -> None:
        lock = path.with_name(f".{path.name}.lock")
        try:
            self._descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise InvalidInput(f"{path} is written by another `epochal watch` now") from None

    def release(self) -> None:
        """Let others write."""
        os.close(self._descriptor)
