"""Tests of mutants: one change each, nothing that decides nothing, and a list of equivalents that is not stale."""

import ast

import pytest

from tests.mutation.__main__ import all_mutants, equivalents
from tests.mutation.mutants import mutants_of, mutated

SOURCE = '''"""A docstring with 1 number."""

LIMIT: int = 3


def rule(count: int, names: list[str]) -> bool:
    """Return 2 things."""
    if not names or count - 1 >= LIMIT:
        raise ValueError(f"{count + 1} is too many; at most {LIMIT}")
    return "a" in names
'''


def test_mutants_of_a_module_change_one_expression_each() -> None:
    assert [(mutant.function, mutant.change) for mutant in mutants_of("example", SOURCE)] == [
        ("", "3  →  4"),
        ("rule", "not names or count - 1 >= LIMIT  →  not names and count - 1 >= LIMIT"),
        ("rule", "not names  →  not not names"),
        ("rule", "count - 1 >= LIMIT  →  count - 1 > LIMIT"),
        ("rule", "count - 1  →  count + 1"),
        ("rule", "1  →  2"),
        ("rule", "'a' in names  →  'a' not in names"),
    ]


def test_equal_changes_of_a_function_are_told_apart() -> None:
    source = "def rule(a: int) -> bool:\n    return a > 1 or a < 1\n"
    keys = [mutant.key for mutant in mutants_of("example", source)]
    assert [key[2:] for key in keys if key[2] == "1  →  2"] == [("1  →  2", 0), ("1  →  2", 1)]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("number", range(7))
def test_mutated_module_differs_from_the_source_in_its_change_only(number: int) -> None:
    before, after = mutants_of("example", SOURCE)[number].change.split("  →  ")
    tree = ast.unparse(mutated("example", SOURCE, number))
    assert tree != ast.unparse(ast.parse(SOURCE))
    assert after in tree
    assert ast.unparse(ast.parse(SOURCE)).replace(before, after, 1) == tree or before == "1"


def test_mutant_of_an_unknown_number_is_refused() -> None:
    with pytest.raises(KeyError):
        mutated("example", SOURCE, 7)


def test_every_equivalent_mutant_exists_and_has_a_reason() -> None:
    existing = {mutant.key for mutant in all_mutants()}
    assert [key for key, why in equivalents().items() if key not in existing or not why] == []
