"""Imports what a user names as `module:Class`: code of their own, which may raise anything."""

import importlib
from pathlib import Path
from typing import Any

from epochal.state.errors import InvalidInput


def import_by_name(place: str, shown: str) -> Any:
    """Return the object at `module:Class`; the class may be in another, as in `module:Outer.Inner`.

    Args:
        place: names the object.
        shown: the place as messages show it, with the option or line that names it.

    Raises:
        InvalidInput: it cannot be imported; the message says why, and where a missing module may be.
    """
    module_name, _, class_name = place.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in class_name.split("."):
            found = getattr(found, part)
    except Exception as error:
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]:
            hint = f"; {_where_to_find(error.name)}"
        raise InvalidInput(f"{shown} cannot be imported: {type(error).__name__}: {error}{hint}", place=place) from error
    return found


def _where_to_find(module: str) -> str:
    """Return a remedy for a module that is not found; commands do not search the folder that they start in."""
    here = Path.cwd()
    if (here / f"{module}.py").is_file() or (here / module).is_dir():
        return f"{here} holds it: set PYTHONPATH={here}"
    return f"install its package, or set PYTHONPATH to the folder that holds {module}.py (this one does not: {here})"
