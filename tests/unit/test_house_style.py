"""The rules of CONTRIBUTING.md that no linter knows: sizes, names, and pages that name files."""

import ast
import re
import warnings
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from docs.named_kinds import PACKAGES

ROOT = Path(__file__).parents[2]
MAX_MODULE_LINES = 1000
QUESTIONED_MODULE_LINES = 600
"""A module has one subject, however long that is; a longer one is named in a warning, for somebody to look at it."""
MAX_MODULES_IN_FOLDER = 24
MAX_TEST_MODULES_IN_FOLDER = 30
MAX_SHARED_FILE_NAMES = 25
"""Maximum number of names that more than one module of the product has."""
MAX_FUNCTION_LINES = 70
MAX_TEST_NAME_CHARS = 70
VAGUE_FIRST_WORDS = ("What", "Nothing", "Whoever")


def paths(*folders: str) -> list[Path]:
    """Return the modules below the folders."""
    return sorted(path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*.py"))


class Definition(NamedTuple):
    """A class or a function of the product."""

    place: str
    name: str
    is_class: bool
    is_inner: bool
    line_count: int
    docstring: str


@cache
def definitions() -> tuple[Definition, ...]:
    """Return all of them; no tree is kept, which the collector of cycles would visit again and again."""
    return tuple(
        Definition(
            f"{path}:{node.lineno}",
            node.name,
            isinstance(node, ast.ClassDef),
            node.col_offset > 0,
            (node.end_lineno or 0) - node.lineno + 1,
            ast.get_docstring(node) or "",
        )
        for path in paths(*PACKAGES)
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    )


@pytest.mark.filterwarnings("default:.*one subject")
def test_modules_stay_within_their_size() -> None:
    sizes = {path: (ROOT / path).read_text(encoding="utf-8").count("\n") for path in paths(*PACKAGES)}
    for path, size in sizes.items():
        if size > QUESTIONED_MODULE_LINES:
            warnings.warn(f"{path} has {size} lines: has it one subject?", stacklevel=1)
    assert {path: size for path, size in sizes.items() if size > MAX_MODULE_LINES} == {}


@pytest.mark.parametrize(
    ("rooms", "bound"),
    [
        (PACKAGES, MAX_MODULES_IN_FOLDER),
        (("benchmarks",), MAX_MODULES_IN_FOLDER),
        (("tests",), MAX_TEST_MODULES_IN_FOLDER),
    ],
    ids=["product", "benchmarks", "tests"],
)
def test_folders_hold_no_more_modules_than_can_be_surveyed(rooms: tuple[str, ...], bound: int) -> None:
    counts = Counter(path.parent.as_posix() for path in paths(*rooms) if path.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > bound} == {}


def test_no_folder_of_the_page_holds_more_files_than_can_be_surveyed() -> None:
    counts = Counter(path.parent.name for path in (ROOT / "coordinator/page/assets").rglob("*.*") if path.is_file())
    assert {"assets", "panels", "widgets"} <= counts.keys()
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES_IN_FOLDER} == {}


def test_names_of_modules_seldom_need_their_folder() -> None:
    counts = Counter(path.name for path in paths(*PACKAGES) if path.name != "__init__.py")
    shared = sorted(name for name, count in counts.items() if count > 1)
    assert len(shared) <= MAX_SHARED_FILE_NAMES, shared


def test_functions_stay_within_their_size() -> None:
    functions = (one for one in definitions() if not one.is_class)
    assert [f"{one.place} {one.name}" for one in functions if one.line_count > MAX_FUNCTION_LINES] == []


def test_a_public_class_name_means_one_thing() -> None:
    places = defaultdict(list)
    for one in definitions():
        if one.is_class and not one.is_inner and not one.name.startswith("_"):
            places[one.name].append(one.place)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_docstrings_do_not_begin_with_a_riddle() -> None:
    assert [one.place for one in definitions() if one.docstring.startswith(VAGUE_FIRST_WORDS)] == []


def test_http_connections_are_those_of_the_one_client() -> None:
    """Those of httpx keep to no limit of bandwidth, and to no bound on the addresses that may be connected."""
    opened = re.compile(r"httpx\.(?:Client|get|head|post|put|request|stream)\(|httpx\.AsyncClient\((?!.*transport=)")
    found = {path for path in paths(*PACKAGES) if opened.search((ROOT / path).read_text(encoding="utf-8"))}
    assert found == set()


def test_names_of_tests_can_be_read_at_a_glance() -> None:
    names = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
    long = [
        f"{path.relative_to(ROOT)} {name}"
        for path in (ROOT / "tests").rglob("*.py")
        for name in names.findall(path.read_text(encoding="utf-8"))
        if len(name) > MAX_TEST_NAME_CHARS
    ]
    assert long == []


@pytest.mark.parametrize("page", ["architecture.md", "concepts.md", "data-providers.md", "merging.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = re.findall(rf"`((?:{'|'.join((*PACKAGES, 'tests'))})/(?:[a-z_]+/)*(?:[a-z_]+\.py)?)`", text)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_unit_tests_mirror_the_packages() -> None:
    folders = {path.parent.name for path in (ROOT / "tests" / "unit").glob("*/*.py")}
    assert folders <= {*PACKAGES, "benchmarks", "deploy", "docs", "examples"}
