"""`import epochal`: the public names, each imported when it is first used."""

import ast
import importlib.util
import pickle
from pathlib import Path

import pytest

import epochal
from epochal.state.errors import PUBLIC_ERRORS, EpochalError, NotAllowed
from tests.support.drive.cli import heavy_imports_of

NEEDS = {"global_rows": "jax", "RowBroadcast": "torch", "TorchTask": "torch"}


def typed_names() -> dict[str, str]:
    """The module of every name that type checkers see, read from the source."""
    block = next(node for node in ast.parse(Path(epochal.__file__).read_text()).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {str(alias.asname): str(node.module) for node in imports for alias in node.names}


def test_import_epochal_imports_nothing_heavy() -> None:
    assert heavy_imports_of("import epochal") == set()


def test_an_error_can_be_caught_without_importing_anything_heavy() -> None:
    assert heavy_imports_of("import epochal; epochal.EpochalError") == set()


def test_public_names_are_there_and_listed() -> None:
    assert set(epochal.__all__) <= {*dir(epochal)}
    present = [name for name in epochal.__all__ if name not in NEEDS or importlib.util.find_spec(NEEDS[name])]
    assert [name for name in present if getattr(epochal, name) is None] == []


def test_type_checkers_see_the_names_that_there_are() -> None:
    assert typed_names() == epochal.MODULE_OF


def test_public_error_is_shown_by_the_name_under_which_it_is_imported() -> None:
    found = {name: getattr(epochal, name) for name in epochal.__all__ if name not in NEEDS}
    errors = {name: one for name, one in found.items() if isinstance(one, type) and issubclass(one, EpochalError)}
    assert errors.keys() == PUBLIC_ERRORS
    assert {one.__module__ for one in errors.values()} == {"epochal"}
    assert pickle.loads(pickle.dumps(epochal.InvalidInput("wrong"))).message == "wrong"
    assert NotAllowed.__module__ == "epochal.state.errors"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'epochal' has no attribute 'Nope'"):
        _ = epochal.Nope  # type: ignore[attr-defined]
