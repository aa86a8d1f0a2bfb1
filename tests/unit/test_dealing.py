"""Tests are dealt to workers so that none waits for a late long one, and what is costly is shared."""

from pathlib import Path

from tests.support.dealing import ON_ONE_WORKER, longest_first, unit_of


def test_units_that_take_long_come_first_and_stay_together() -> None:
    seconds = {"tests/a.py": 1.0, "tests/b.py": 9.0, "tests/browser/c.py": 6.0, "tests/browser/d.py": 5.0}
    ordered = longest_first(["tests/new.py", *seconds], seconds)
    assert ordered == ["tests/browser/c.py", "tests/browser/d.py", "tests/b.py", "tests/a.py", "tests/new.py"]


def test_file_that_shares_nothing_is_a_unit_of_its_own() -> None:
    assert unit_of("tests/browser/test_page.py") == "browser and matplotlib"
    assert unit_of("tests/unit/state/test_wire.py") == "tests/unit/state/test_wire.py"


def test_files_of_each_unit_are_there() -> None:
    root = Path(__file__).parents[2]
    assert all(any(root.glob(f"{name}*")) for names in ON_ONE_WORKER.values() for name in names)
