"""`epochal watch URL`: a run as a full-screen view. The pages are drawn elsewhere; here are keys and the terminal.

The rule kept here: however the view ends, by a key, a signal or an error, the terminal is as it was before.
"""

import asyncio
import signal
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from coordinator_client.viewing import ViewerClient
from epochal.terminal.members_page import MAX_FILTER_CHARS, MembersTable, members_page
from epochal.terminal.pages import join_page, place_line, run_page, trust_page
from epochal.terminal.picture import RunPicture
from epochal.terminal.round_page import round_page
from epochal.terminal.run_reader import RunReader
from runtime.retry import RetryPolicy
from runtime.task_errors import first_error
from runtime.visible_text import visible
from state.errors import EpochalError

DRAW_S = 0.5
"""Time between two drawings."""
PAGES = ("run", "round", "members", "trust", "join")
JUMP = 10
"""Part of the history over which the larger steps back in time go: a tenth."""
SIGNALS = (signal.SIGTERM, signal.SIGHUP)
HEAD_LINES = 3
FOOT_LINES = 2
KEYS = {
    "run": "l log axis  s smooth",
    "round": "[ older round  ] newer round",
    "members": "o sort  r reverse  / filter  ↑ ↓ PgUp PgDn Home End",
    "trust": "",
    "join": "",
}
ONLY_NOW = "This page is of now: pages 1 and 2 show the past."
TIME_KEYS = "← → PgUp PgDn Home back in time  n now"


