"""`python -m benchmarks goodput`: how much of the members' time is training, behind links as people have them.

Its rows are chosen by name: `goodput-reference`, `goodput-speeds`, `goodput-exchange`, `goodput-rounds`, `goodput-gap`,
`goodput-churn` and `goodput-members`; `goodput` is all of them. `python -m benchmarks.goodput.page ROW…` measures rows
and keeps them in `before.json`, with commit and machine: the figures that the page shows as those of before.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, show
from benchmarks.goodput import churn_rows, exchange_rows, gap_rows, member_rows, reference, reference_rows, speed_rows
from benchmarks.plots import line_plot
from epochal.state.errors import EpochalError

KEPT = Path(__file__).parent / "before.json"
LETTERS = {
    "reference": "A",
    "speeds": "B",
    "exchange": "C",
    "rounds": "C",
    "gap": "Gap",
    "churn": "E",
    "members": "Members",
}
ROWS = tuple(LETTERS)
FAILED = "not measured"
WHOLE_S, ROW_S = 870.0, 420.0
"""Maximum time of all rows together, and of one: with its start and its end, the whole takes a quarter of an hour."""
NOTES = (
    "Clients and coordinator are real processes. Each client reaches the coordinator through a relay that bounds bytes "
    "a second each way and delays them by half of a round trip, without network namespaces, which not every machine "
    "allows. Its trainer computes nothing and takes a set time.",
    f"**A** is {reference.CLIENTS} home machines (100/20 Mbit/s, 40 ms, 8,000 tokens/s) with a Llama of "
    f"1 B parameters, played by {reference_rows.CLIENTS} clients with a model of half a million: links and times are "
    f"scaled so that a round takes about {reference_rows.ROUND_S:g} s; round trips are not, and weigh more here. There "
    "are no checkpoints. Where processors were busy, the row measured the machine.",
    f"**B** has {len(speed_rows.MACHINES)} clients of speeds 1 : 2 : 4 : 8 behind links of 10 to 1000 Mbit/s, with "
    f"`max_share = 1`. A minute's training takes {speed_rows.IDEAL_S:g} s here. With equal shares "
    f"(`max_share = 1/{len(speed_rows.MACHINES)}`) the slowest ones decide.",
    "**C** counts all that a client's relay passes to it; rounds and memory, of millions of parameters x members, are "
    "measured without relays. **Gap** (`python -m benchmarks goodput-gap`) is the time from the last verified result "
    "of a round to the first local step of the next one, where coordinator and clients share two cores: making an "
    "update of a billion parameters takes 10 s of processor, applying it 7 s, on up to eight. In "
    f"**E** {churn_rows.CLIENTS} clients come and go, with a "
    f"mean stay of {churn_rows.MEAN_STAY_ROUNDS} rounds; a quarter of those that leave vanish. Who joins loses about "
    "two rounds: until checkpoint and updates are there, and while its part doubles from half of an equal one. "
    "Training that is under way as a measurement ends counts. **Members** are raw clients in one process, "
    "which ask for their part of each outcome and fetch its update, as clients do.",
    "What the choices cost in loss is [measured apart](benchmarks-codecs.md).",
)
"""What the page says of the figures."""


@dataclass(frozen=True, slots=True)
class Before:
    """Figures that were measured earlier, by name, with the commit and the machine that they are of."""

    commit: str
    machine: str
    date: str
    figures: Mapping[str, Mapping[str, Any]]

    @classmethod
    def kept(cls) -> "Before | None":
        """Return what is kept; None if nothing is."""
        return cls(**json.loads(KEPT.read_text(encoding="utf-8"))) if KEPT.exists() else None

    def cell(self, name: str) -> str:
        """Return the figure of this name in words; "" if there is none."""
        found = self.figures.get(name)
        if found is None:
            return ""
        if found["value"] is None:
            return f"not measured: {found['why']}"
        return f"{found['value']:,.{found['digits']}f} {found['unit']}"


def before_table(figures: Sequence[Figure], before: Before | None) -> str:
    """Return the part of the page that shows what the same figures were before."""
    if before is None:
        return "## Before\n\nNo earlier figures are kept."
    lines = [
        "## Before",
        "",
        f"The same rows at commit {before.commit}, {before.date}, on {before.machine}; the others were not measured "
        "there. A member fetched every other one's result: 0.52 bytes a parameter for each, which took 44 ms of the "
        "coordinator's processor a member and round with 100 real clients, and 86 ms with 200.",
        "",
        "| figure | before |",
        "|---|---|",
        *(f"| {one.name} | {cell} |" for one in figures if (cell := before.cell(one.name))),
    ]
    return "\n".join(lines)


def plots(figures: Sequence[Figure], before: Before | None) -> dict[str, str]:
    """Return the plots of what a member receives and costs, by the number of members; {} without such figures."""
    found = {}
    now = {one.name: one.value for one in figures}
    then = {name: one["value"] for name, one in before.figures.items()} if before else {}
    bytes_of = [(count, f"C, {count} members: a member receives in a round") for count, *_ in exchange_rows.MEMBERS]
    cost_of = [(count, member_rows.name_of(count)) for count in member_rows.COUNTS]
    kinds = {"goodput-bytes": (bytes_of, "bytes a parameter"), "goodput-members": (cost_of, "ms of processor")}
    for plot, (names, unit) in kinds.items():
        lines = {
            label: [(float(count), value) for count, name in names if (value := values.get(name)) is not None]
            for label, values in (("now", now), ("before", then))
        }
        lines = {label: points for label, points in lines.items() if points}
        if "now" in lines:
            found[plot] = line_plot(lines, "members", f"{unit}, each in a round", "logarithmic")
    return found


@dataclass(frozen=True, slots=True)
class Budget:
    """The time of a measurement, from its start."""

    began_s: float

    def left_s(self) -> float:
        """Return the seconds that all rows still have."""
        return self.began_s + WHOLE_S - time.monotonic()

    async def row(self, row: str, work: Coroutine[Any, Any, list[Figure]]) -> list[Figure]:
        """Return a row's figures; of one that fails, a figure that says why, so that it costs the page no other row."""
        began_s, within_s = time.monotonic(), max(0.0, min(ROW_S, self.left_s()))
        try:
            async with asyncio.timeout(within_s):
                return await work
        except TimeoutError:
            why = f"it took longer than {within_s:.0f} s"
        except (EpochalError, OSError) as error:
            why = " ".join(str(error).split())[:300]
        finally:
            sys.stderr.write(f"{LETTERS[row]}: {time.monotonic() - began_s:.0f} s\n")
        return [Figure(f"{LETTERS[row]}: {FAILED}", None, "", baseline_name=why)]


