"""The gap between two rounds: from the last result that was verified to the next local step.

It holds the decision of the outcome, the update's end, the document, the download and what is left of the outer step
after it. Beside it is what the update's bytes take on the members' links.
"""

import json
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.goodput.exchange_rows import MILLIONS, PLANNED, state
from benchmarks.goodput.reference import planned_apart
from benchmarks.goodput.shaped_run import Line, shaped_run
from epochal.coordinator.machine.instructions import Instruction
from epochal.coordinator.machine.records import Kept, replay
from epochal.coordinator.machine.run import Run
from epochal.coordinator.store.open import open_store_reader
from epochal.state.config.model_table import NgramConfig

MODELS = {10: NgramConfig(context=8, embedding=256, hidden=4_310), 50: MILLIONS[50]}
"""Models by their parameters in millions."""
MEMBERS = 2
LINE = Line(down_bytes_per_s=12.5e6, up_bytes_per_s=125e6, round_trip_s=0.04, batch_s=1.0)
"""A home's link downwards, 100 Mbit/s; upwards it does not matter here."""
PLANNED_LINK = "100mbit/1gbit 40ms"
OF_GAP = ("update", "download", "merge", "messages")
"""Parts of a planned round that lie between two rounds' local steps."""
FIRST, LAST = 3, 5
"""The first gap that counts is after this round, the last one before that."""
WITHIN_S = 300.0
BEYOND_S_PER_MILLION = 0.002
"""What a gap may take beyond its bytes: 2 s for a billion parameters."""


@dataclass
class _Times:
    """When, by step, the last result was verified and the update was made, and how large it is."""

    verified_s: dict[int, float] = field(default_factory=dict)
    made_s: dict[int, float] = field(default_factory=dict)
    size_bytes: dict[int, int] = field(default_factory=dict)
    _count: tuple[int, int] = (0, 0)

    def watch(self, run: Run, _instructions: tuple[Instruction, ...], _kept: Kept) -> None:
        if run.round is not None:
            count = run.round.number.step, len(run.round.results.verified)
            if count[1] and count != self._count:
                self._count, self.verified_s[count[0]] = count, run.clock.now_s
        for step, update in run.models.updates.items():
            self.made_s.setdefault(step, run.clock.now_s)
            self.size_bytes[step] = update.size_bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Medians of a run's gaps, in seconds: the whole, until the update was made, and what its bytes take."""

    whole_s: float
    made_s: float
    bytes_s: float


async def measured(folder: Path, millions: int) -> Gap:
    """Measure the gaps of one run. Raise `EpochalError` if it does not come about."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        async with shaped_run(Path(own), state(MODELS[millions], MEMBERS)) as run:
            await run.start_members([LINE] * MEMBERS)
            await run.began(LAST + 1, WITHIN_S)
            began = [_began_s(member.spans) for member in run.members]
        times = _Times()
        async for segment in open_store_reader(str(run.process.run_dir)).journal.history():
            replay(segment, times.watch)
    steps = range(FIRST, LAST)
    gaps = [max(one[step + 1] for one in began) - times.verified_s[step] for step in steps]
    made = [times.made_s[step] - times.verified_s[step] for step in steps]
    bytes_s = statistics.median(times.size_bytes[step] for step in steps) / LINE.down_bytes_per_s
    return Gap(statistics.median(gaps), statistics.median(made), bytes_s)


def _began_s(spans: Path) -> Mapping[int, float]:
    lines = [json.loads(line) for line in spans.read_text(encoding="utf-8").splitlines()]
    return {line["step"]: line["start_s"] for line in lines}


async def measure(folder: Path, millions: int) -> list[Figure]:
    """Measure the gap with a model of `MODELS`."""
    plan = (await planned_apart(folder, state(MODELS[millions], MEMBERS), MEMBERS, PLANNED_LINK)).plan["parts"]
    found = await measured(folder, millions)
    name = f"Gap, {millions} M parameters, {MEMBERS} members, 100 Mbit/s"
    target = f"≤ {found.bytes_s + BEYOND_S_PER_MILLION * millions:.2f} s"
    bytes_s = found.bytes_s, "what the update's bytes take"
    return [
        Figure(f"{name}: from the last result to the next local step", found.whole_s, "s", target, *bytes_s),
        Figure(f"{name}: the same", found.whole_s, "s", "", sum(plan[part] for part in OF_GAP), PLANNED),
        Figure(f"{name}: of it until the update is made", found.made_s, "s", "", plan["update"], PLANNED),
    ]
