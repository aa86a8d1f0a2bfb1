"""`epochal watch` on a real pseudo-terminal: its keys, another size, and how it ends."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.drive.restarted_run import restarted_run
from tests.support.drive.terminals import LEAVE_SCREEN, Terminal, in_terminal
from tests.support.thinned import thinned

CTRL_C, PAGE_DOWN = "\x03", "\x1b[6~"


def press_ctrl_c(terminal: Terminal) -> None:
    terminal.press(CTRL_C)


def terminate(terminal: Terminal) -> None:
    terminal.process.send_signal(signal.SIGTERM)


@pytest.mark.nightly
async def test_screen_scrolls_by_keys_and_follows_the_terminals_size(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run, in_terminal("watch", run.url) as terminal:
        await run.play(2)
        await terminal.until("step 2: ")
        terminal.resize(60, 10)
        await terminal.until("lines 1 to 7 of")
        terminal.press(PAGE_DOWN)
        await terminal.until("lines 8 to 14 of")
        terminal.press("k")
        await terminal.until("lines 7 to 13 of")
        assert not terminal.is_as_before(), "it has the whole screen"
        terminal.press("q")
        assert await terminal.end() == 0, terminal.text[-2000:]
        assert terminal.is_as_before()


@thinned("leave", [press_ctrl_c, terminate], kept=1)
async def test_view_leaves_the_terminal_as_it_was(tmp_path: Path, leave: Callable[[Terminal], None]) -> None:
    async with restarted_run(tmp_path / "run") as run, in_terminal("watch", run.url) as terminal:
        await terminal.until("run test-run")
        leave(terminal)
        assert await terminal.end() == 0, terminal.text[-2000:]
        assert terminal.is_as_before()


@pytest.mark.nightly
async def test_view_ends_with_its_terminal(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run, in_terminal("watch", run.url) as terminal:
        await terminal.until("run test-run")
        terminal.hang_up()
        assert await terminal.end() == -signal.SIGHUP


@pytest.mark.nightly
async def test_refusal_ends_the_view_with_a_message_on_a_clean_terminal(tmp_path: Path) -> None:
    async with (
        restarted_run(tmp_path / "run", access__dashboard="admin") as run,
        in_terminal("watch", run.url) as terminal,
    ):
        assert await terminal.end() == 1, terminal.text[-2000:]
        after = terminal.written.rpartition(LEAVE_SCREEN)[2].decode()
        assert "epochal: this needs the admin token" in after
        assert terminal.is_as_before()
