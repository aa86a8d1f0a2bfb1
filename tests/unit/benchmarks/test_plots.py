"""The benchmarks' plots: equal figures give equal files, and a page never holds a plot that nobody can read."""

from xml.etree import ElementTree

from benchmarks.figures import Figure
from benchmarks.plots import band_plot, line_plot, ratio_plot, spread_plot, value_plot

FIGURES = [
    Figure("slower", 3.0, "ms", baseline=1.5),
    Figure("faster", 1.0, "ms", baseline=8.0),
    Figure("alone", 1.0, "s"),
    Figure("elsewhere", None, "s", baseline=1.0, baseline_name="no GPU here"),
]
LINES = {"first": [(16.0, 80.0), (64.0, 99.0)], "second": [(16.0, 70.0), (64.0, 90.0)]}


def texts(svg: str) -> set[str]:
    return {(element.text or "").strip() for element in ElementTree.fromstring(svg).iter() if "text" in element.tag}


def test_equal_figures_give_equal_files() -> None:
    assert ratio_plot(FIGURES) == ratio_plot(FIGURES)
    assert line_plot(LINES, "x", "y") == line_plot(LINES, "x", "y")


def test_ratio_plot_names_every_figure_with_a_baseline_and_its_ratio() -> None:
    assert {"slower (ms)", "faster (ms)", "2.00 ×", "0.12 ×"} <= texts(ratio_plot(FIGURES))
    assert not {"alone (s)", "elsewhere (s)"} & texts(ratio_plot(FIGURES))


def test_line_plot_names_lines_axes_and_every_place() -> None:
    assert {"first", "second", "samples", "rows", "16", "64"} <= texts(line_plot(LINES, "samples", "rows"))


def test_figure_that_cannot_be_measured_says_so() -> None:
    assert FIGURES[-1].cells() == ("elsewhere", "not measured", "", "1.00 s", "", "no GPU here")


def test_band_and_spread_name_their_lines_and_axes() -> None:
    bands = {"one": [(1.0, 2.0, 2.5, 3.0), (2.0, 1.0, 1.5, 2.0)], "four": [(1.0, 2.0, 2.5, 3.0)]}
    assert {"one", "four", "tokens", "loss"} <= texts(band_plot(bands, "tokens", "loss"))
    assert {"one", "four", "ratio"} <= texts(spread_plot({"one": [1.0, 1.0], "four": [1.02, 1.01]}, "ratio"))


def test_value_plot_names_every_value_and_its_axis() -> None:
    assert {"large", "small", "4", "0.0293", "bytes"} <= texts(value_plot({"small": 0.0293, "large": 4.0}, "bytes"))
