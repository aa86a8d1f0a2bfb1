"""`epochal` commands on a real pseudo-terminal: the keys that are pressed, and the text that stands on the screen."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator

from tests.support.bounds import BOUND_S

COLUMNS, LINES = 80, 24
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_].*?\x1b\\|[@-Z\\-_=>78])", re.DOTALL
)
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"
ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A process on a terminal of 80 columns and 24 lines.

    Attributes:
        written: everything that it has written, escapes included.
    """

    def __init__(self, process: asyncio.subprocess.Process, master: int, slave: int) -> None:
        self.process = process
        self.written = b""
        self._master = master
        self._slave = slave
        self._before = termios.tcgetattr(slave)
        self._news = asyncio.Event()
        self._is_open = True

    def read(self) -> None:
        """Take what has been written."""
        with contextlib.suppress(OSError):
            self.written += os.read(self._master, 1 << 16)
        self._news.set()

    @property
    def text(self) -> str:
        """What was written, without escapes."""
        return _ESCAPES.sub("", self.written.decode(errors="replace"))

    async def until(self, text: str) -> None:
        """Return once this text has been written."""
        await self.until_again(text, 0)

    async def until_again(self, text: str, after: int) -> None:
        """Return once this text has been written after so many characters."""
        try:
            async with asyncio.timeout(BOUND_S):
                while text not in self.text[after:]:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"{text!r} was not written; the end was {self.text[-2000:]}") from None

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        """Give the terminal another size, of which the kernel tells the process."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def hang_up(self) -> None:
        """Close the terminal, as its window's end does. A second time does nothing."""
        if self._is_open:
            self._is_open = False
            asyncio.get_running_loop().remove_reader(self._master)
            os.close(self._master)
            os.close(self._slave)

    async def end(self) -> int:
        """Return the exit code once the process has ended."""
        async with asyncio.timeout(BOUND_S):
            code = await self.process.wait()
        if self._is_open:
            self.read()
        return code

    def is_as_before(self) -> bool:
        """Return whether the terminal echoes and edits lines as it did, on its own screen, with its cursor."""
        has_cursor = self.written.rfind(HIDE_CURSOR) <= self.written.rfind(SHOW_CURSOR)
        is_own_screen = self.written.rfind(ENTER_SCREEN) <= self.written.rfind(LEAVE_SCREEN)
        return termios.tcgetattr(self._slave) == self._before and has_cursor and is_own_screen


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextlib.asynccontextmanager
async def in_terminal(*arguments: str) -> AsyncIterator[Terminal]:
    """Yield `epochal ARGUMENTS…` on a terminal of its own; it is killed at the end if it still runs."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    os.set_blocking(master, False)
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epochal", *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment | {"TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    terminal = Terminal(process, master, slave)
    loop = asyncio.get_running_loop()
    loop.add_reader(master, terminal.read)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        terminal.hang_up()
