"""One palette: a part of a round has the same colour on the page, in the terminal, in plots and in reports."""

import json
import re
from importlib.resources import files

from rich.style import Style

from epochal.coordinator.page.page_files import words_module
from epochal.state.shown.glossary import NOT_REPORTED, PARTS
from epochal.view.figures.plots import drawn
from epochal.view.round_lines import STYLES, bar_of
from epochal.view.waterfall import PART_NAMES, Bar, BarRow, Waterfall
from tests.support.heavy import need_module

COLOURS = [part.colour for part in PARTS.values()]
ROUND = Waterfall(
    "a round", "", (BarRow("lab", "applied", tuple(Bar(place, 1.0, place) for place in range(len(PARTS)))),), 12.0
)
"""A client that spends a second on each part."""
ASSETS = files("epochal.coordinator.page") / "assets"


def luminance(colour: str) -> float:
    """Relative luminance of a colour (WCAG 2.2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_each_part_has_a_colour_and_a_pattern_of_its_own() -> None:
    assert len({*COLOURS, NOT_REPORTED.colour}) == len(PARTS) + 1
    assert len({*(part.hatch for part in PARTS.values()), NOT_REPORTED.hatch}) == len(PARTS) + 1
    assert all((luminance(colour) + 0.05) / 0.05 > 7 for colour in (*COLOURS, NOT_REPORTED.colour)), (
        "black is read on it"
    )


def test_page_takes_colours_and_patterns_from_the_table() -> None:
    words = re.search(r"^export const PARTS = (.*);$", words_module(), re.MULTILINE)
    assert words is not None
    shown = {name: (part["colour"], part["hatch"]) for name, part in json.loads(words[1]).items()}
    known = {name: (part.colour, part.hatch) for name, part in {**PARTS, "unknown": NOT_REPORTED}.items()}
    assert shown == known
    script = (ASSETS / "widgets" / "waterfall.js").read_text(encoding="utf-8")
    assert not re.search(r"#[0-9a-f]{6}", script)
    assert "part-train" not in (ASSETS / "style.css").read_text(encoding="utf-8")


def test_terminal_writes_each_letter_on_its_parts_colour() -> None:
    styles = {Style.parse(STYLES[part.letter]).bgcolor.name for part in PARTS.values()}  # type: ignore[union-attr]
    assert styles == set(COLOURS)
    assert [str(span.style) for span in bar_of(ROUND.rows[0], 1.0).spans] == list(STYLES.values())


def test_plots_and_reports_draw_each_part_in_its_colour() -> None:
    need_module("matplotlib")
    picture = drawn(ROUND).decode()
    assert [name for name, colour in zip(PART_NAMES, COLOURS, strict=True) if colour not in picture] == []
