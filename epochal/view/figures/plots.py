"""Charts drawn by matplotlib (`epochal[plot]`) as pictures for a page.

The same record gives the same bytes with the same matplotlib: no dates, no random ids.
"""

import base64
import importlib.util
import io
import math
import warnings
from typing import Any

from epochal.state.shown.glossary import PartWords
from epochal.state.text.html_tables import text_html
from epochal.view.figures.charts import Chart, LineChart
from epochal.view.waterfall import PART_WORDS, Waterfall

SIZE_IN = (6.4, 3.4)
ROW_IN = 0.26
MAX_DRAWN = 1e30
"""Greater values are not drawn: absurd ones that a client has claimed."""
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#332288", "#882255", "#44aa99",
)  # fmt: skip
"""Those of Okabe and Ito (jfly.uni-koeln.de/color), which all kinds of colour vision distinguish."""
DASHES = ("", "7 4", "2 3", "9 3 2 3", "1 4", "12 5")
INK = "#39424d"
"""Colour of the patterns of a round's parts."""
SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "epochal",
    "svg.fonttype": "path",
    "text.parse_math": False,  # a client's name is no formula
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "hatch.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def has_matplotlib() -> bool:
    """Return whether charts can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def drawn(chart: Chart) -> bytes:
    """Return a chart as SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # names are in any script
        figure = Figure(figsize=_size(chart), layout="constrained")
        _draw(figure.add_subplot(), chart)
        data = io.BytesIO()
        figure.savefig(data, format="svg", metadata={"Date": None, "Creator": None})
        return data.getvalue()


def figure_html(chart: Chart) -> str:
    """Return a chart as a figure of HTML, which needs no other file."""
    what = "the clients of one round" if isinstance(chart, Waterfall) else chart.y_label
    caption = f"{text_html(what)}: {text_html(chart.note)}"
    return (
        f'<figure><h2>{text_html(chart.title)}</h2><div class=wide><img alt="{caption}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(drawn(chart)).decode()}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _size(chart: Chart) -> tuple[float, float]:
    return SIZE_IN if isinstance(chart, LineChart) else (SIZE_IN[0], 1.7 + ROW_IN * len(chart.rows))


def _draw(axes: Any, chart: Chart) -> None:
    axes.set_title(chart.title, loc="left", fontweight="bold")
    if isinstance(chart, LineChart):
        _draw_lines(axes, chart)
    else:
        _draw_waterfall(axes, chart)


def _draw_lines(axes: Any, chart: LineChart) -> None:
    for number, line in enumerate(chart.lines):
        dash = DASHES[number % len(DASHES)]
        axes.plot(
            line.xs,
            [y if math.isfinite(y) and abs(y) < MAX_DRAWN else math.nan for y in line.ys],
            color=COLOURS[number % len(COLOURS)],
            linestyle=(0, tuple(map(float, dash.split()))) if dash else "-",
            marker="o" if line.has_marks or len(line.xs) == 1 else None,
            markersize=4,
            linewidth=1.4,
            label=line.label,
        )
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(axis="y", alpha=0.25)
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    if chart.is_whole:
        axes.yaxis.get_major_locator().set_params(integer=True)
    if len(chart.lines) > 1:
        axes.figure.legend(frameon=False, loc="outside lower center", ncols=3)


def _draw_waterfall(axes: Any, chart: Waterfall) -> None:
    from matplotlib.patches import Patch

    for place, row in enumerate(chart.rows):
        for bar in row.bars:
            axes.barh(place, bar.length_s, left=bar.start_s, height=0.7, **_look(PART_WORDS[bar.part]))
    axes.axvline(chart.ends_s, color="black", linestyle="--", linewidth=0.8)
    axes.set_yticks(range(len(chart.rows)), [f"{row.label} · {row.note}" for row in chart.rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the round began; dashed: its end")
    axes.set_xlim(left=0)
    used = sorted({bar.part for row in chart.rows for bar in row.bars})
    patches = [Patch(label=PART_WORDS[part].label, **_look(PART_WORDS[part])) for part in used]
    axes.figure.legend(handles=patches, frameon=False, loc="outside lower center", ncols=4, fontsize=8)


def _look(part: PartWords) -> dict[str, Any]:
    return {"facecolor": part.colour, "hatch": part.hatch * 2, "edgecolor": INK, "linewidth": 0.4}
