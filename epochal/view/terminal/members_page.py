"""The page of the members: a table that sorts and filters ten thousand rows, of which only those in sight are drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from epochal.cli.output.bars import shown_duration
from epochal.runtime.visible_text import visible
from epochal.state.messages.member_rows import MemberFigures, MembersPage

MAX_FILTER_CHARS = 64
NAME_CHARS = 20
GAP_CHARS = 2


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
    MemberColumn("part", lambda member: member.part, lambda value: f"{value:.0%}"),
    MemberColumn("counted", lambda member: member.factor, lambda value: f"× {value:.2g}"),
    MemberColumn("tokens/s", lambda member: member.tokens_per_s, _number),
    MemberColumn("loss", lambda member: member.last_loss, lambda value: f"{value:.3f}"),
    MemberColumn("data wait", lambda member: member.data_wait, lambda value: f"{value:.0%}"),
    MemberColumn("applied", lambda member: member.applied, _number),
    MemberColumn("lost", lambda member: member.lost, _number),
    MemberColumn("sent", lambda member: member.uploaded_bytes, decimal),
    MemberColumn("heard", lambda member: member.silent_s, lambda value: f"{shown_duration(value)} ago"),
    MemberColumn("version", lambda member: member.software or None, str),
    MemberColumn("trainer", lambda member: member.trainer or None, str),
    MemberColumn("received", lambda member: member.downloaded_bytes, decimal),
)


@dataclass(slots=True)
class MembersTable:
    """The rows of the page, in the order and under the filter that the user chose.

    Attributes:
        order: index of the column by which rows are sorted; None as they joined.
        is_reversed: whether the largest come first.
        wanted: part of a name, an id, a trainer, a version or a state that rows must hold.
        top: number of the first row in sight.
        at: number of the row that is chosen; it stays the same member when rows change.
    """

    order: int | None = None
    is_reversed: bool = False
    wanted: str = ""
    top: int = 0
    at: int = 0
    _rows: list[MemberFigures] = field(default_factory=list)
    _made_of: tuple[object, ...] = ()

    def rows(self, page: MembersPage | None) -> list[MemberFigures]:
        """Return all rows that the filter lets through, in their order; made again only if something changed."""
        made_of = (id(page), self.order, self.is_reversed, self.wanted)
        if page is None:
            return []
        if made_of != self._made_of:
            chosen = self._rows[self.at].client_id if self._rows and self.at else None
            self._made_of, self._rows = made_of, self._made(page)
            same = (number for number, row in enumerate(self._rows) if row.client_id == chosen)
            self.at = max(0, next(same, min(self.at, len(self._rows) - 1)))
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
        """Choose the row so many below."""
        self.at = max(0, min(self.at + rows, len(self.rows(page)) - 1))

    def chosen(self, page: MembersPage | None) -> MemberFigures | None:
        """Return the row that is chosen; None without rows."""
        rows = self.rows(page)
        return rows[self.at] if rows else None

    def in_sight(self, page: MembersPage | None, height: int) -> list[MemberFigures]:
        """Return so many rows, the chosen one among them."""
        rows = self.rows(page)
        self.top = max(self.at - height + 1, min(self.top, self.at, max(0, len(rows) - height)))
        return rows[self.top : self.top + height]


def _searched(member: MemberFigures) -> str:
    words = member.name, member.client_id, member.trainer, member.software, _state(member)
    return "\n".join(words).casefold()


def members_page(table: MembersTable, page: MembersPage | None, width: int, height: int) -> RenderableType:
    """Return the rows in sight, as many columns as there is room for, and a line about the rest.

    The column by which rows are sorted is always among them.

    Args:
        table: the user's choices.
        page: the members; None while they are asked for.
        width, height: of the page in characters.
    """
    if page is None:
        return Text("Asking the coordinator…")
    rows = table.rows(page)
    seen = table.in_sight(page, max(1, height - 2))
    shown = Table(box=None, padding=(0, GAP_CHARS, 0, 0), header_style="bold")
    wanted = [index for index, column in enumerate(COLUMNS)
              if column.title != "name" or index == table.order or any(row.name for row in rows)]  # fmt: skip
    drawn = {index: _column(table, index, seen) for index in wanted}
    chosen = _fitting({index: _width(*drawn[index]) for index in wanted}, width, table.order)
    for index in chosen:
        shown.add_column(drawn[index][0], no_wrap=True)
    for number in range(len(seen)):
        style = "reverse" if table.top + number == table.at else ""
        shown.add_row(*(Text(drawn[index][1][number]) for index in chosen), style=style)
    last = min(len(rows), table.top + len(seen))
    place = f"{table.top + 1 if rows else 0} to {last} of {len(rows):,}"
    kept = f", filter {visible(table.wanted)!r}" if table.wanted else ""
    hidden = len(wanted) - len(chosen)
    more = f"; {hidden} more columns on a wider terminal" if hidden else ""
    return Group(shown, Text(f"{place}{kept}{more}", style="dim"))


def _column(table: MembersTable, index: int, seen: list[MemberFigures]) -> tuple[str, list[str]]:
    """Return a column's title and its cells."""
    arrow = "" if index != table.order else " ▼" if table.is_reversed else " ▲"
    return COLUMNS[index].title + arrow, [_cell(COLUMNS[index], row) for row in seen]


def _width(title: str, cells: list[str]) -> int:
    return max([cell_len(title), *map(cell_len, cells)]) + GAP_CHARS


def _fitting(widths: dict[int, int], room: int, order: int | None) -> list[int]:
    """Return the first columns that there is room for, and in any case that of the order."""
    room -= 0 if order is None else widths[order]
    chosen = []
    for index, needed in widths.items():
        if index == order:
            chosen.append(index)
        elif room >= needed:
            room -= needed
            chosen.append(index)
        else:
            room = 0
    return chosen


def _cell(column: MemberColumn, member: MemberFigures) -> str:
    if column.title == "name":
        return visible(member.name)[:NAME_CHARS]
    value = column.value(member)
    return "" if value is None else visible(column.shown(value))
