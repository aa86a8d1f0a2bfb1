"""The figures for `docs/`: a table in `benchmarks.md`, and a plot of the ratios, with the command that made them."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from benchmarks.figures import HEADINGS, Figure
from benchmarks.plots import ratio_plot

DOCS = Path(__file__).parents[1] / "docs"


def write(figures: Sequence[Figure], command: str, name: str, plots: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write `docs/NAME.md` and `docs/NAME.svg`, and further plots (SVG by name) below the table."""
    lines = [
        "# Benchmarks",
        "",
        f"`{command}` made this page: Python {platform.python_version()}, {platform.machine()}, "
        f"{os.cpu_count()} cores. Each baseline was measured in the same run; machines differ, "
        "ratios less so. Caches are warm.",
        "",
        f"![measured, as a multiple of the baseline]({name}.svg)",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(figure.cells())} |" for figure in figures),
    ]
    for plot_name, svg in plots.items():
        lines += ["", f"![{plot_name}]({plot_name}.svg)"]
        (DOCS / f"{plot_name}.svg").write_text(svg, encoding="utf-8")
    (DOCS / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (DOCS / f"{name}.svg").write_text(ratio_plot(figures), encoding="utf-8")
    sys.stdout.write(f"wrote docs/{name}.md and docs/{name}.svg\n")
