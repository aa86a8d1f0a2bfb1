"""The pictures of "how it works", drawn from what the program does: `docs/picture-*.svg`.

The rule kept here: a picture holds all that it shows, fonts excepted, and is legible on light and dark pages.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from epochal.coordinator.machine.handle import PHASES

STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1b1f24; }
.small { font-size: 12px; }
.over { font-size: 12px; paint-order: stroke; stroke: #ffffff; stroke-width: 5px; }
.paper { fill: #ffffff; }
.box { fill: #eef2ff; stroke: #4353b3; stroke-width: 1.5; rx: 8px; }
.note { fill: #fff7e0; stroke: #b8860b; }
.line { fill: none; stroke: #4b5563; stroke-width: 1.5; }
.life { stroke: #9aa3af; stroke-dasharray: 4 4; }
.number { fill: #4353b3; }
.inverse { fill: #ffffff; font-size: 11px; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  text { fill: #e5e7eb; }
  .paper { fill: #16181d; }
  .box { fill: #232a4d; stroke: #8f9cff; }
  .note { fill: #3a3217; stroke: #d9b650; }
  .line { stroke: #9aa3af; }
  .number { fill: #8f9cff; }
  .inverse { fill: #16181d; }
  .over { stroke: #16181d; }
}
"""
ARROW = (
    '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="#6b7280"/></marker></defs>'
)
PHASE_PLACES = {
    "Uninitialized": (40, 20),
    "WaitingForMembers": (40, 130),
    "Warmup": (300, 130),
    "RoundTrain": (540, 130),
    "RoundWitness": (540, 280),
    "Cooldown": (300, 280),
    "Paused": (40, 280),
    "Finished": (300, 400),
}
"""Upper left corner of each phase's box."""
BOX = (160, 44)
PHASE_PATHS = {
    ("Uninitialized", "WaitingForMembers"): ("M120 64V127", (120, 95)),
    ("WaitingForMembers", "Warmup"): ("M200 142H297", (248, 142)),
    ("Warmup", "WaitingForMembers"): ("M300 164H203", (252, 164)),
    ("Warmup", "RoundTrain"): ("M460 152H537", (496, 152)),
    ("RoundTrain", "RoundWitness"): ("M600 174V277", (600, 225)),
    ("RoundWitness", "RoundTrain"): ("M650 280V177", (650, 225)),
    ("RoundWitness", "Cooldown"): ("M540 302H463", (502, 302)),
    ("Cooldown", "WaitingForMembers"): ("M330 280 192 177", (296, 255)),
    ("Cooldown", "Paused"): ("M300 302H203", (252, 302)),
    ("Cooldown", "Finished"): ("M400 324V397", (400, 360)),
    ("WaitingForMembers", "Paused"): ("M80 174V277", (80, 225)),
    ("Warmup", "Paused"): ("M330 174 192 277", (296, 199)),
    ("WaitingForMembers", "Finished"): ("M40 152H16V432H297", (90, 432)),
    ("Paused", "WaitingForMembers"): ("M130 280V177", (130, 225)),
    ("Finished", "WaitingForMembers"): ("M300 412H26V162H37", (200, 412)),
}
"""Path of each transition's arrow, and the position of its number."""
ACTORS = (("Coordinator", 110), ("Client", 370), ("Data provider", 610))
MESSAGES = (
    (0, 1, "run document: RoundTrain, step, seed, digests of roster and work list"),
    (1, 1, "computes its part of the work list: the same answer on every machine"),
    (1, 2, "asks for exactly these samples"),
    (2, 1, "tokens"),
    (1, 1, "trains for some local steps; result = start − end"),
    (1, 0, "SHA-256 of the result, then its bytes"),
    (0, 0, "checks the bytes; only a valid result counts"),
    (0, 0, "adds the results up as they are verified"),
    (1, 0, "a witness attests which results came in time, and which model it holds"),
    (0, 1, "next run document, with the outcome of this round, then its update"),
    (1, 1, "fetches and applies the update: the same model everywhere"),
)
"""A round: from, to, and what."""


def phase_conditions() -> str:
    """Return the numbered transitions of the picture of the phases as a table."""
    rows = [f"| {number} | {source} → {goal} | {condition} |" for number, source, goal, condition in _transitions()]
    return "\n".join(["| arrow | from → to | when |", "|---|---|---|", *rows])


