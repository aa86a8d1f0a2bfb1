"""Machines of unlike speed behind unlike links, beside the sum of what each would train alone, and beside equal shares.

The model, the links and the times are in proportion to those of a model of 25 M parameters (int4: 13 MB a result).
No client bounds what it takes: what each gets follows from how fast it delivers.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.goodput import reference
from benchmarks.goodput.reference import SEQUENCE, SMALL, parameter_count
from benchmarks.goodput.shaped_run import Line, ShapedRun, run_text, shaped_run
from benchmarks.goodput.training_time import Span, mean_part

PARAMETERS = 25_000_000
TIME_SCALE = 6.0
"""What a round of a minute's training is divided by; round trips and processors' work are not, and weigh more here."""
MACHINES = ((1, 1000), (1, 19.3), (2, 139), (2, 10), (4, 518), (4, 37.3), (8, 72), (8, 268))
"""Speed and link (Mbit/s, both ways) of each client."""
BATCHES = 960
IDEAL_S = 60 / TIME_SCALE
"""Time of a round's training if all machines were busy all the time."""
ROUND_TRIP_S = 0.04
SETTLED, ROUNDS = 11, 3
"""The first round that is measured, after ten, and the number of rounds."""
EQUAL_FIRST, EQUAL_ROUNDS = 2, 2
WITHIN_S = 240.0
"""Maximum time until the rounds that are measured have passed."""


def lines() -> list[Line]:
    """Return the clients, in the order of `MACHINES`."""
    scale = parameter_count(SMALL) / PARAMETERS * TIME_SCALE
    slowest_batch_s = IDEAL_S * sum(speed for speed, _ in MACHINES) / BATCHES
    return [
        Line(
            down_bytes_per_s=mbit * 1e6 / 8 * scale,
            up_bytes_per_s=mbit * 1e6 / 8 * scale,
            round_trip_s=ROUND_TRIP_S,
            batch_s=slowest_batch_s / speed,
        )
        for speed, mbit in MACHINES
    ]


def alone_per_s() -> float:
    """Return the batches that all machines train in a second, each of them all the time: the sum of their speeds."""
    return sum(1 / line.batch_s for line in lines())


def links_allow(result_bytes: float, update_bytes: float) -> float:
    """Return the part of `alone_per_s` that is reached if nothing but training and each client's own bytes takes time.

    With all ending together, a round is longer than `IDEAL_S` by the mean time of the bytes, weighted by the speeds.
    """
    bytes_s = [result_bytes / line.up_bytes_per_s + update_bytes / line.down_bytes_per_s for line in lines()]
    lost = sum(time_s / line.batch_s for time_s, line in zip(bytes_s, lines(), strict=True))
    return IDEAL_S / (IDEAL_S + lost / alone_per_s())


def state(max_share: float) -> str:
    """Return the run's state file, with this largest part of a round for one client."""
    overrides: dict[str, Any] = {
        "config__init_min_clients": len(MACHINES),
        "config__min_clients": len(MACHINES) // 2,
        "config__global_batch_size_start": BATCHES,
        "config__global_batch_size_end": BATCHES,
        "config__max_share": max_share,
        "config__max_round_train_time": 120,
        "model__LLM__max_seq_len": SEQUENCE,
        "model__LLM__ngram": SMALL.model_dump(),
        "merge__codec": "int4",
    }
    return run_text(**overrides)


def clients_text(line: Line) -> str:
    """Return a client as `epochal plan` takes it."""
    down, up = (rate * 8 / 1000 for rate in (line.down_bytes_per_s, line.up_bytes_per_s))
    trip_ms = line.round_trip_s * 1000
    return f"1 x {down:.3f}kbit/{up:.3f}kbit {trip_ms:g}ms {SEQUENCE / line.batch_s:.3f} tokens/s"


@dataclass(frozen=True, slots=True)
class Measured:
    """What some rounds applied, as a part of what all machines would train alone, and the part of time in training."""

    speed_part: float
    busy_part: float


def applied_batches(rounds: Sequence[dict[str, Any]], steps: range) -> int:
    """Return the number of batches that were applied in the rounds of these steps."""
    return sum(row["applied_batches"] for row in rounds if row["step"] in steps)


async def _rounds(run: ShapedRun, first: int, count: int) -> Measured:
    await run.start_members(lines())
    start_s = await run.began(first, WITHIN_S)
    end_s = await run.began(first + count, WITHIN_S)
    applied = applied_batches(await run.rounds(), range(first, first + count))
    return Measured(applied / (end_s - start_s) / alone_per_s(), mean_part(run.presences(), Span(start_s, end_s)))


async def measured(folder: Path, max_share: float, first: int, count: int) -> Measured:
    """Measure rounds from a step on. Raise `EpochalError` if they do not come about."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with shaped_run(Path(own), state(max_share)) as run:
            return await _rounds(run, first, count)


async def measure(folder: Path) -> list[Figure]:
    """Measure the run as it settles, and with equal shares."""
    path = folder / "speeds.toml"
    path.write_text(state(1.0), encoding="utf-8")
    planned = await reference.planned(path, *map(clients_text, lines()))
    planned_part = 100 * float(planned.plan["tokens_per_s"]) / (SEQUENCE * alone_per_s())
    allowed = links_allow(*(planned.plan["sizes"][f"{name}_bytes"] for name in ("result", "update")))
    found = await measured(folder, 1.0, SETTLED, ROUNDS)
    equal = await measured(folder, 1 / len(MACHINES), EQUAL_FIRST, EQUAL_ROUNDS)
    name, of = "B", "% of their sum alone"
    return [
        Figure(
            f"{name}: tokens/s after ten rounds",
            *(100 * found.speed_part, of, "≥ 90 %", 100 * equal.speed_part, "equal shares, the same machines", 1),
        ),
        Figure(
            f"{name}: the same, planned",
            *(100 * found.speed_part, of, "plan ≤ 20 % off", planned_part, "`epochal plan`", 1),
        ),
        Figure(f"{name}: what training and the links' bytes allow", 100 * allowed, of, digits=1),
        Figure(
            f"{name}: clients' time that is training",
            *(100 * found.busy_part, "%", "", 100 * equal.busy_part, "equal shares, the same machines", 1),
        ),
    ]
