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


MAIN = "benchmarks"
FURTHER = {
    "benchmarks-torch": "transformers with torch",
    "benchmarks-adapters": "adapters",
    "benchmarks-quality": "what clients learn beside one machine",
    "benchmarks-codecs": "what smaller results cost",
    "benchmarks-scale": "thousands of members",
    "benchmarks-goodput": "how much of the time is training",
    "benchmarks-resilience": "under attack",
    "benchmarks-trust": "members that lie",
    "benchmarks-before": "before one journal and one HTTP client",
}
"""The other pages of figures, to which the main one links."""
NO_PLOTS: Mapping[str, str] = MappingProxyType({})


def write(
    figures: Sequence[Figure], command: str, name: str, plots: Mapping[str, str] = NO_PLOTS, notes: Sequence[str] = ()
) -> None:
    """Write `docs/NAME.md` and `docs/NAME.svg`, with notes above the table and further plots (SVG by name) below it."""
    lines = [
        "# Benchmarks",
        "",
        f"`{command}` made this page: Python {platform.python_version()}, {platform.machine()}, "
        f"{os.cpu_count()} cores. Baselines are of the same run and in the same unit. Caches are warm.",
        "",
        *(line for note in notes for line in (note, "")),
        *([_further(), ""] if name == MAIN else []),
        f"![measured, as a multiple of the baseline]({name}.svg)",
        "",
        *table(figures),
    ]
    for plot_name, svg in plots.items():
        lines += ["", f"![{plot_name}]({plot_name}.svg)"]
        (DOCS / f"{plot_name}.svg").write_text(svg, encoding="utf-8")
    (DOCS / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (DOCS / f"{name}.svg").write_text(ratio_plot(figures), encoding="utf-8")
    sys.stdout.write(f"wrote docs/{name}.md and docs/{name}.svg\n")


def table(figures: Sequence[Figure]) -> list[str]:
    """Return the lines of a table of what was measured, and a line for each reason why others were not."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    lines += [f"| {' | '.join(figure.cells())} |" for figure in figures if figure.value is not None]
    missing: dict[str, list[str]] = {}
    for figure in figures:
        if figure.value is None:
            missing.setdefault(figure.baseline_name, []).append(figure.name)
    for reason, names in missing.items():
        lines += ["", f"Not measured ({reason}): {'; '.join(names)}."]
    return lines


def explain(name: str, text: str) -> None:
    """Append a text to the page `docs/NAME.md`."""
    page = DOCS / f"{name}.md"
    page.write_text(f"{page.read_text(encoding='utf-8')}\n{text.rstrip()}\n", encoding="utf-8")


def _further() -> str:
    links = ", ".join(f"[{title}]({page}.md)" for page, title in FURTHER.items() if (DOCS / f"{page}.md").exists())
    return f"Further figures: {links}."
