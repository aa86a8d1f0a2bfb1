"""The plots of the documentation, as SVG by matplotlib. Equal figures give equal files."""

import contextlib
import importlib.util
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from benchmarks.figures import Figure

if importlib.util.find_spec("matplotlib") is None:
    raise SystemExit("the benchmarks draw with matplotlib; install epochal[bench]")

WIDTH_IN, ROW_IN, MARGIN_IN, LINES_HEIGHT_IN = 9.0, 0.27, 0.8, 4.0
COLOUR = "#4472a8"
BAND_ALPHA = 0.2
Band = Sequence[tuple[float, float, float, float]]
"""Points of a line: x, and the lowest, mean and highest y."""
STYLE: Any = {
    "svg.hashsalt": "epochal",  # or every run would name its clip paths anew
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",  # readable on a dark page, too
}


def ratio_plot(figures: Sequence[Figure]) -> str:
    """Return a bar for each figure with a baseline: measured as a multiple of it, on a logarithmic scale around 1."""
    shown = [
        (f"{figure.name} ({figure.unit})", figure.ratio, figure.digits)
        for figure in figures
        if figure.ratio is not None
    ]
    places = range(len(shown))
    with _canvas(ROW_IN * len(shown) + MARGIN_IN) as (canvas, axes):
        bars = axes.barh(places, [ratio - 1 for _, ratio, _ in shown], left=1, height=0.7, color=COLOUR)
        axes.bar_label(bars, [f" {ratio:,.{digits}f} × " for _, ratio, digits in shown])
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_yticks(places, [label for label, *_ in shown])
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g} ×")
        axes.xaxis.set_minor_formatter("")
        axes.set_xlabel("measured ÷ baseline")
        return _svg(canvas)


def line_plot(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    x_title: str,
    y_title: str,
    y_axis: Literal["fitted", "from zero", "logarithmic"] = "fitted",
) -> str:
    """Return a line for each name; x is logarithmic."""
    with _canvas(LINES_HEIGHT_IN) as (canvas, axes):
        for name, points in lines.items():
            axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=name)
        axes.set_xscale("log", base=2)
        if y_axis == "logarithmic":
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        elif y_axis == "from zero":
            axes.set_ylim(bottom=0)
        axes.xaxis.set_minor_formatter("")
        axes.set_xticks(sorted({x for line in lines.values() for x, _ in line}))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.grid(axis="y", color="#dddddd")
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        axes.legend()
        return _svg(canvas)


def band_plot(lines: Mapping[str, Band], x_title: str, y_title: str) -> str:
    """Return a line of means for each name, with a band from the lowest to the highest value."""
    with _canvas(LINES_HEIGHT_IN) as (canvas, axes):
        for name, points in lines.items():
            x, low, mean, high = zip(*points, strict=True)
            (line,) = axes.plot(x, mean, marker="o", markersize=3, label=name)
            axes.fill_between(x, low, high, alpha=BAND_ALPHA, color=line.get_color(), linewidth=0)
        axes.grid(axis="y", color="#dddddd")
        axes.set_xlabel(x_title)
        axes.set_ylabel(y_title)
        axes.legend()
        return _svg(canvas)


def spread_plot(groups: Mapping[str, Sequence[float]], x_title: str) -> str:
    """Return a row of points for each name, one for each value, around 1."""
    with _canvas(ROW_IN * len(groups) + MARGIN_IN) as (canvas, axes):
        for place, values in enumerate(groups.values()):
            axes.plot(values, [place] * len(values), "o", markersize=5, color=COLOUR, alpha=0.6)
        axes.axvline(1, color="black", linewidth=1)
        axes.set_yticks(range(len(groups)), list(groups))
        axes.margins(x=0.1, y=0.2)
        axes.invert_yaxis()
        axes.grid(axis="x", color="#dddddd")
        axes.set_xlabel(x_title)
        return _svg(canvas)


@contextlib.contextmanager
def _canvas(height_in: float) -> Iterator[tuple[Any, Any]]:
    """Yield an empty figure and its axes; matplotlib, which takes a second to import, is imported here."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(WIDTH_IN, height_in), layout="constrained")
        yield canvas, canvas.subplots()


def _svg(canvas: Any) -> str:
    text = io.StringIO()
    canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
