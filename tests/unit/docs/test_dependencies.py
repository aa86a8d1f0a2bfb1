"""The tables of direct dependencies in `docs/architecture.md` have what `pyproject.toml` says, each with its reason."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SECTION = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").partition("## Direct dependencies\n")[2]
CORE, EXTRAS = SECTION.partition("\n## ")[0].split("| package | extras | reason |")


def rows(table: str) -> list[list[str]]:
    """Return the cells of each row of a table that begins with names of packages."""
    found = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in cells] for cells in found]


def package(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement)[0]


def test_core_table_has_the_dependencies_of_the_project() -> None:
    assert {cells[0].strip("`") for cells in rows(CORE)} == {package(each) for each in PROJECT["dependencies"]}


def test_extras_table_has_the_packages_of_each_extra() -> None:
    named = {
        (name, extra)
        for packages, extras, _ in rows(EXTRAS)
        for name in re.findall("`(.*?)`", packages)
        for extra in re.findall("`(.*?)`", extras)
    }
    extras = PROJECT["optional-dependencies"]
    assert named == {(package(each), extra) for extra, needed in extras.items() for each in needed}


def test_every_dependency_has_a_reason() -> None:
    assert [cells for cells in rows(CORE) + rows(EXTRAS) if not cells[-1]] == []
