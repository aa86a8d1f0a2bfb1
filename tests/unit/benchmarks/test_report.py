"""The table of a page of figures."""

from benchmarks.figures import Figure
from benchmarks.report import table


def test_table_names_a_unit_once_and_what_was_not_measured_by_its_reason() -> None:
    figures = [
        Figure("first", 3.0, "MB/s", "≥ 0.8 x", 2.0, "a bare loop"),
        Figure("second", None, "MB/s", baseline_name="no GPU here"),
        Figure("third", None, "s", baseline_name="no GPU here"),
    ]
    assert table(figures)[2:] == [
        "| first | 3.00 MB/s | ≥ 0.8 x | 1.50 | 2.00: a bare loop |",
        "",
        "Not measured (no GPU here): second; third.",
    ]
