"""The page on what a run can do to a volunteer's machine: each statement names the hostile tests that hold it."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "volunteer-safety.md"
NO_PROMISE = "nothing is promised"
"""The mark of a statement that says what a client does not keep from anybody."""
_MARK = re.compile(r"\n *<!-- (?P<mark>held by [^>]*|nothing is promised) -->$")


def _statements() -> list[str]:
    """Return the page's paragraphs and items of lists, each with its mark if it has one."""
    text = re.sub(r"<!-- not run.*?```.*?```", "", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = [block for block in re.split(r"\n\n+", text) if not block.startswith(("#", "|"))]
    return [item.strip() for block in blocks[1:] for item in re.split(r"\n(?=- )", block) if item.strip()]


STATEMENTS = _statements()


def _tests_of(mark: str) -> list[tuple[str, str]]:
    """Return module and name of each test in a mark, such as `held by files_stay: one, another; bombs: third`."""
    found = []
    for part in mark.removeprefix("held by ").split("; "):
        module, _, names = part.partition(": ")
        found += [(f"test_{module}", f"test_{name}") for name in names.split(", ")]
    return found


@cache
def _names_in(module: str) -> set[str]:
    tree = ast.parse(next((ROOT / "tests" / "hostile").rglob(f"{module}.py")).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_statements_are_held_by_tests_that_exist() -> None:
    for statement in STATEMENTS:
        found = _MARK.search(statement)
        assert found is not None, f"say by which tests of tests/hostile it is held: {statement}"
        for module, name in [] if found["mark"] == NO_PROMISE else _tests_of(found["mark"]):
            assert name in _names_in(module), f"{module}.py has no {name}"


def test_most_statements_promise_something() -> None:
    assert sum(NO_PROMISE in statement for statement in STATEMENTS) <= len(STATEMENTS) // 4
