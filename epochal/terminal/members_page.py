"""The page of the members: a table that sorts and filters ten thousand rows, of which only those in sight are drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from epochal.cli.bars import shown_duration
from runtime.visible_text import visible
from state.members import MemberFigures, MembersPage

MAX_FILTER_CHARS = 64
NAME_CHARS = 20


@dataclass(frozen=True, slots=True)
class MemberColumn:
    """A column: its title, the value by which it sorts (None comes last), and how that is shown."""

    title: str
    value: Callable[[MemberFigures], Any]
    shown: Callable[[Any], str]


def _state(member: MemberFigures) -> str:
    if member.left:
        return f"left: {member.left}"
    if member.rest_s is not None:
        return "rests"
    return "in round" if member.in_roster else "ready" if member.ready else "preparing"


def _number(value: float) -> str:
    return f"{value:,.0f}"


COLUMNS = (
    MemberColumn("name", lambda member: member.name.casefold() or None, str),
    MemberColumn("client", lambda member: member.client_id, lambda value: str(value)[:12]),
    MemberColumn("state", _state, str),
    MemberColumn("share", lambda member: member.share, lambda value: f"{value:g}"),
    MemberColumn("tokens/s", lambda member: member.tokens_per_s, _number),
    MemberColumn("loss", lambda member: member.last_loss, lambda value: f"{value:.3f}"),
    MemberColumn("data wait", lambda member: member.data_wait, lambda value: f"{value:.0%}"),
    MemberColumn("applied", lambda member: member.applied, _number),
    MemberColumn("lost", lambda member: member.lost, _number),
    MemberColumn("sent", lambda member: member.uploaded_bytes, decimal),
    MemberColumn("heard", lambda member: member.silent_s, lambda value: f"{shown_duration(value)} ago"),
    MemberColumn("version", lambda member: member.software or None, str),
)


@dataclass(slots=True)
class MembersTable:
    """The rows of the page, in the order and under the filter that the user chose.

    Attributes:
        order: index of the column by which rows are sorted; None as they joined.
        is_reversed: whether the largest come first.
        wanted: part of a name, an id, a trainer, a version or a state that rows must hold.
        top: number of the first row in sight.
    """

    order: int | None = None
    is_reversed: bool = False
    wanted: str = ""
    top: int = 0
    _rows: list[MemberFigures] = field(default_factory=list)
    _made_of: tuple[object, ...] = ()

    def rows(self, page: MembersPage | None) -> list[MemberFigures]:
        """Return all rows that the filter lets through, in their order; made again only if something changed."""
        made_of = (id(page), self.order, self.is_reversed, self.wanted)
        if page is None:
            return []
        if made_of != self._made_of:
            self._made_of, self._rows = made_of, self._made(page)
            self.top = max(0, min(self.top, len(self._rows) - 1))
        return self._rows

    def _made(self, page: MembersPage) -> list[MemberFigures]:
        rows = page.members.rows() + page.gone.rows()
        if self.wanted:
            wanted = self.wanted.casefold()
            rows = [row for row in rows if wanted in _searched(row)]
        if self.order is None:
            return rows[::-1] if self.is_reversed else rows
        value = COLUMNS[self.order].value
        known = [(found, row) for row in rows if (found := value(row)) is not None]
        known.sort(key=lambda pair: pair[0], reverse=self.is_reversed)
        return [row for _, row in known] + [row for row in rows if value(row) is None]

    def sort_next(self) -> None:
        """Sort by the next column; after the last as they joined."""
        self.order = 0 if self.order is None else self.order + 1
        if self.order >= len(COLUMNS):
            self.order = None

    def move(self, rows: int, page: MembersPage | None) -> None:
        """Move the rows in sight."""
        self.top = max(0, min(self.top + rows, len(self.rows(page)) - 1))


def _searched(member: MemberFigures) -> str:
    words = member.name, member.client_id, member.trainer, member.software, _state(member)
    return "\n".join(words).casefold()


def members_page(table: MembersTable, page: MembersPage | None, width: int, height: int) -> RenderableType:
    """Return the rows in sight, as many columns as there is room for, and a line about the rest.

    Args:
        table: the user's choices.
        page: the members; None while they are asked for.
        width, height: of the page in characters.
    """
    if page is None:
        return Text("Asking the coordinator…")
    rows = table.rows(page)
    seen = rows[table.top : table.top + max(1, height - 2)]
    shown = Table(box=None, padding=(0, 1), header_style="bold")
    columns, room = [], width
    for index, column in enumerate(COLUMNS):
        arrow = "" if index != table.order else " ▼" if table.is_reversed else " ▲"
        cells = [_cell(column, row) for row in seen]
        needed = max([len(column.title) + len(arrow), *map(cell_len, cells)]) + 2
        if needed > room:
            break
        room -= needed
        shown.add_column(column.title + arrow, no_wrap=True)
        columns.append(cells)
    for found in zip(*columns, strict=True):
        shown.add_row(*(Text(cell) for cell in found))
    last = min(len(rows), table.top + len(seen))
    place = f"{table.top + 1 if rows else 0} to {last} of {len(rows):,}"
    kept = f", filter {visible(table.wanted)!r}" if table.wanted else ""
    hidden = len(COLUMNS) - len(columns)
    more = f"; {hidden} more columns on a wider terminal" if hidden else ""
    return Group(shown, Text(f"{place}{kept}{more}", style="dim"))


def _cell(column: MemberColumn, member: MemberFigures) -> str:
    if column.title == "name":
        return visible(member.name)[:NAME_CHARS]
    value = column.value(member)
    return "" if value is None else visible(column.shown(value))
