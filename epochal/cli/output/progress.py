"""Shows long work: a bar with an estimate where standard error is a terminal, else a log line now and then.

The rule kept here: other output of a command appears above the bar, whole; the bar vanishes when the work ends, and
leaves the terminal as it was, also where the process is killed.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from epochal.cli.output import logs
from epochal.cli.output.screens import can_be_drawn_on
from epochal.runtime.long_work import LongWork, WorkDisplay, shown_on

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

log = logging.getLogger(__name__)

SHOW_AFTER_S = 0.5
"""Work that ends earlier is not shown."""
LOG_EVERY_S = 30.0
"""Time between two log lines about the same work, where there is no terminal."""
REFRESH_PER_S = 5


@contextlib.contextmanager
def progress_shown() -> Iterator[None]:
    """Show this process's long work while the context is entered."""
    display = BarDisplay() if can_be_drawn_on(sys.stderr) else LogDisplay()
    with shown_on(display):
        try:
            yield
        finally:
            display.close()


class LogDisplay(WorkDisplay):
    """Writes a log line about work that takes long, where logging shows lines of level info."""

    def __init__(self) -> None:
        self._logged_s: dict[LongWork, float] = {}

    def show(self, work: LongWork) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s.setdefault(work, work.started_s) < LOG_EVERY_S:
            return
        self._logged_s[work] = now_s
        fields: dict[str, Any] = {"work": work.title, "done": round(work.done), "unit": work.unit}
        if work.total is not None:
            fields["total"] = round(work.total)
        left_s = work.seconds_left(now_s)
        if left_s is not None:
            fields["left_s"] = round(left_s)
        log.info("long_work", extra=fields)

    def forget(self, work: LongWork) -> None:
        self._logged_s.pop(work, None)

    def close(self) -> None:
        """Do nothing: no terminal was changed."""


class BarDisplay(WorkDisplay):
    """Shows a line with a bar for each work under way at the bottom of the terminal.

    Args:
        console: where to; standard error if None.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        self._console = console
        self._live: Live | None = None
        self._works: dict[LongWork, None] = {}
        self._lock = threading.RLock()
        self._above = contextlib.ExitStack()

    def show(self, work: LongWork) -> None:
        if time.monotonic() - work.started_s < SHOW_AFTER_S:
            return
        with self._lock:
            self._works[work] = None
            if self._live is None:
                self._begin()

    def forget(self, work: LongWork) -> None:
        with self._lock:
            self._works.pop(work, None)
            if not self._works:
                self.close()

    def close(self) -> None:
        """Remove the bars."""
        with self._lock:
            live, self._live = self._live, None
            self._works.clear()
            if live is not None:
                live.stop()
            self._above.close()

    def _begin(self) -> None:
        from rich.console import Group
        from rich.live import Live

        from epochal.cli.output.bars import terminal, work_line

        console = self._console or terminal(sys.stderr)
        self._live = Live(
            get_renderable=lambda: Group(*(work_line(work, time.monotonic()) for work in list(self._works))),
            console=console,
            transient=True,
            refresh_per_second=REFRESH_PER_S,
            redirect_stdout=sys.stdout.isatty(),
        )
        self._live.start(refresh=True)
        self._above.enter_context(logs.lines_above(lambda line: console.print(line, markup=False, highlight=False)))
