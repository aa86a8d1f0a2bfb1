"""The benchmarks' plots: equal figures give equal files, and a page never holds a plot that nobody can read."""

from xml.etree import ElementTree

from benchmarks.figures import Figure
from benchmarks.plots import line_plot, ratio_plot

FIGURES = [
    Figure("slower", 3.0, "ms", baseline=1.5),
    Figure("faster", 1.0, "ms", baseline=8.0),
    Figure("alone", 1.0, "s"),
]
LINES = {"first": [(16.0, 80.0), (64.0, 99.0)], "second": [(16.0, 70.0), (64.0, 90.0)]}


def texts(svg: str) -> set[str]:
    return {(element.text or "").strip() for element in ElementTree.fromstring(svg).iter() if "text" in element.tag}


def test_equal_figures_give_equal_files() -> None:
    assert ratio_plot(FIGURES) == ratio_plot(FIGURES)
    assert line_plot(LINES, "x", "y") == line_plot(LINES, "x", "y")


def test_ratio_plot_names_every_figure_with_a_baseline_and_its_ratio() -> None:
    assert {"slower (ms)", "faster (ms)", "2.00 ×", "0.12 ×"} <= texts(ratio_plot(FIGURES))
    assert "alone (s)" not in texts(ratio_plot(FIGURES))


def test_line_plot_names_lines_axes_and_every_place() -> None:
    assert {"first", "second", "samples", "rows", "16", "64"} <= texts(line_plot(LINES, "samples", "rows"))
