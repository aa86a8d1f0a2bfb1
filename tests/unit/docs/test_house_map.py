"""The map of the product in `docs/architecture.md`: nothing is missing on it."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from docs.house_map import ROOMS, body, head

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def shown() -> str:
    return body()


def product_folders() -> set[str]:
    walked = ((folder, names) for room in ROOMS for folder, _, names in os.walk(ROOT / room))
    found = {Path(folder) for folder, names in walked if any(name.endswith((".py", ".js")) for name in names)}
    return {folder.relative_to(ROOT).as_posix() for folder in found if folder.name != "vendor"}


def test_no_folder_of_the_product_is_off_the_map(shown: str) -> None:
    assert set(re.findall(r"^####? `(.*)/`$", shown, re.MULTILINE)) == product_folders()


def test_every_package_of_the_wheel_is_a_room_of_the_map() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    linked = project["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"]
    assert {"epochal", *linked} == {*ROOMS}


def test_every_module_of_the_map_has_a_head(shown: str) -> None:
    assert re.findall(r"^\| `\S+` \|  \|$", shown, re.MULTILINE) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""Rows | columns. A second sentence."""', "Rows \\| columns"),
        ('"""Fields of `state.toml` and\nwhat they mean."""', "Fields of `state.toml` and what they mean"),
        ('"""A wait: `…/status`."""', "A wait: `…/status`"),
        ('"""Members.\n\nMore."""', "Members"),
        ("", ""),
    ],
)
def test_head_is_the_first_sentence_of_the_docstring(tmp_path: Path, text: str, expected: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(text, encoding="utf-8")
    assert head(module) == expected


def test_head_of_a_script_is_the_first_sentence_of_its_comment(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text("// A map of\n// the data. Drawn.\nconst a = 1; // not this\n", encoding="utf-8")
    assert head(script) == "A map of the data"
