"""The page of a round: a waterfall for each client, medians, and why the run is not faster."""

from collections.abc import Sequence
from statistics import median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from epochal.terminal.charts import letter_bar
from epochal.terminal.picture import RunPicture, end_of
from runtime.visible_text import visible
from state.explanation import ClientMedians, SpeedExplanation
from state.history import ClientFigures, RoundDetail

PARTS = (
    (".", "document_s", "waits for the document", "dim"),
    ("r", "replica_s", "replica", "cyan"),
    ("d", "data_s", "data", "yellow"),
    ("T", "train_s", "training", "green"),
    ("e", "encode_s", "encoding", "magenta"),
    ("U", "upload_s", "upload", "red"),
    ("c", "check_s", "check", "blue"),
)
"""Letter, field, name and colour of each part of a client's work, in their order."""
LATER = (
    ("a", "attest_s", "attestation", "cyan"),
    ("D", "download_s", "download", "red"),
    ("m", "merge_s", "merge", "blue"),
)
"""The same of what follows."""
WAITS = "-"
"""Stands for time between a client's result and what it does next."""
NOTHING_YET = "No round has ended yet of which the clients are known."
NAME_CHARS = 18
FATE_CHARS = 8
MAX_MEDIANS = 5
STYLES = {letter: style for letter, _, _, style in (*PARTS, *LATER)}


def round_page(picture: RunPicture, width: int) -> RenderableType:
    """Return the page of the round that is shown.

    Args:
        picture: of the run.
        width: in characters.
    """
    parts: list[RenderableType] = []
    explanation = picture.explanation
    sentence = "" if picture.status is None else picture.status.explanation
    if explanation is not None:
        sentence = explanation.sentence
    if sentence and not picture.is_past:
        parts.append(Text(visible(sentence), style="bold"))
    if explanation is not None and explanation.unknown and not picture.is_past:
        parts.append(Text(visible(explanation.unknown), style="dim"))
    detail = picture.shown_detail()
    if detail is None:
        text = "Being read…" if picture.is_past and picture.moment is None else NOTHING_YET
        parts.append(Text(text, style="dim"))
    else:
        names = _names(picture)
        parts += [_head(detail), waterfall(detail.clients, names, width), _legend()]
    if explanation is not None and explanation.clients and not picture.is_past:
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


def _head(detail: RoundDetail) -> Text:
    figures = detail.figures
    length_s = figures.train_s + figures.witness_s
    applied = f"{figures.applied_batches} of {figures.batches} batches applied"
    return Text(
        f"round {figures.number}: step {figures.step}, attempt {figures.attempt}, {length_s:.2f} s, "
        f"{figures.results} of {figures.clients} results, {applied}. {visible(detail.reason)}"
    )


def waterfall(clients: Sequence[ClientFigures], names: dict[str, str], width: int) -> RenderableType:
    """Return a line for each client, the one that ended last first: its parts as letters, on one scale.

    Args:
        clients: of a round.
        names: that they chose.
        width: of the page.
    """
    table = Table.grid(padding=(0, 1))
    ordered = sorted(clients, key=lambda client: (-end_of(client), client.client_id))
    longest_s = max((end_of(client) for client in clients), default=0.0)
    room = max(10, width - NAME_CHARS - FATE_CHARS - 10)
    for client in ordered:
        name = names.get(client.client_id, "")
        who = f"{client.client_id[:8]} {visible(name)}"[:NAME_CHARS]
        bar = client_bar(client, room / longest_s if longest_s > 0 else 0.0)
        end_s = f"{end_of(client):.2f} s"
        table.add_row(Text(who.ljust(NAME_CHARS)), Text(client.fate.ljust(FATE_CHARS)), bar, Text(end_s))
    return table


def client_bar(client: ClientFigures, scale: float) -> Text:
    """Return a client's parts of a round as letters, so many for each second."""
    pieces = [(letter, getattr(client, field) or 0.0) for letter, field, _, _ in PARTS]
    known_s = sum(seconds for _, seconds in pieces)
    attested_s = client.attested_s
    if attested_s is not None:
        attest_s = client.attest_s or 0.0
        pieces += [(WAITS, attested_s - attest_s - known_s), ("a", attest_s)]
    pieces += [(letter, getattr(client, field) or 0.0) for letter, field, _, _ in LATER[1:]]
    text = Text()
    for letter in letter_bar(pieces, scale):
        text.append(letter, style=STYLES.get(letter, "dim"))
    return text


def _legend() -> Text:
    text = Text()
    for letter, _, name, style in (*PARTS, *LATER):
        text.append(letter, style=style)
        text.append(f" {name}  ", style="dim")
    text.append(f"{WAITS} waits for others", style="dim")
    return text


def _medians(explanation: SpeedExplanation) -> RenderableType:
    """Return the medians over the last rounds of the slowest clients, and of all that are known."""
    table = Table(box=None, padding=(0, 1), header_style="dim", title_justify="left")
    table.title = Text(f"medians over the last {explanation.rounds} rounds, in seconds", style="dim")
    fields = (*PARTS, *LATER)
    table.add_column("client", no_wrap=True)
    for letter, _, _, _ in fields:
        table.add_column(letter, no_wrap=True, justify="right")
    for client in explanation.clients[:MAX_MEDIANS]:
        who = f"{client.client_id[:8]} {visible(client.name)}".rstrip()[:NAME_CHARS]
        table.add_row(Text(who), *(_seconds(getattr(client, field)) for _, field, _, _ in fields))
    table.add_row(Text("median of all"), *(_seconds(_median(explanation.clients, field)) for _, field, _, _ in fields))
    return table


def _median(clients: Sequence[ClientMedians], field: str) -> float | None:
    known = [value for client in clients if (value := getattr(client, field)) is not None]
    return median(known) if known else None


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
