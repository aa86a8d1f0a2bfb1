"""Long work, and how far it has come: the code that does it counts, and this process's display, if any, shows it.

The rule kept here: counting is cheap and cannot fail, whether anything is shown or not, so that the code that works
need not know. There is one display in a process at a time; a command sets it (`epochal/cli/output/progress.py`).
"""

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Protocol

UPDATE_S = 0.1
"""Minimum time between two updates of the display for the same work."""
BYTES = "bytes"
"""The unit of work that a display shows as bytes, with a rate."""


class LongWork:
    """Work under way.

    Attributes:
        title: names it; one line, and perhaps text of others. It may change.
        total: how much there is to do; None if that is not known. It may change.
        unit: in which it is counted, in the plural.
        done: how much is done.
        started_s: when it began, on the monotonic clock.
    """

    def __init__(self, title: str, total: float | None, unit: str) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.done = 0.0
        self.started_s = time.monotonic()
        self._shown_s = self.started_s

    def advance(self, count: float = 1) -> None:
        """Count what was done since the last call."""
        self.reach(self.done + count)

    def reach(self, done: float) -> None:
        """Count what is done in all."""
        self.done = done
        if _display is None:
            return
        now_s = time.monotonic()
        if now_s - self._shown_s >= UPDATE_S:
            self._shown_s = now_s
            _display.show(self)

    def seconds_left(self, now_s: float) -> float | None:
        """Return the time that the rest takes at the mean rate so far; None if that is not known."""
        if self.total is None or self.done <= 0 or self.total < self.done:
            return None
        return (self.total - self.done) * (now_s - self.started_s) / self.done


class WorkDisplay(Protocol):
    """Shows long work. It is called in the thread that works, and must return quickly."""

    def show(self, work: LongWork) -> None:
        """Take note that the work has come further."""
        ...

    def forget(self, work: LongWork) -> None:
        """Take note that the work has ended, well or not. It may never have been shown."""
        ...


_display: WorkDisplay | None = None


@contextlib.contextmanager
def long_work(title: str, total: float | None = None, unit: str = "items") -> Iterator[LongWork]:
    """Yield work to be counted while the context is entered.

    Args:
        title: as `LongWork`.
        total: as `LongWork`.
        unit: as `LongWork`; `BYTES` for bytes.
    """
    work = LongWork(title, total, unit)
    try:
        yield work
    finally:
        if _display is not None:
            _display.forget(work)


async def counted_pieces(pieces: AsyncIterator[bytes], work: LongWork) -> AsyncGenerator[bytes, None]:
    """Yield pieces of bytes, and count their bytes."""
    async for piece in pieces:
        yield piece
        work.advance(len(piece))


@contextlib.contextmanager
def shown_on(display: WorkDisplay | None) -> Iterator[None]:
    """Show this process's long work on a display, or nowhere, while the context is entered; then as before."""
    global _display
    before, _display = _display, display
    try:
        yield
    finally:
        _display = before
