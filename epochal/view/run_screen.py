"""`epochal watch`: a run as one live screen, with keys to scroll and to leave.

The rule kept here: however the screen ends, by a key, a signal or an error, the terminal is as it was before.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import termios
from collections.abc import Callable, Iterator

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from epochal.coordinator_client.viewer_client import ViewerClient
from epochal.runtime.retry import RetryPolicy
from epochal.state.text.visible import visible
from epochal.view.round_lines import round_parts
from epochal.view.status_panel import status_parts
from epochal.view.watched_run import RunPicture, follow_run

FRAME_LINES = 3
"""Lines above and below what scrolls."""
MAX_MEMBERS = 200
KEYS_TEXT = "q quit  ↑ ↓ PgUp PgDn Home End scroll"
READ_BYTES = 256
_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)
QUIT = frozenset({b"q", b"\x03", b"\x11"})
"""q, Ctrl-C and Ctrl-Q."""
LINES = {b"\x1b[A": -1, b"\x1bOA": -1, b"k": -1, b"\x1b[B": 1, b"\x1bOB": 1, b"j": 1}
PAGES = {b"\x1b[5~": -1, b"\x1b[6~": 1, b" ": 1}
HOME = frozenset({b"\x1b[H", b"\x1bOH", b"\x1b[1~", b"g"})
END = frozenset({b"\x1b[F", b"\x1bOF", b"\x1b[4~", b"G"})


class RunScreen:
    """The last that is known of a run, as lines of which those in sight are drawn.

    Args:
        picture: of the run.
        address: the coordinator's, as the user gave it, without a password.
    """

    def __init__(self, picture: RunPicture, address: str) -> None:
        self._picture = picture
        self._address = address
        self._top = 0
        self._room = 1

    def press(self, key: bytes) -> None:
        """Scroll as a key says; others do nothing."""
        if key in HOME:
            self._top = 0
        elif key in END:
            self._top = sys.maxsize
        else:
            self._top += LINES.get(key, 0) + PAGES.get(key, 0) * self._room

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, height = options.max_width, options.height or console.height
        self._room = max(1, height - FRAME_LINES)
        lines = console.render_lines(self._body(width), options.update(width=width, height=None))
        self._top = max(0, min(self._top, len(lines) - self._room))
        news = Text(visible(self._picture.problem), style="bold red", no_wrap=True, overflow="ellipsis")
        yield from (self._title(), news)
        for line in lines[self._top : self._top + self._room]:
            yield from (*line, Segment.line())
        for _ in range(self._room - len(lines)):
            yield Segment.line()
        last = min(len(lines), self._top + self._room)
        place = f"lines {self._top + 1} to {last} of {len(lines)}"
        yield Text(f"{KEYS_TEXT}  {place}", style="dim", no_wrap=True, overflow="ellipsis", end="")

    def _title(self) -> Text:
        status = self._picture.status
        title = Text("Epochal", style="bold", no_wrap=True, overflow="ellipsis")
        if status is None:
            return title.append(f" · {self._address}", style="not bold")
        return title.append(f" · run {visible(status.run_id)} · {visible(status.reason)}", style="not bold")

    def _body(self, width: int) -> Group:
        status, moment = self._picture.status, self._picture.moment
        if status is None:
            return Group(Text("Asking the coordinator…"))
        names: dict[str, str] = {member.client_id: member.name for member in status.members}
        rounds = () if moment is None else round_parts(moment, names, width)
        return Group(*status_parts(status, MAX_MEMBERS, rounds))


@contextlib.contextmanager
def keys_of(descriptor: int, press: Callable[[bytes], None]) -> Iterator[None]:
    """Give each key of a terminal to `press` while the context is entered, without an echo; Ctrl-C is one of them."""
    loop, before = asyncio.get_running_loop(), termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG)

    def read() -> None:
        try:
            data = os.read(descriptor, READ_BYTES)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            loop.remove_reader(descriptor)
        for key in _KEY.findall(data):
            press(key)

    termios.tcsetattr(descriptor, termios.TCSADRAIN, quiet)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _signals_to(handlers: dict[int, Callable[[], None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number, handle in handlers.items():
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


async def show_screen(client: ViewerClient, policy: RetryPolicy, address: str) -> None:
    """Show a run on this process's terminal until the user leaves.

    Args:
        client: the coordinator.
        policy: how long to retry when it does not answer.
        address: the coordinator's, as the user gave it, without a password.

    Raises:
        CoordinatorUnreachable: it did not answer for as long as the policy allows.
        Refused: the coordinator shows the run to others only.
        InvalidDocument: something else answers.
    """
    picture, leaving = RunPicture(), asyncio.Event()
    screen = RunScreen(picture, address)
    with Live(screen, console=Console(), screen=True, auto_refresh=False) as live:

        def press(key: bytes) -> None:
            if key in QUIT:
                leaving.set()
            screen.press(key)
            live.refresh()

        signals: dict[int, Callable[[], None]] = {signal.SIGTERM: leaving.set, signal.SIGWINCH: live.refresh}
        with keys_of(sys.stdin.fileno(), press), _signals_to(signals):
            async with asyncio.TaskGroup() as group:
                following = group.create_task(follow_run(client, policy, picture, live.refresh, rounds=True))
                await leaving.wait()
                following.cancel()
