"""`epochal watch` on a real pseudo-terminal: how it ends, and where there is no terminal."""

import signal
from collections.abc import Callable
from pathlib import Path

from tests.support.drive.restarted_run import restarted_run
from tests.support.drive.terminals import LEAVE_SCREEN, Terminal, in_terminal
from tests.support.thinned import thinned

CTRL_C = "\x03"


def press_q(terminal: Terminal) -> None:
    terminal.press("q")


def press_ctrl_c(terminal: Terminal) -> None:
    terminal.press(CTRL_C)


def terminate(terminal: Terminal) -> None:
    terminal.process.send_signal(signal.SIGTERM)


@thinned("leave", [press_q, press_ctrl_c, terminate])
async def test_view_leaves_the_terminal_as_it_was(tmp_path: Path, leave: Callable[[Terminal], None]) -> None:
    async with restarted_run(tmp_path / "run") as run, in_terminal("watch", run.url) as terminal:
        await terminal.until("run test-run")
        assert not terminal.is_as_before(), "it has the whole screen"
        leave(terminal)
        assert await terminal.end() == 0, terminal.text[-2000:]
        assert terminal.is_as_before()


async def test_view_ends_with_its_terminal(tmp_path: Path) -> None:
    async with restarted_run(tmp_path / "run") as run, in_terminal("watch", run.url) as terminal:
        await terminal.until("run test-run")
        terminal.hang_up()
        assert await terminal.end() == -signal.SIGHUP


async def test_refusal_ends_the_view_with_a_message_on_a_clean_terminal(tmp_path: Path) -> None:
    async with (
        restarted_run(tmp_path / "run", access__dashboard="admin") as run,
        in_terminal("watch", run.url) as terminal,
    ):
        assert await terminal.end() == 1, terminal.text[-2000:]
        after = terminal.written.rpartition(LEAVE_SCREEN)[2].decode()
        assert "epochal: this needs the admin token" in after
        assert terminal.is_as_before()
