"""A figure, its target, and the bare baseline that was measured in the same run."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

REPEATS = 9
HEADINGS = ("figure", "measured", "target", "ratio", "baseline")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        value: None where it cannot be measured here; `baseline_name` says why.
        target: the project's target in words; "" for no target.
        baseline: the figure of bare work of the same amount, in the figure's unit; None for no baseline.
        baseline_name: describes the bare work.
        digits: decimal places that are shown.
    """

    name: str
    value: float | None
    unit: str
    target: str = ""
    baseline: float | None = None
    baseline_name: str = ""
    digits: int = 2

    @property
    def ratio(self) -> float | None:
        """The figure as a multiple of its baseline; None without one."""
        return self.value / self.baseline if self.baseline and self.value is not None else None

    def cells(self) -> tuple[str, ...]:
        """Return the figure's row of a table with the columns `HEADINGS`; the unit is named once."""
        value = "not measured" if self.value is None else f"{self.value:,.{self.digits}f} {self.unit}"
        ratio = "" if self.ratio is None else f"{self.ratio:.{self.digits}f}"
        baseline = "" if self.baseline is None else f"{self.baseline:,.{self.digits}f}"
        beside = ": ".join(part for part in (baseline, self.baseline_name) if part)
        return self.name, value, self.target, ratio, beside


def median_ms(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the median time of some calls, in milliseconds."""
    times = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - start_s)
    return statistics.median(times) * 1000


def per_second(work: Callable[[], object], count: int, repeats: int = REPEATS) -> float:
    """Return how many of a call's `count` items it processes per second, by its median time."""
    return count / median_ms(work, repeats) * 1000


def show(figures: list[Figure]) -> None:
    """Print the figures as a table."""
    table = Table(title="Figures, each beside a bare baseline of the same run")
    for heading in HEADINGS:
        table.add_column(heading)
    for figure in figures:
        table.add_row(*figure.cells())
    Console(width=160).print(table)
