"""Thirty home machines that come and go: the part of their time that is training, beside a run in which all stay.

Who comes and goes is drawn beforehand from a seed: times of stay are exponential, so that nobody's past says when it
leaves. A client's time is that of its process, from its start to its end: waiting for its first round counts.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure
from benchmarks.goodput.reference_rows import FIRST, Kind, Measured, line_of
from benchmarks.goodput.shaped_run import ShapedRun, run_text, shaped_run
from benchmarks.goodput.training_time import Span, mean_part
from epochal.state.errors import EpochalError

CLIENTS = 30
MEAN_STAY_ROUNDS, MEAN_GAP_ROUNDS = 20, 1
"""Mean time that a client stays, and that passes until another one takes its place, in rounds as planned."""
VANISHING_PART = 0.25
"""Part of those that leave which vanish without withdrawing."""
SEED = 29
WATCHED_S = 120.0
CLIENT_TIMEOUT_S = 10
BEGIN_S = 240.0
"""Maximum time until the first round begins that is measured."""


@dataclass(frozen=True, slots=True)
class Stay:
    """One client's stay, in seconds from the beginning; `end_s` is None for one that stays to the end.

    Attributes:
        vanishes: whether it ends without withdrawing.
    """

    start_s: float
    end_s: float | None
    vanishes: bool


def trace(count: int, mean_stay_s: float, mean_gap_s: float, length_s: float, seed: int) -> list[list[Stay]]:
    """Return the stays in each of `count` places, one after the other; all places are taken at the beginning."""
    draw = np.random.default_rng(seed)
    places = []
    for _ in range(count):
        stays: list[Stay] = []
        at_s = 0.0
        while at_s < length_s:
            end_s = at_s + float(draw.exponential(mean_stay_s))
            vanishes = bool(draw.random() < VANISHING_PART)
            stays.append(Stay(at_s, end_s if end_s < length_s else None, vanishes))
            at_s = end_s + float(draw.exponential(mean_gap_s))
        places.append(stays)
    return places


def departures(places: Sequence[Sequence[Stay]]) -> int:
    """Return how many clients leave."""
    return sum(stay.end_s is not None for stays in places for stay in stays)


async def _play(run: ShapedRun, kind: Kind, place: int, stays: Sequence[Stay], began_s: float) -> None:
    """Let the clients of one place come and go; the first one is there."""
    loop = asyncio.get_running_loop()
    member = run.members[place]
    for stay in stays:
        await asyncio.sleep(began_s + stay.start_s - loop.time())
        if stay.start_s:
            member = await run.start_member(line_of(kind.scaled), is_shaped=True)
        if stay.end_s is None:
            return
        await asyncio.sleep(began_s + stay.end_s - loop.time())
        await run.end_member(member, vanishes=stay.vanishes)


@dataclass(frozen=True, slots=True)
class Churned:
    """What was measured: the part of all clients' time that was training, the rounds, and who came and went."""

    part: float
    rounds: int
    departures: int


async def churned(kind: Kind, folder: Path, round_s: float) -> Churned:
    """Run a kind with clients that come and go, by the time of a round as planned."""
    places = trace(CLIENTS, MEAN_STAY_ROUNDS * round_s, MEAN_GAP_ROUNDS * round_s, WATCHED_S, SEED)
    overrides = kind.scaled.overrides(CLIENTS) | {"config__client_timeout_s": CLIENT_TIMEOUT_S}
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with shaped_run(Path(own), run_text(**overrides)) as run:
            await run.start_members([line_of(kind.scaled)] * CLIENTS)
            start_s = await run.began(FIRST, BEGIN_S)
            async with asyncio.TaskGroup() as tasks:
                began_s = asyncio.get_running_loop().time()
                for place, stays in enumerate(places):
                    tasks.create_task(_play(run, kind, place, stays, began_s))
                tasks.create_task(asyncio.sleep(WATCHED_S))
            last = max(run.round_starts_s)
            window = Span(start_s, run.round_starts_s[last])
            if last == FIRST:
                raise EpochalError(f"no round ended within {WATCHED_S:g} s")
            return Churned(mean_part(run.presences(), window), last - FIRST, departures(places))


async def measure(kind: Kind, staying: Measured, folder: Path) -> list[Figure]:
    """Measure a kind with clients that come and go, beside those of row A, which stay."""
    found = await churned(kind, folder, staying.planned.round_s)
    steady = 100 * sum(staying.parts) / len(staying.parts)
    beside = (
        f"row A's clients, which stay (`epochal plan`: {100 * staying.planned.training_part:.1f}); of these, "
        f"{found.departures} left in {found.rounds} rounds"
    )
    name = "E: clients' time that is training"
    return [Figure(name, 100 * found.part, "%", "≥ 0.85 x", steady, beside, 1)]
