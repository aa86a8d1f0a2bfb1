"""The page of a round: a waterfall for each client, medians, and why the run is not faster."""

from collections.abc import Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epochal.runtime.visible_text import visible
from epochal.state.messages.history_rows import Moment, RoundDetail, RoundFigures
from epochal.state.shown.explanation import ClientMedians, SpeedExplanation
from epochal.state.shown.glossary import FATES, PARTS
from epochal.view.figures.charts import PART_WORDS, BarRow, Waterfall, waterfall
from epochal.view.terminal.character_charts import letter_bar
from epochal.view.terminal.view_state import RunPicture
from epochal.view.terminal.word_wrap import Flow

COLOURS = {
    "document": "dim",
    "replica": "cyan",
    "data": "yellow",
    "train": "green",
    "encode": "magenta",
    "upload": "red",
    "check": "blue",
    "attest": "cyan",
    "download": "red",
    "merge": "blue",
}
"""Colour of each part of a client's round."""
STYLES = {PARTS[name].letter: colour for name, colour in COLOURS.items()}
"""The same by the part's letter."""
WAITS = "-"
"""Stands for time between a client's result and what it does next."""
NOTHING_YET = "No round has ended yet of which the clients are known."
NAME_CHARS = 18
FATE_CHARS = max(map(len, FATES.values()))
END_CHARS = 12
MAX_MEDIANS = 5
MAX_REASONS = 5
"""Number of clients for which the reason is shown why their work was not applied."""
MAX_AWAITED = 8
"""Number of clients of the round under way that are named."""


def round_page(picture: RunPicture, width: int) -> RenderableType:
    """Return the page of the round that is shown.

    Args:
        picture: of the run.
        width: in characters.
    """
    parts: list[RenderableType] = []
    explanation, status, moment = picture.explanation, picture.status, picture.moment
    sentence = "" if status is None or picture.is_past else status.explanation
    if explanation is not None:
        sentence = explanation.sentence
    if sentence:
        parts.append(Text(visible(sentence), style="bold"))
    if explanation is not None and explanation.unknown:
        parts.append(Text(visible(explanation.unknown), style="dim"))
    if moment is not None and moment.under_way and not _has_ended(moment, picture.shown_rows()):
        parts.append(Text(_under_way(moment)))
    detail = picture.shown_detail()
    if detail is None:
        text = "Being read…" if picture.is_past and picture.moment is None else NOTHING_YET
        parts.append(Text(text, style="dim"))
    else:
        names = _names(picture)
        drawn = waterfall(detail, names)
        parts += [_head(detail), waterfall_lines(drawn, width), _legend()]
        if len(drawn.rows) < len(detail.clients):
            parts.append(Text(drawn.note, style="dim"))
        parts += _reasons(detail, names)
    if explanation is not None and explanation.clients:
        parts += [Text(), _medians(explanation)]
    return Group(*parts)


def _names(picture: RunPicture) -> dict[str, str]:
    """Return the names that clients chose, as far as they are known."""
    names: dict[str, str] = {}
    if picture.status is not None:
        names |= {member.client_id: member.name for member in picture.status.members}
    if picture.explanation is not None:
        names |= {client.client_id: client.name for client in picture.explanation.clients}
    return names


def _who(client_id: str, name: str) -> str:
    return f"{client_id[:8]} {visible(name)}".rstrip()[:NAME_CHARS]


def _has_ended(moment: Moment, rows: Sequence[RoundFigures]) -> bool:
    """Return whether the round under way is known to have ended since: rounds are reported sooner."""
    work, last = moment.document.round, rows[-1] if rows else None
    return work is not None and last is not None and (work.step, work.attempt) <= (last.step, last.attempt)


def _under_way(moment: Moment) -> str:
    """Return how far the round under way is, and whose results it awaits."""
    work = moment.document.round
    busy = [client for client in moment.under_way if client.batches]
    awaited = [client for client in busy if client.delivered_s is None]
    step = "" if work is None else f" step {work.step}, attempt {work.attempt + 1},"
    since = "" if moment.round_s is None else f" for {moment.round_s:.1f} s:"
    came = f"{len(busy) - len(awaited)} of {len(busy)} results came"
    names = ", ".join(_who(client.client_id, client.name) for client in awaited[:MAX_AWAITED])
    more = f" and {len(awaited) - MAX_AWAITED} more" if len(awaited) > MAX_AWAITED else ""
    return f"under way:{step}{since} {came}" + (f"; awaited: {names}{more}" if names else "")