async def _reference_and_churn(rows: Sequence[str], folder: Path, budget: Budget) -> list[Figure]:
    """Measure row A; and row E, which is beside A's clients with what the plan advises."""
    kinds: list[reference_rows.Kind] = []
    staying: dict[str, reference_rows.Measured] = {}

    async def plan() -> list[Figure]:
        kinds.extend(await reference_rows.kinds(folder))
        return []

    async def run(kind: reference_rows.Kind) -> list[Figure]:
        staying[kind.name] = await reference_rows.measured(kind, folder)
        return reference_rows.figures_of(kind, staying[kind.name])

    figures = await budget.row("reference", plan())
    for kind in kinds if "reference" in rows else kinds[-1:]:
        found = await budget.row("reference", run(kind))
        figures += found if "reference" in rows or kind.name not in staying else []
    if "churn" in rows and kinds and kinds[-1].name in staying:
        figures += await budget.row("churn", churn_rows.measure(kinds[-1], staying[kinds[-1].name], folder))
    return figures


async def _measured(rows: Sequence[str], folder: Path, budget: Budget) -> list[Figure]:
    figures: list[Figure] = []
    if "reference" in rows or "churn" in rows:
        figures += await _reference_and_churn(rows, folder, budget)
    if "speeds" in rows:
        figures += await budget.row("speeds", speed_rows.measure(folder))
    if "exchange" in rows:
        figures += await budget.row("exchange", exchange_rows.measure_bytes(folder))
    if "rounds" in rows:
        for large in exchange_rows.LARGE:
            figures += await budget.row("rounds", exchange_rows.measure_round(folder, *large))
    if "gap" in rows:
        for millions in gap_rows.MODELS:
            figures += await budget.row("gap", gap_rows.measure(folder, millions))
    return figures


def measure(*rows: str) -> tuple[list[Figure], dict[str, str], str]:
    """Measure rows, of `ROWS`; return the figures, the plots by name, and the table of what was measured before."""
    budget = Budget(time.monotonic())
    with tempfile.TemporaryDirectory(prefix="epochal-bench-", ignore_cleanup_errors=True) as folder:
        figures = asyncio.run(_measured(rows, Path(folder), budget))
    if "members" in rows:
        figures += member_rows.measure(budget.left_s)
    before = Before.kept()
    return figures, plots(figures, before), before_table(figures, before)


def named() -> dict[str, Callable[[], tuple[list[Figure], dict[str, str], str]]]:
    """Return the benchmarks of this module by name."""
    return {"goodput": partial(measure, *ROWS), **{f"goodput-{row}": partial(measure, row) for row in ROWS}}


def keep(figures: Sequence[Figure]) -> None:
    """Keep figures as those of before, with the commit and the machine; those of other rows stay."""
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    kept = Before.kept()
    found = dict(kept.figures) if kept else {}
    for one in figures:
        if one.name.endswith(FAILED):
            continue
        found[one.name] = {"value": one.value, "unit": one.unit, "digits": one.digits, "why": one.baseline_name}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    body = {"commit": run.stdout.strip(), "machine": machine, "date": time.strftime("%Y-%m-%d"), "figures": found}
    KEPT.write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {KEPT}\n")


def main() -> None:
    """Measure rows, print them, and keep them as those of before."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.goodput.page", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all by default")
    rows = parser.parse_args().rows or ROWS
    for row in rows:
        if row not in ROWS:
            parser.error(f"no row {row!r}; allowed: {', '.join(ROWS)}")
    figures, _, _ = measure(*rows)
    show(figures)
    keep(figures)


if __name__ == "__main__":
    main()
