"""The page on what a run can do to a volunteer's machine: each of its sentences names the tests that hold it."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "volunteer-safety.md"
_MARK = re.compile(r"\n *<!-- held by (?P<mark>[^>]*) -->$")
_LABEL = re.compile(r"^\*\*(?:Read|Written)\.\*\* ")


def _statements() -> list[str]:
    """Return the page's paragraphs and items of lists, each with its mark if it has one."""
    text = re.sub(r"<!-- not run.*?```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = [block for block in re.split(r"\n\n+", text) if not block.startswith(("#", "|", "<!-- made"))]
    return [item.strip() for block in blocks for item in re.split(r"\n(?=- )", block) if item.strip()]


def _sentences_of(statement: str) -> int:
    """Return the number of sentences: what stands in backquotes or in quotes, and after a colon, is of one sentence."""
    text = _MARK.sub("", statement).removeprefix("- ")
    text = _LABEL.sub("", " ".join(re.sub(r'`[^`]*`|"[^"]*"', "`x`", text).split()))
    return len(re.findall(r"\.\)?(?= |$)|:$", text))


def _tests_of(group: str) -> list[tuple[str, str]]:
    """Return module and name of each test in a group of a mark, such as `files_stay: one, another; bombs: third`."""
    found = []
    for part in group.split("; "):
        module, _, names = part.partition(": ")
        found += [(f"test_{module}", f"test_{name}") for name in names.split(", ")]
    return found


@cache
def _names_in(module: str) -> set[str]:
    (path,) = (ROOT / "tests").rglob(f"{module}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("statement", _statements(), ids=lambda statement: statement[:30])
def test_each_sentence_names_tests_that_exist(statement: str) -> None:
    """A statement's mark has a group of tests for each of its sentences, in their order: `held by … | …`."""
    found = _MARK.search(statement)
    assert found is not None, "say by which tests it is held"
    groups = found["mark"].split(" | ")
    assert len(groups) == _sentences_of(statement), "one group of tests for each sentence"
    for module, name in (each for group in groups for each in _tests_of(group)):
        assert name in _names_in(module), f"{module}.py has no {name}"
