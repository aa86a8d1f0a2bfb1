"""What a member receives for each parameter of the model, and what a round of a large one takes in time and memory.

Results are noise, so that their bytes are as many as those of a trained model, and its memory is touched.
"""

import itertools
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.goodput.reference import parameter_count, planned_apart
from benchmarks.goodput.shaped_run import Line, ShapedRun, run_text, shaped_run
from benchmarks.process_usage import memory_bytes
from epochal.state.config.model_table import NgramConfig

MB = 1e6
FEW = NgramConfig(context=8, embedding=64, hidden=2580)
"""Two million parameters: a result is a megabyte, beside which messages are few."""
MILLIONS = {
    50: NgramConfig(context=8, embedding=512, hidden=11_450),
    100: NgramConfig(context=8, embedding=1024, hidden=11_800),
}
MEMBERS = ((4, 3, 2), (16, 3, 2), (64, 2, 1))
"""Number of members, first round that is counted, and number of rounds."""
LARGE = ((100, 2), (50, 4), (50, 8), (50, 16))
"""Millions of parameters, and members, of the rounds that are timed."""
WARM, TIMED = 3, 2
WITHIN_S = 240.0
PLANNED = "`epochal plan`, a machine each"
PEAK = "VmHWM"
PEAK_ANEW = "5"


def state(model: NgramConfig, members: int) -> str:
    """Return the state file of a run of so many members with this model."""
    overrides: dict[str, Any] = {
        "config__init_min_clients": members,
        "config__min_clients": members,
        "config__global_batch_size_start": members,
        "config__global_batch_size_end": members,
        "model__LLM__max_seq_len": 256,
        "model__LLM__ngram": model.model_dump(),
        "merge__codec": "int4",
    }
    return run_text(**overrides)


async def received_bytes(folder: Path, members: int, first: int, rounds: int) -> list[float]:
    """Return the bytes that each member receives in a round, of `FEW` parameters, counted by its relay."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with shaped_run(Path(own), state(FEW, members)) as run:
            await run.start_members([Line()] * members)
            await run.began(first, WITHIN_S)
            before = [member.link.down.passed_bytes for member in run.members]
            await run.began(first + rounds, WITHIN_S)
            after = [member.link.down.passed_bytes for member in run.members]
    return [(late - early) / rounds for early, late in zip(before, after, strict=True)]


@dataclass(frozen=True, slots=True)
class Timed:
    """Rounds of a large model: time of one, and the peaks of memory in bytes, of the client that had most."""

    round_s: float
    client_bytes: int
    coordinator_bytes: int


async def timed(folder: Path, model: NgramConfig, members: int) -> Timed:
    """Measure rounds on links without limits, and without relays. Raise `EpochalError` if they do not come about."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with shaped_run(Path(own), state(model, members)) as run:
            coordinator = run.process.child.process.pid
            _begin_peak_anew(coordinator)  # without making the first model
            for _ in range(members):
                await run.start_member(Line(), is_relayed=False)
            return await _timed_rounds(run, coordinator)


def _begin_peak_anew(process: int) -> None:
    Path(f"/proc/{process}/clear_refs").write_text(PEAK_ANEW, encoding="utf-8")


async def _timed_rounds(run: ShapedRun, coordinator: int) -> Timed:
    starts = [await run.began(step, WITHIN_S) for step in range(WARM, WARM + TIMED + 1)]
    peaks = [memory_bytes(PEAK, member.child.process.pid) for member in run.members]
    times = [later - earlier for earlier, later in itertools.pairwise(starts)]
    return Timed(statistics.median(times), max(peaks), memory_bytes(PEAK, coordinator))


async def measure_bytes(folder: Path) -> list[Figure]:
    """Measure what members of runs of every number receive."""
    parameters = parameter_count(FEW)
    figures = []
    for members, first, rounds in MEMBERS:
        plan = (await planned_apart(folder, state(FEW, members), members)).plan
        beside = plan["groups"][0]["received_bytes"] / parameters, PLANNED
        found = await received_bytes(folder, members, first, rounds)
        name, value = f"C, {members} members: a member receives in a round", statistics.fmean(found) / parameters
        figures.append(Figure(name, value, "bytes a parameter", "≤ 0.53", *beside, digits=3))
    return figures


async def measure_round(folder: Path, millions: int, members: int) -> list[Figure]:
    """Measure rounds of a large model; millions of parameters, and members, are those of `LARGE`."""
    plan = await planned_apart(folder, state(MILLIONS[millions], members), members)
    found = await timed(folder, MILLIONS[millions], members)
    name, model_mb = f"C, {millions} M x {members}", 4.0 * millions
    return [
        Figure(f"{name}: a round", found.round_s, "s", "", plan.round_s, PLANNED),
        Figure(
            f"{name}: a client's peak",
            *(found.client_bytes / MB, "MB", f"≤ {3.2 * model_mb + 250:,.0f} MB", model_mb, "M in float32", 1),
        ),
        Figure(f"{name}: the coordinator's peak", found.coordinator_bytes / MB, "MB", "≤ 400 MB", digits=1),
    ]
