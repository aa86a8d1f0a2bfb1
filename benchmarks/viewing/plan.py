"""`epochal plan`: what it predicts beside real runs behind limited links, and how long planning takes."""

import statistics
import time
from pathlib import Path

from benchmarks.figures import Figure
from epochal.tools.plan.planner import plan_run
from epochal.tools.plan.plans import PlanOptions
from epochal.tools.plan.scenario import parse_clients
from tests.integration.test_plan_holds import KINDS, limited_run, measured, planned
from tests.support.data.states import state_file

CLIENTS = (10, 1_000, 10_000)
LINE = "100mbit/20mbit 40ms 90k tokens/s"


async def measure(folder: Path) -> list[Figure]:
    """Return the rounds of a real run beside the planned ones, and the times of planning."""
    return [*await _real(folder), *map(_planning, CLIENTS)]


async def _real(folder: Path) -> list[Figure]:
    figures = []
    async with limited_run(folder) as limited:
        state = limited.run.state_path.read_text()
        for name, kind in KINDS.items():
            expected = planned(state, kind)
            real = (await measured(limited, kind, expected.round_s)).rounds_s
            told, who = f"{name}: a round as planned", f"3 real clients, median of {len(real)} rounds"
            figures.append(Figure(told, expected.round_s, "s", "≤ 20 % off", statistics.median(real), who))
    return figures


def _planning(count: int) -> Figure:
    sizes = dict.fromkeys(("config__global_batch_size_start", "config__global_batch_size_end"), count)
    state = state_file(config__init_min_clients=count, config__min_clients=count, **sizes)
    began_s = time.perf_counter()
    plan_run(state, [parse_clients(f"{count} x {LINE}")], PlanOptions())
    return Figure(f"planning a run of {count:,} clients", time.perf_counter() - began_s, "s")