def pictures() -> dict[str, str]:
    """Return every picture by the name of its file."""
    return {"picture-overview.svg": _overview(), "picture-phases.svg": _phases(), "picture-round.svg": _round()}


@dataclass(frozen=True, slots=True)
class _Text:
    x: float
    y: float
    text: str
    anchor: str = "middle"
    kind: str = ""

    def __str__(self) -> str:
        kind = f' class="{self.kind}"' if self.kind else ""
        return f'<text x="{self.x:g}" y="{self.y:g}" text-anchor="{self.anchor}"{kind}>{escape(self.text)}</text>'


def _transitions() -> Iterator[tuple[int, str, str, str]]:
    for number, (source, goal, condition) in enumerate(PHASES.conditions(), 1):
        yield number, source, goal, condition


def _svg(width: int, height: int, title: str, parts: Iterator[object]) -> str:
    body = "\n".join(map(str, parts))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{escape(title)}</title><style>{STYLE}</style>{ARROW}\n'
        f'<rect class="paper" width="{width}" height="{height}"/>\n{body}\n</svg>\n'
    )


def _box(x: float, y: float, width: float, height: float, *lines: str, kind: str = "box") -> Iterator[object]:
    yield f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>'
    first = y + height / 2 + 5 - (len(lines) - 1) * 9
    for number, line in enumerate(lines):
        yield _Text(x + width / 2, first + 18 * number, line, kind="small" if number else "")


def _line(path: str, kind: str = "line") -> str:
    return f'<path class="{kind}" d="{path}" marker-end="url(#end)"/>'


def _phases() -> str:
    def parts() -> Iterator[object]:
        for name, (x, y) in PHASE_PLACES.items():
            yield from _box(x, y, *BOX, name)
        for number, source, goal, _ in _transitions():
            path, (x, y) = PHASE_PATHS[source, goal]
            yield _line(path)
            yield f'<circle class="number" cx="{x}" cy="{y}" r="9"/>'
            yield _Text(x, y + 4, str(number), kind="inverse")

    return _svg(720, 460, "The phases of a run and the transitions between them", parts())


def _round() -> str:
    step, top = 46, 70
    height = top + step * len(MESSAGES) + 20

    def parts() -> Iterator[object]:
        for name, x in ACTORS:
            yield f'<path class="life" d="M{x} 54V{height - 10}"/>'
            yield from _box(x - 75, 14, 150, 40, name)
        for number, (source, goal, text) in enumerate(MESSAGES):
            y, (start, end) = top + step * number + 20, (ACTORS[source][1], ACTORS[goal][1])
            if source == goal:
                width = 6.4 * len(text) + 20
                left = min(max(start - width / 2, 8), 720 - width - 8)
                yield from _box(left, y - 12, width, 28, "", kind="note")
                yield _Text(left + width / 2, y + 6, text, kind="small")
            else:
                yield _line(f"M{start} {y + 6}H{end - 3 if end > start else end + 3}")
                left = min(max((start + end) / 2, 3.4 * len(text) + 8), 720 - 3.4 * len(text))
                yield _Text(left, y, text, kind="over")

    return _svg(720, height, "What is sent in one round, from top to bottom", parts())


def _overview() -> str:
    def parts() -> Iterator[object]:
        yield from _box(20, 96, 150, 48, "state.toml", "describes the run")
        yield from _box(250, 84, 190, 72, "Coordinator", "holds the run: journal,", "results, checkpoints")
        yield from _box(250, 226, 190, 48, "Data", "files, HTTP, buckets, TCP")
        yield _line("M170 120H247")
        for number, y in enumerate((16, 92, 168), 1):
            yield from _box(640, y, 170, 56, f"Client {number}", "GPU or CPU, anywhere")
            yield _line(f"M440 {104 + 8 * number}L637 {y + 18}")
            yield _line(f"M640 {y + 32}L443 {112 + 8 * number}")
            yield _line(f"M440 {240 + 8 * number}L637 {y + 46}")
        yield _Text(20, 30, "To the clients: what to do, and one update a round.", "start", "small")
        yield _Text(20, 48, "Back: one result of each client in a round.", "start", "small")
        yield _Text(20, 254, "Exactly the assigned samples", "start", "small")

    return _svg(830, 290, "A coordinator, the clients of a run, and the data", parts())
