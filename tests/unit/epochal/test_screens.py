"""Where something may be drawn in place."""

import io

import pytest

from epochal.cli.output.screens import can_be_drawn_on


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("term", "second", "expected"),
    [
        ("xterm-256color", Terminal(), True),
        ("", Terminal(), True),
        ("dumb", Terminal(), False),
        ("xterm", io.StringIO(), False),
    ],
)
def test_only_terminals_that_move_their_cursor_are_drawn_on(
    term: str, second: io.StringIO, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    assert can_be_drawn_on(Terminal(), second) is expected
