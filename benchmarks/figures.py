"""A figure, its target, and the bare baseline that was measured in the same run."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

REPEATS = 9


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        target: what the project asks of it, in words; "" when it asks nothing.
        baseline: what the same amount of bare work took, in the figure's unit; None without one.
        baseline_name: what that bare work is.
    """

    name: str
    value: float
    unit: str
    target: str = ""
    baseline: float | None = None
    baseline_name: str = ""


def median_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median time of some calls, in milliseconds."""
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_s)
    return statistics.median(times) * 1000


def show(figures: list[Figure]) -> None:
    """Print the figures as a table."""
    table = Table(title="Figures, each beside a bare baseline of the same run")
    for heading in ("figure", "measured", "target", "baseline", "ratio", "the baseline is"):
        table.add_column(heading)
    for figure in figures:
        ratio = "" if not figure.baseline else f"{figure.value / figure.baseline:.2f} x"
        baseline = "" if figure.baseline is None else f"{figure.baseline:,.2f} {figure.unit}"
        measured = f"{figure.value:,.2f} {figure.unit}"
        table.add_row(figure.name, measured, figure.target, baseline, ratio, figure.baseline_name)
    Console(width=160).print(table)
