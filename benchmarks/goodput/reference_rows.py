"""Sixteen home machines and a model of a milliard parameters: as `epochal init` makes the run, and as its plan advises.

The run is played by real processes, in proportion (`benchmarks/goodput/reference.py`).
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.goodput import reference
from benchmarks.goodput.reference import Planned, Scaled
from benchmarks.goodput.shaped_run import Cores, Line, run_text, shaped_run
from benchmarks.goodput.training_time import Span, percentile, training_parts
from epochal.tools.quality import shown_loss

CLIENTS = 8
ROUND_S = 14.0
"""Time of a round that the reference's is divided down to; with fewer clients it may be less."""
FIRST, ROUNDS = 3, 3
"""The first round that is measured, and the number of rounds.

In the first one links change and clients join. The second one nobody trains ahead (`merge.delay`), since nobody was
proven as its work was promised.
"""
PATIENCE = 6
"""A round may take so many times as long as planned before the measurement is given up."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How the reference is run.

    Attributes:
        name: in the figures.
        target: for the part of the time that is training.
        planned: the reference's own plan, of all its clients.
        scaled: the run in its proportions.
        changes: the advice that was taken.
    """

    name: str
    target: str
    planned: Planned
    scaled: Scaled
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a kind.

    Attributes:
        planned: the plan of the very run that was measured.
        parts: of each client's time, the part that was training.
        round_s: mean time of a round.
        busy_part: part of the machine's processor time that was used, by whatever.
    """

    planned: Planned
    parts: tuple[float, ...]
    round_s: float
    busy_part: float


async def kinds(folder: Path) -> list[Kind]:
    """Return the reference as `epochal init` makes it, and with its plan's advice."""
    path = await reference.proposed(folder / "reference")
    first, advised, changes = await reference.with_advice(path)
    return [
        Kind("as `init` makes it", "≥ 75 %", first, reference.scaled(first, ROUND_S)),
        Kind("with what `plan` advises", "≥ 90 %", advised, reference.scaled(advised, ROUND_S), tuple(changes)),
    ]


def line_of(scaled: Scaled) -> Line:
    """Return a client of a scaled run."""
    return Line(scaled.down_bytes_per_s, scaled.up_bytes_per_s, reference.ROUND_TRIP_S, scaled.batch_s)


async def measured(kind: Kind, folder: Path, clients: int = CLIENTS) -> Measured:
    """Run a kind with so many clients. Raise `EpochalError` if its rounds do not come about."""
    state = folder / "scaled.toml"
    state.write_text(run_text(**kind.scaled.overrides(clients)), encoding="utf-8")
    planned = await reference.planned(state, kind.scaled.clients(clients))
    within_s = PATIENCE * max(planned.round_s, 1.0) * (ROUNDS + FIRST)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with shaped_run(Path(own), state.read_text(encoding="utf-8")) as run:
            await run.start_members([line_of(kind.scaled)] * clients)
            start_s, before = await run.began(FIRST, within_s), Cores.now()
            end_s = await run.began(FIRST + ROUNDS, within_s)
            busy_part = Cores.now().busy_part_since(before)
            parts = training_parts(run.presences(), Span(start_s, end_s))
    return Measured(planned, tuple(parts), (end_s - start_s) / ROUNDS, busy_part)


def figures_of(kind: Kind, found: Measured) -> list[Figure]:
    """Return the figures of a kind."""
    planned = 100 * found.planned.training_part
    says, least = "`epochal plan`", f"`epochal plan`; p5 of the clients {100 * percentile(found.parts, 5):.1f} %"
    price = f"{shown_loss(kind.planned.plan['loss'])} beside one machine"
    whole = f"planned for all {reference.CLIENTS}, not measured: {kind.planned.settings}; {price}"
    return [
        Figure(
            f"A, {kind.name}: clients' time that is training, median",
            *(100 * percentile(found.parts, 50), "%", kind.target, planned, least, 1),
        ),
        Figure(f"A, {kind.name}: a round", found.round_s, "s", "plan ≤ 20 % off", found.planned.round_s, says),
        Figure(
            f"A, {kind.name}: the reference itself, training",
            *(100 * kind.planned.training_part, "%", kind.target, None, whole, 1),
        ),
        Figure(f"A, {kind.name}: processors busy meanwhile", 100 * found.busy_part, "%", "≤ 60 %", digits=0),
    ]
