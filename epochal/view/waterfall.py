"""A round client by client, as bars on one scale: plots, reports and the terminal draw the same ones."""

import math
from dataclasses import dataclass

from epochal.state.messages.history_rows import ClientFigures, RoundDetail
from epochal.state.shown.explanation import shown_member
from epochal.state.shown.glossary import FATES, PARTS
from epochal.state.text.visible import visible

MAX_WATERFALL_CLIENTS = 40
"""Maximum number of clients in the waterfall: those whose results came last."""
MAX_LABEL_CHARS = 48
PART_NAMES = tuple(PARTS)
"""Names of the parts of a client's round, in their order."""
PART_WORDS = tuple(PARTS.values())
"""The same, with their letters and labels."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a row: from `start_s`, for `length_s` seconds; `part` is a place in `PART_NAMES`."""

    start_s: float
    length_s: float
    part: int


@dataclass(frozen=True, slots=True)
class BarRow:
    """One client's bars. `note` is the outcome of its work."""

    label: str
    note: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Waterfall:
    """A round, client by client.

    Attributes:
        note: says what is seen, for who cannot see it.
        ends_s: length of the round in seconds.
    """

    title: str
    note: str
    rows: tuple[BarRow, ...]
    ends_s: float


def waterfall(detail: RoundDetail, names: dict[str, str]) -> Waterfall:
    """Return a round as bars, the clients in the order in which their results came.

    Args:
        detail: the round.
        names: that clients chose, by client.
    """
    figures = detail.figures
    ends_s = figures.train_s + figures.witness_s
    ordered = sorted(detail.clients, key=lambda one: (_late(one), one.client_id))
    shown = ordered[-MAX_WATERFALL_CLIENTS:]
    rows = tuple(
        BarRow(
            shortened(shown_member(one.client_id, names.get(one.client_id, one.name))),
            FATES[one.fate],
            _bars(one, ends_s),
        )
        for one in shown
    )
    left = f", the {len(shown)} slowest of {len(ordered)} clients" if len(shown) < len(ordered) else ""
    return Waterfall(
        f"Round {figures.number} (step {figures.step}), client by client",
        f"what each client did when in a round of {ends_s:.3g} s{left}",
        rows,
        ends_s,
    )


def _late(client: ClientFigures) -> float:
    return math.inf if client.delivered_s is None else client.delivered_s


def _bars(client: ClientFigures, ends_s: float) -> tuple[Bar, ...]:
    """Return what a client did: until its result was there one after the other, then its attestation, then the rest.

    A client's own times only divide what the coordinator saw: nothing before its result lies behind that, and nothing
    after the round is longer than the round, whatever it claims.
    """
    at_s, latest_s, bars = 0.0, ends_s if client.delivered_s is None else client.delivered_s, list[Bar]()
    for part, name in enumerate(PART_NAMES):
        length_s = max(0.0, getattr(client, f"{name}_s") or 0.0)
        if name == "attest":
            attested_s = min(client.attested_s or 0.0, ends_s)
            start_s = max(0.0, attested_s - length_s)
            length_s = attested_s - start_s
            at_s, latest_s = ends_s, 2 * ends_s
        else:
            start_s, length_s = at_s, min(length_s, max(0.0, latest_s - at_s))
            at_s += length_s
        if length_s > 0:
            bars.append(Bar(start_s, length_s, part))
    return tuple(bars)


def shortened(text: str) -> str:
    """Return text from another machine as a label: on one line, with what a terminal would obey as escapes."""
    shown = visible(text)
    return shown if len(shown) <= MAX_LABEL_CHARS else shown[: MAX_LABEL_CHARS - 1] + "…"