def _reasons(detail: RoundDetail, names: dict[str, str]) -> list[RenderableType]:
    """Return why clients' work was not applied, as far as it is known."""
    told = [client for client in detail.clients if client.detail]
    lines = []
    for client in told[:MAX_REASONS]:
        who = _who(client.client_id, names.get(client.client_id, client.name))
        lines.append(f"{who}: {FATES[client.fate]}: {visible(client.detail)}")
    lines += [f"… and {len(told) - MAX_REASONS} more"] if len(told) > MAX_REASONS else []
    return [Text("\n".join(lines), style="yellow")] if lines else []


def _head(detail: RoundDetail) -> Text:
    figures = detail.figures
    length_s = figures.train_s + figures.witness_s
    applied = f"{figures.applied_batches} of {figures.batches} batches applied"
    return Text(
        f"round {figures.number}: step {figures.step}, attempt {figures.attempt + 1}, {length_s:.2f} s, "
        f"{figures.results} of {figures.clients} results, {applied}. {visible(detail.reason)}"
    )


def waterfall_lines(drawn: Waterfall, width: int) -> RenderableType:
    """Return a line for each client, the slowest first: what it did when, as letters on one scale.

    Args:
        drawn: the clients, as every picture of a round has them: claims of a client stretch no scale.
        width: of the page in characters.
    """
    table = Table.grid(padding=(0, 1))
    longest_s = max((_end_of(row) for row in drawn.rows), default=0.0)
    name_chars = max(NAME_CHARS, width // 4)
    room = max(10, width - name_chars - FATE_CHARS - END_CHARS)
    for row in reversed(drawn.rows):
        bar = bar_of(row, room / longest_s if longest_s > 0 else 0.0)
        who = Text(row.label[:name_chars].ljust(name_chars))
        table.add_row(who, Text(row.note.ljust(FATE_CHARS)), bar, Text(f"{_end_of(row):.2f} s"))
    return table


def _end_of(row: BarRow) -> float:
    return max((bar.start_s + bar.length_s for bar in row.bars), default=0.0)


def bar_of(row: BarRow, scale: float) -> Text:
    """Return a client's parts of a round as letters, so many for each second, and what lies between as waits."""
    pieces, end_s = list[tuple[str, float]](), 0.0
    for bar in sorted(row.bars, key=lambda bar: bar.start_s):
        pieces += [(WAITS, bar.start_s - end_s), (PART_WORDS[bar.part].letter, bar.length_s)]
        end_s = bar.start_s + bar.length_s
    text = Text()
    for letter in letter_bar(pieces, scale):
        text.append(letter, style=STYLES.get(letter, "dim"))
    return text


def _legend() -> Flow:
    parts = [Text.assemble((part.letter, STYLES[part.letter]), (f" {part.label}", "dim")) for part in PARTS.values()]
    return Flow([*parts, Text(f"{WAITS} waits for others", style="dim")])


def _medians(explanation: SpeedExplanation) -> RenderableType:
    """Return the medians over the last rounds of the slowest clients, and of all that are known."""
    table = Table(box=None, padding=(0, 1), header_style="dim", title_justify="left")
    table.title = Text(f"medians over the last {explanation.rounds} rounds, in seconds", style="dim")
    fields = [f"{name}_s" for name in PARTS]
    table.add_column("client", no_wrap=True)
    for part in PARTS.values():
        table.add_column(part.letter, no_wrap=True, justify="right")
    for client in explanation.clients[:MAX_MEDIANS]:
        table.add_row(
            Text(_who(client.client_id, client.name)), *(_seconds(getattr(client, field)) for field in fields)
        )
    table.add_row(Text("median of all"), *(_seconds(_median(explanation.clients, field)) for field in fields))
    return table


def _median(clients: Sequence[ClientMedians], field: str) -> float | None:
    known = [value for client in clients if (value := getattr(client, field)) is not None]
    return median(known) if known else None


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
