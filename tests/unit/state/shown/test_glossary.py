"""A run's words: each thing has one, and the page in a browser has the same."""

import json
import re
from dataclasses import fields
from importlib.resources import files
from typing import get_args

import pytest

from epochal.coordinator.page.page_files import words_module
from epochal.run_manager.events import RoundPart
from epochal.runtime.glossary import WORDS
from epochal.state.messages.history_rows import ClientFate, ClientFigures
from epochal.state.shown.critical_path import PartKind
from epochal.state.shown.glossary import FATES, NOT_REPORTED, PARTS, WHOSE_NOBODY
from epochal.view.waterfall import PART_WORDS

PAGE = files("epochal.coordinator.page") / "assets"
SCRIPTS = (
    "glossary.js",
    "widgets/pieces.js",
    "widgets/waterfall.js",
    "panels/round.js",
    "panels/member.js",
    "panels/run.js",
)


def table_of(name: str) -> dict[str, object]:
    """Return one of the tables of the page's module of words."""
    found = re.search(rf"^export const {name} = (.*);$", words_module(), re.MULTILINE)
    assert found is not None
    table: dict[str, object] = json.loads(found[1])
    return table


def test_each_part_of_a_round_has_a_letter_of_its_own() -> None:
    letters = [part.letter for part in (*PARTS.values(), NOT_REPORTED)]
    assert sorted(letters) == sorted(set(letters))
    assert {len(letter) for letter in letters} == {1}


def test_each_part_is_a_time_of_a_client() -> None:
    assert {f"{name}_s" for name in PARTS} <= {field.name for field in fields(ClientFigures)}
    assert set(get_args(RoundPart)) <= PARTS.keys()


def test_everything_that_time_goes_into_has_a_name() -> None:
    assert set(get_args(PartKind)) == PARTS.keys() | WHOSE_NOBODY.keys()


def test_every_end_of_a_clients_work_has_a_name() -> None:
    assert set(get_args(ClientFate)) == FATES.keys()


def test_page_has_the_words_of_the_programs() -> None:
    parts = table_of("PARTS")
    assert {name: part["label"] for name, part in parts.items()} == {  # type: ignore[index]
        **{name: part.label for name, part in PARTS.items()},
        "unknown": NOT_REPORTED.label,
    }
    assert (table_of("FATES"), table_of("WORDS")) == (dict(FATES), dict(WORDS))


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_of_the_page_writes_a_word_again(name: str) -> None:
    source = (PAGE / name).read_text(encoding="utf-8")
    labels = {*FATES.values(), *WHOSE_NOBODY.values(), *(part.label for part in PARTS.values())}
    assert [label for label in labels if " " in label and f'"{label}"' in source] == []


def test_plots_and_reports_have_the_parts_in_their_order() -> None:
    assert [part.letter for part in PART_WORDS] == [part.letter for part in PARTS.values()]
