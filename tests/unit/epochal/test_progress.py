"""Bars and lines about long work."""

import io
import logging

import pytest

from epochal.cli.output import logs, progress
from epochal.cli.output.bars import KeptCursorConsole
from epochal.cli.output.progress import BarDisplay, LogDisplay
from epochal.runtime.long_work import BYTES, long_work, shown_on

HIDE_CURSOR = "\x1b[?25l"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def bar_display() -> tuple[BarDisplay, io.StringIO]:
    file = io.StringIO()
    return BarDisplay(KeptCursorConsole(file=file, force_terminal=True, width=120)), file


def test_a_bar_shows_how_much_of_how_much_is_done(clock: list[float]) -> None:
    display, file = bar_display()
    with shown_on(display), long_work("reading the run's blobs", 4_000_000, BYTES) as work:
        clock[0] += 10
        work.advance(1_000_000)
    assert "reading the run's blobs" in file.getvalue()
    assert "1.0 MB/4.0 MB" in file.getvalue()


def test_short_work_shows_no_bar(clock: list[float]) -> None:
    display, file = bar_display()
    with shown_on(display), long_work("reading", 4) as work:
        clock[0] += progress.SHOW_AFTER_S / 2
        work.advance()
    assert file.getvalue() == ""


def test_the_cursor_is_never_hidden(clock: list[float]) -> None:
    display, file = bar_display()
    with shown_on(display), long_work("reading", 4) as work:
        clock[0] += 10
        work.advance()
    assert file.getvalue()
    assert HIDE_CURSOR not in file.getvalue()


def test_a_title_from_elsewhere_is_shown_as_text(clock: list[float]) -> None:
    display, file = bar_display()
    with shown_on(display), long_work("[red]\x1b[31m\u202eevil", 4) as work:
        clock[0] += 10
        work.advance()
    assert "[red]\\x1b[31m\\u202eevil" in file.getvalue()


def test_log_lines_stand_above_a_bar_as_they_are(clock: list[float]) -> None:
    display, file = bar_display()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    own = io.StringIO()
    try:
        logs.start_logging(logs.LogFormat.TEXT, verbose=False, stream=own)
        with shown_on(display), long_work("reading", 4) as work:
            clock[0] += 10
            work.advance()
            logging.getLogger("epochal.test").info("a_line", extra={"place": "[bold]x[/bold]" + "y" * 200})
    finally:
        root.handlers[:], level = before
        root.setLevel(level)
    assert "a_line place=[bold]x[/bold]" + "y" * 200 in file.getvalue().replace("\n", "")
    assert own.getvalue() == ""


def test_without_a_terminal_a_line_is_logged_now_and_then(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with shown_on(LogDisplay()), long_work("reading", 200, "segments") as work:
        for _ in range(100):
            clock[0] += 1.0
            work.advance()
    lines = [vars(record) for record in caplog.records if record.getMessage() == "long_work"]
    assert [line["done"] for line in lines] == [30, 60, 90]
    assert (lines[0]["total"], lines[0]["left_s"], lines[0]["unit"]) == (200, 170, "segments")