class WatchApp(App[None]):
    """The view of one run.

    Args:
        reader: keeps the picture of the run.
    """

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    CSS = """
    Screen { layers: base; }
    #head { height: 3; }
    #scroll { height: 1fr; scrollbar-size-vertical: 1; }
    #page { height: auto; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    #foot { height: 2; color: $text-muted; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c,ctrl+q", "quit", priority=True),
        *(Binding(str(number), f"open('{name}')", name) for number, name in enumerate(PAGES, 1)),
        Binding("tab", "turn(1)", "next page", priority=True),
        Binding("shift+tab", "turn(-1)", "page before", priority=True),
        Binding("left", "time(-1)"),
        Binding("right", "time(1)"),
        Binding("pageup", "jump(-1)", priority=True),
        Binding("pagedown", "jump(1)", priority=True),
        Binding("home", "first", priority=True),
        Binding("end", "last", priority=True),
        Binding("n", "now"),
        Binding("l", "log"),
        Binding("s", "smooth"),
        Binding("left_square_bracket", "older(-1)"),
        Binding("right_square_bracket", "older(1)"),
        Binding("up", "move(-1)", priority=True),
        Binding("down", "move(1)", priority=True),
        Binding("o", "sort"),
        Binding("r", "reverse"),
        Binding("slash", "filter"),
        Binding("escape", "unfilter", priority=True),
    ]

    def __init__(self, reader: RunReader) -> None:
        super().__init__()
        self._reader = reader
        self._picture: RunPicture = reader.picture
        self._table = MembersTable()
        self._page = "run"
        self._is_log = self._is_smooth = False

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static(id="head")
        with VerticalScroll(id="scroll", can_focus=False):
            yield Static(id="page")
        yield Input(
            id="filter", placeholder="part of a name, id, trainer, version or state", max_length=MAX_FILTER_CHARS
        )
        yield Static(id="foot")

    def on_mount(self) -> None:
        """Draw, now and again."""
        self.draw()
        self.set_interval(DRAW_S, self.draw)

    def on_resize(self) -> None:
        """Draw for the new size."""
        self.draw()

    def draw(self) -> None:
        """Draw the page that is open."""
        if not self.query("#foot"):  # not composed yet
            return
        self.query_one("#head", Static).update(self.head())
        self.query_one("#page", Static).update(self.body())
        keys = "  ".join(part for part in (KEYS[self._page], "" if self._page == "members" else TIME_KEYS) if part)
        self.query_one("#foot", Static).update(Text(f"q quit  1-5 or Tab pages  {keys}"))

    def head(self) -> RenderableType:
        """Return the lines above every page."""
        picture = self._picture
        document = picture.document
        name = "" if document is None else f" · run {visible(document.run_id)}"
        name += "" if document is None or picture.is_past else f" · {document.run_state.value}"
        title = Text.assemble(("Epochal", "bold"), f"{name} · ", place_line(picture), no_wrap=True, overflow="ellipsis")
        tabs = Text(no_wrap=True, overflow="ellipsis")
        for number, page in enumerate(PAGES, 1):
            tabs.append(f" {number} {page} ", style="reverse bold" if page == self._page else "")
        said = picture.problem or picture.note
        news = Text(visible(said), style="bold red" if picture.problem else "yellow", no_wrap=True, overflow="ellipsis")
        return Group(title, tabs, news)

    def body(self) -> RenderableType:
        """Return the page that is open."""
        size = self.size
        width, height = max(20, size.width - 2), max(4, size.height - HEAD_LINES - FOOT_LINES)
        picture = self._picture
        if self._page == "run":
            return run_page(picture, width, height, is_log=self._is_log, is_smooth=self._is_smooth)
        if self._page == "round":
            return round_page(picture, width)
        if self._page == "members":
            page = members_page(self._table, picture.members, width, height - self._input_is_open - picture.is_past)
        else:
            page = trust_page(picture) if self._page == "trust" else join_page(picture, picture.address)
        return Group(Text(ONLY_NOW, style="yellow"), page) if picture.is_past else page

    @property
    def _input_is_open(self) -> bool:
        return bool(self.query_one("#filter", Input).display)

    def action_open(self, name: str) -> None:
        """Open a page."""
        self._page = name
        self._close_filter()
        self._reader.show(name)
        self.query_one("#scroll").scroll_home(animate=False)
        self.draw()

    def action_turn(self, by: int) -> None:
        """Open the next page, or the one before."""
        self.action_open(PAGES[(PAGES.index(self._page) + by) % len(PAGES)])

    def action_time(self, by: int) -> None:
        """Go back or forward by a row of the history."""
        rows = len(self._picture.rows)
        place = rows if self._picture.place is None else self._picture.place
        self._look_at(place + by)

    def _look_at(self, place: int) -> None:
        rows = len(self._picture.rows)
        self._reader.look_at(max(0, place) if rows and place < rows else None)
        self.draw()

    def action_jump(self, by: int) -> None:
        """Go by a tenth of the history; on the members' page by a screen."""
        if self._page == "members":
            self._table.move(by * (self.size.height - HEAD_LINES - FOOT_LINES - 2), self._picture.members)
            self.draw()
            return
        self.action_time(by * max(1, len(self._picture.rows) // JUMP))

    def action_first(self) -> None:
        """Go to the first row."""
        if self._page == "members":
            self._table.top = 0
            self.draw()
        elif self._picture.rows:
            self._look_at(0)

    def action_last(self) -> None:
        """Go to the last row: of the members, or to now."""
        if self._page == "members":
            self._table.move(len(self._table.rows(self._picture.members)), self._picture.members)
            self.draw()
        else:
            self.action_now()

    def action_now(self) -> None:
        """Show the present."""
        self._reader.look_at(None)
        self._reader.select(None)
        self.draw()

    def action_log(self) -> None:
        """Change the axis of the loss."""
        self._is_log = not self._is_log
        self.draw()

    def action_smooth(self) -> None:
        """Smooth the loss, or not."""
        self._is_smooth = not self._is_smooth
        self.draw()

    def action_older(self, by: int) -> None:
        """Show the clients of an older round, or of a newer one."""
        picture = self._picture
        number = (picture.next - 1 if picture.selected is None else picture.selected) + by
        if number >= picture.next - 1:
            self._reader.select(None)
        elif number >= picture.detailed_from:
            self._reader.select(number)
        self.draw()

    def action_move(self, by: int) -> None:
        """Move by a line."""
        if self._page == "members":
            self._table.move(by, self._picture.members)
            self.draw()
        else:
            self.query_one("#scroll").scroll_relative(y=by, animate=False)

    def action_sort(self) -> None:
        """Sort the members by the next column."""
        self._table.sort_next()
        self.draw()

    def action_reverse(self) -> None:
        """Reverse the members' order."""
        self._table.is_reversed = not self._table.is_reversed
        self.draw()

    def action_filter(self) -> None:
        """Let the user write what members must hold."""
        if self._page == "members":
            field = self.query_one("#filter", Input)
            field.display = True
            field.focus()
            self.draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user writes."""
        self._table.wanted, self._table.top = event.value, 0
        self.draw()

    def on_input_submitted(self) -> None:
        """Keep the filter, and give the keys back to the page."""
        self._close_filter()

    def action_unfilter(self) -> None:
        """Show all members again."""
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.set_focus(None)
        self.draw()


async def watch_run(client: ViewerClient, address: str, policy: RetryPolicy) -> None:
    """Show a run on this terminal until the user leaves.

    Args:
        client: the coordinator.
        address: its URL as the user gave it, without a password.
        policy: how long to go on when it does not answer.

    Raises:
        CoordinatorUnreachable, Refused, InvalidDocument: as `RunReader.run`.
    """
    reader = RunReader(client, policy, RunPicture(address))
    app = WatchApp(reader)
    failures: list[BaseException] = []

    async def read() -> None:
        try:
            await reader.run()
        except BaseExceptionGroup as group:
            failures.append(first_error(group, EpochalError))
            app.exit()

    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, app.exit)
    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            await app.run_async()
            reading.cancel()
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    if failures:
        raise failures[0]
