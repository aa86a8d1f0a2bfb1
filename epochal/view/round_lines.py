"""A round in a terminal: a line of letters for each client, and what the round under way waits for."""

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from epochal.state.messages.history_rows import Moment, RoundDetail
from epochal.state.shown.glossary import FATES, PARTS
from epochal.state.shown.tries import shown_step
from epochal.state.text.amounts import counted
from epochal.state.text.visible import visible
from epochal.view.waterfall import PART_WORDS, BarRow, Waterfall, waterfall

STYLES = {part.letter: f"#000000 on {part.colour}" for part in PARTS.values()}
"""Style of each part of a client's round, by its letter."""
WAITS = "-"
"""Represents time between a client's result and what it does next."""
NOTHING_YET = "No round has ended yet of which the clients are known."
NAME_CHARS = 18
FATE_CHARS = max(map(len, FATES.values()))
END_CHARS = 12
MIN_BAR_CHARS = 10
MAX_REASONS = 5
"""Number of clients for which the reason is shown why their work was not applied."""
MAX_AWAITED = 8
"""Number of clients of the round under way that are named."""


def round_parts(moment: Moment, names: Mapping[str, str], width: int) -> Iterator[RenderableType]:
    """Yield the round under way, and the last one that ended, client by client.

    Args:
        moment: the run at present.
        names: that clients chose, by client.
        width: of the terminal in characters.
    """
    detail = moment.last_round
    if moment.under_way:
        yield Text(_under_way(moment))
    if detail is None:
        yield Text(NOTHING_YET, style="dim")
        return
    drawn = waterfall(detail, dict(names))
    yield _head(detail)
    yield waterfall_lines(drawn, width)
    legend = [(f"{part.letter} ", STYLES[part.letter]) for part in PARTS.values()]
    words = [(f"{part.label}  ", "dim") for part in PARTS.values()]
    yield Text.assemble(
        *(piece for pair in zip(legend, words, strict=True) for piece in pair), (f"{WAITS} waits for others", "dim")
    )
    if len(drawn.rows) < len(detail.clients):
        yield Text(drawn.note, style="dim")
    told = [client for client in detail.clients if client.detail]
    for client in told[:MAX_REASONS]:
        who = _who(client.client_id, names.get(client.client_id, client.name))
        yield Text(f"{who}: {FATES[client.fate]}: {visible(client.detail)}", style="yellow")
    if len(told) > MAX_REASONS:
        yield Text(f"… and {len(told) - MAX_REASONS} more", style="yellow")


def _who(client_id: str, name: str) -> str:
    return f"{client_id[:8]} {visible(name)}".rstrip()[:NAME_CHARS]


def _under_way(moment: Moment) -> str:
    """Return how far the round under way is, and whose results it awaits."""
    work = moment.document.round
    busy = [client for client in moment.under_way if client.batches]
    awaited = [client for client in busy if client.delivered_s is None]
    step = "" if work is None else f" {shown_step(work.step, work.attempt)},"
    since = "" if moment.round_s is None else f" for {moment.round_s:.1f} s:"
    came = f"{len(busy) - len(awaited)} of {counted(len(busy), 'result')} came"
    named = ", ".join(_who(client.client_id, client.name) for client in awaited[:MAX_AWAITED])
    more = f" and {len(awaited) - MAX_AWAITED} more" if len(awaited) > MAX_AWAITED else ""
    return f"under way:{step}{since} {came}" + (f"; awaited: {named}{more}" if named else "")


def _head(detail: RoundDetail) -> Text:
    figures = detail.figures
    length_s = figures.train_s + figures.witness_s
    applied = f"{figures.applied_batches} of {counted(figures.batches, 'batch', 'batches')} applied"
    return Text(
        f"{shown_step(figures.step, figures.attempt)}: {length_s:.2f} s, "
        f"{figures.results} of {counted(figures.clients, 'result')}, {applied}. {visible(detail.reason)}"
    )


def waterfall_lines(drawn: Waterfall, width: int) -> RenderableType:
    """Return a line for each client, the slowest first: what it did when, as letters on one scale.

    Args:
        drawn: the clients, as every picture of a round has them: claims of a client stretch no scale.
        width: of the terminal in characters.
    """
    table = Table.grid(padding=(0, 1))
    longest_s = max((_end_of(row) for row in drawn.rows), default=0.0)
    name_chars = max(NAME_CHARS, width // 4)
    room = max(MIN_BAR_CHARS, width - name_chars - FATE_CHARS - END_CHARS)
    for row in reversed(drawn.rows):
        bar = bar_of(row, room / longest_s if longest_s > 0 else 0.0)
        who = Text(row.label[:name_chars].ljust(name_chars))
        table.add_row(who, Text(row.note.ljust(FATE_CHARS)), bar, Text(f"{_end_of(row):.2f} s"))
    return table


def _end_of(row: BarRow) -> float:
    return max((bar.start_s + bar.length_s for bar in row.bars), default=0.0)


def bar_of(row: BarRow, scale: float) -> Text:
    """Return a client's parts of a round as letters, with a letter at least for each, and what lies between as waits.

    Args:
        row: the client's.
        scale: characters for each second.
    """
    text, end_s = Text(), 0.0
    for bar in sorted(row.bars, key=lambda bar: bar.start_s):
        for letter, start_s, stop_s in (
            (WAITS, end_s, bar.start_s),
            (PART_WORDS[bar.part].letter, bar.start_s, bar.start_s + bar.length_s),
        ):
            if stop_s > start_s:
                count = max(1, round(stop_s * scale) - len(text))
                text.append(letter * count, style=STYLES.get(letter, "dim"))
        end_s = bar.start_s + bar.length_s
    return text
