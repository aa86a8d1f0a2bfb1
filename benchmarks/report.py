"""The figures for `docs/`: a table in `benchmarks.md`, and a plot of the ratios, with the command that made them."""

import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType

from benchmarks.figures import Figure

DOCS = Path(__file__).parents[1] / "docs"
ROW_PX, LABEL_PX, PLOT_PX, MARGIN_PX = 22, 400, 420, 30


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
        "| figure | measured | target | baseline | ratio | the baseline is |",
        "|---|---|---|---|---|---|",
    ]
    for figure in figures:
        ratio = f"{figure.value / figure.baseline:.2f} x" if figure.baseline else ""
        baseline = "" if figure.baseline is None else f"{figure.baseline:,.2f} {figure.unit}"
        cells = (
            figure.name,
            f"{figure.value:,.2f} {figure.unit}",
            figure.target,
            baseline,
            ratio,
            figure.baseline_name,
        )
        lines.append(f"| {' | '.join(cells)} |")
    for plot_name, svg in plots.items():
        lines += ["", f"![{plot_name}]({plot_name}.svg)"]
        (DOCS / f"{plot_name}.svg").write_text(svg, encoding="utf-8")
    (DOCS / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (DOCS / f"{name}.svg").write_text(plot(figures), encoding="utf-8")
    sys.stdout.write(f"wrote docs/{name}.md and docs/{name}.svg\n")


def plot(figures: Sequence[Figure]) -> str:
    """A bar for each figure with a baseline: measured as a multiple of it, on a logarithmic scale around 1."""
    shown = [(figure, figure.value / figure.baseline) for figure in figures if figure.baseline]
    reach = max((abs(math.log10(ratio)) for _, ratio in shown if ratio > 0), default=1.0) or 1.0
    middle = LABEL_PX + PLOT_PX / 2
    height = ROW_PX * len(shown) + 2 * MARGIN_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABEL_PX + PLOT_PX + 2 * MARGIN_PX}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{middle}" y="16" text-anchor="middle">measured ÷ baseline (logarithmic)</text>',
    ]
    for number, (figure, ratio) in enumerate(shown):
        top = MARGIN_PX + number * ROW_PX
        length = math.log10(ratio) / reach * PLOT_PX * 0.42 if ratio > 0 else 0.0
        left = middle + min(0.0, length)
        label = f"{figure.name} ({figure.unit})"
        parts += [
            f'<text x="{LABEL_PX - 6}" y="{top + 15}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{left:.1f}" y="{top + 3}" width="{max(1.0, abs(length)):.1f}" height="{ROW_PX - 6}" '
            'fill="#4472a8"/>',
            f'<text x="{middle + (max(0.0, length)) + 4:.1f}" y="{top + 15}">{ratio:,.2f} ×</text>',
        ]
    bottom = MARGIN_PX + ROW_PX * len(shown)
    parts.append(f'<line x1="{middle}" y1="{MARGIN_PX}" x2="{middle}" y2="{bottom}" stroke="black"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"
