"""Bars of long work in a terminal, drawn by rich, and a terminal that keeps its cursor."""

from typing import IO

from rich.console import Console, RenderableType
from rich.filesize import decimal
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from epochal.cli.durations import shown_duration
from epochal.runtime.long_work import BYTES, LongWork
from epochal.state.text.visible import visible

BAR_CHARS = 12
MAX_TITLE_CHARS = 60


class KeptCursorConsole(Console):
    """A console that never hides the cursor, so that a process which is killed leaves none hidden."""

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is."""
        del show
        return False


def terminal(stream: IO[str]) -> Console:
    """Return a console on a stream that is a terminal."""
    return KeptCursorConsole(file=stream)


def work_line(work: LongWork, now_s: float) -> RenderableType:
    """Return a line about long work, with a bar and an estimate if its total is known."""

    def amount(count: float) -> str:
        return decimal(round(count)) if work.unit == BYTES else f"{round(count):,} {work.unit}"

    line = Table.grid(padding=(0, 1))
    left_s = work.seconds_left(now_s)
    of = "" if work.total is None else f"/{amount(work.total)}"
    left = "" if left_s is None else f", {shown_duration(left_s)} left"
    bar = ProgressBar(total=work.total, completed=work.done, width=BAR_CHARS, pulse=work.total is None)
    line.add_row(Text(visible(work.title)[:MAX_TITLE_CHARS]), bar, Text(f"{amount(work.done)}{of}{left}"))
    return line
