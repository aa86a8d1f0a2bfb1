"""A run as a full-screen view: its keys and its layout. The pages are drawn elsewhere, and `watched_run.py` runs it."""

from typing import ClassVar

from rich.console import Group, RenderableType
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Input, Static

from epochal.runtime.visible_text import visible
from epochal.state.wire import ClientId
from epochal.view.terminal.help_page import help_page
from epochal.view.terminal.join_page import join_page
from epochal.view.terminal.member_page import member_page
from epochal.view.terminal.members_page import MAX_FILTER_CHARS, MembersTable, members_page
from epochal.view.terminal.operate_page import ACTION_KEYS, operate_page
from epochal.view.terminal.operator_desk import MAX_ANSWER_CHARS, OperatorDesk
from epochal.view.terminal.round_page import round_page
from epochal.view.terminal.run_page import CURVES, LOSS, place_line, run_page
from epochal.view.terminal.run_reader import RunReader
from epochal.view.terminal.trust_page import trust_page
from epochal.view.terminal.view_state import RunPicture
from epochal.view.terminal.word_wrap import GAP, Flow

DRAW_S = 0.5
"""Time between two drawings."""
PAGES = ("run", "round", "members", "trust", "join", "operate", "help")
JUMP = 10
"""Part of the history over which the larger steps back in time go: a tenth."""
HEAD_LINES = 3
FOOT_LINES = 2
KEYS = {
    "run": ("c next chart", "l log axis", "s smooth"),
    "round": ("[ older round", "] newer round"),
    "members": ("o sort", "r reverse", "/ filter", "Enter opens", "↑ ↓ PgUp PgDn Home End"),
    "member": ("Esc all members", "e eject"),
    "trust": (),
    "join": (),
    "operate": ("k forgets the token",),
    "help": (),
}
ONLY_NOW = "This page is of now: pages 1 to 4 show the past."
PAGE_KEYS = ("q quit", "? help", "1-7 or Tab pages")
TIME_KEYS = ("← → PgUp PgDn Home back in time", "n now")
MEMBERS_TIME_KEYS = ("← → back in time", "n now")
"""The movement of the other keys in the table."""


class WatchApp(App[None]):
    """The view of one run.

    Args:
        reader: keeps the picture of the run.
        desk: for an operator's actions.
    """

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    CSS = """
    Screen { layers: base; }
    #head { height: 3; }
    #scroll { height: 1fr; scrollbar-size-vertical: 1; }
    #page { height: auto; }
    #filter, #answer { display: none; height: 1; border: none; padding: 0; }
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
        Binding("c", "curve"),
        Binding("l", "log"),
        Binding("s", "smooth"),
        Binding("left_square_bracket", "older(-1)"),
        Binding("right_square_bracket", "older(1)"),
        Binding("up", "move(-1)", priority=True),
        Binding("down", "move(1)", priority=True),
        Binding("o", "sort"),
        Binding("r", "reverse"),
        Binding("slash", "filter"),
        Binding("escape", "leave", priority=True),
        Binding("enter", "enter"),
        Binding("question_mark", "open('help')"),
        *(Binding(key, f"press('{key}')") for key in "pftieyk"),
    ]

    def __init__(self, reader: RunReader, desk: OperatorDesk) -> None:
        super().__init__()
        self._reader = reader
        self._picture: RunPicture = reader.picture
        self._table = MembersTable()
        self._desk = desk
        self._page = "run"
        self._member: ClientId | None = None
        self._curve = LOSS
        self._is_log = self._is_smooth = False

    def compose(self) -> ComposeResult:
        """Yield the parts of the screen."""
        yield Static(id="head")
        with VerticalScroll(id="scroll", can_focus=False):
            yield Static(id="page")
        yield Input(
            id="filter", placeholder="part of a name, id, trainer, version or state", max_length=MAX_FILTER_CHARS
        )
        yield Input(id="answer", max_length=MAX_ANSWER_CHARS)
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
        page = "member" if self._page == "members" and self._member is not None else self._page
        of_time = MEMBERS_TIME_KEYS if page == "members" else () if page == "help" else TIME_KEYS
        keys = Flow([GAP.join(PAGE_KEYS + of_time), *KEYS[page]])
        self.query_one("#foot", Static).update(keys)

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
            return run_page(picture, width, height, is_log=self._is_log, is_smooth=self._is_smooth, curve=self._curve)
        if self._page == "round":
            return round_page(picture, width)
        if self._page == "help":
            return help_page()
        if self._page == "members" and self._member is None:
            return members_page(self._table, picture.members, width, height - self._input_is_open)
        if self._page == "trust":
            return trust_page(picture)
        if self._page == "members":
            page = member_page(picture.member, picture.note)
        else:
            page = operate_page(picture, self._desk) if self._page == "operate" else join_page(picture, picture.address)
        return Group(Text(ONLY_NOW, style="yellow"), page) if picture.is_past else page

    @property
    def _input_is_open(self) -> bool:
        return bool(self.query_one("#filter", Input).display)

    def action_open(self, name: str) -> None:
        """Open a page."""
        self._page, self._member = name, None
        self._reader.look_at_member(None)
        self._desk.cancel()
        self._close_inputs()
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
            self._table.at = 0
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
        """Show the present; answer a question with no."""
        if self._desk.question:
            self._desk.cancel()
        self._reader.look_at(None)
        self._reader.select(None)
        self.draw()

    def action_curve(self) -> None:
        """Show something else in the chart of the run's page."""
        names = list(CURVES)
        self._curve = names[(names.index(self._curve) + 1) % len(names)]
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
        if self._page == "members" and self._member is None:
            self._table.move(by, self._picture.members)
            self.draw()
        else:
            self.query_one("#scroll").scroll_relative(y=by, animate=False)

    def action_sort(self) -> None:
        """Sort the members by the next column."""
        self._table.sort_next()
        self.draw()

    def action_reverse(self) -> None:
        """Reverse the members' order; on the operator's page resume the run."""
        if self._page == "operate":
            self.action_press("r")
            return
        self._table.is_reversed = not self._table.is_reversed
        self.draw()

    def action_filter(self) -> None:
        """Let the user write what members must hold."""
        if self._page == "members" and self._member is None:
            field = self.query_one("#filter", Input)
            field.display = True
            field.focus()
            self.draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user writes."""
        if event.input.id == "filter":
            self._table.wanted, self._table.at = event.value, 0
            self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, or take the answer; give the keys back to the page."""
        self._close_inputs()
        if event.input.id == "answer":
            self._desk.answer(event.value)
            self._ask()

    def action_enter(self) -> None:
        """Open the chosen member's own page."""
        if self._page == "members" and self._member is None:
            chosen = self._table.chosen(self._picture.members)
            if chosen is not None:
                self._show_member(chosen.client_id)

    def _show_member(self, client_id: ClientId | None) -> None:
        self._member, self._picture.note = client_id, ""
        self._reader.look_at_member(client_id)
        self.query_one("#scroll").scroll_home(animate=False)
        self.draw()

    def action_leave(self) -> None:
        """Do nothing that is asked about; go back from a member to all, or show all again."""
        self._close_inputs()
        if self._page == "operate":
            self._desk.cancel()
        elif self._member is not None:
            self._show_member(None)
        else:
            self.query_one("#filter", Input).value = ""
        self.draw()

    def action_press(self, key: str) -> None:
        """Begin an operator's action, or answer its question."""
        if self._page == "members" and self._member is not None and key == "e":
            member = self._member
            self.action_open("operate")
            self._desk.begin("eject", client=member)
        elif self._page != "operate":
            return
        elif key == "y":
            if self._desk.question:
                self.run_worker(self._act(), exclusive=True)
        elif key == "k":
            self._desk.forget()
        else:
            self._desk.begin(ACTION_KEYS[key])
        self._ask()

    async def _act(self) -> None:
        await self._desk.act()
        self._reader.hurry()
        self.draw()

    def _ask(self) -> None:
        """Let the user write what the action needs next."""
        asked = self._desk.asked
        if asked is not None:
            field = self.query_one("#answer", Input)
            field.placeholder = f"{asked.label}{f' [{asked.default}]' if asked.default else ''}"
            field.password, field.display = asked.is_hidden, True
            field.focus()
        self.draw()

    def _close_inputs(self) -> None:
        for name in ("#filter", "#answer"):
            self.query_one(name, Input).display = False
        self.query_one("#answer", Input).value = ""
        self.set_focus(None)
        self.draw()
