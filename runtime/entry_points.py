"""Classes that installed packages register under a name: the only code of others that a run's document may name."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from epochal.runtime.import_by_name import import_by_name
from epochal.runtime.permissions import Permissions
from epochal.state.errors import InvalidInput


def registered(group: str, name: str) -> EntryPoint | None:
    """Return the entry point of this name, without an import of its package; None if no package registers one.

    Raises:
        InvalidInput: several packages register different objects under the name.
    """
    found = {entry.value: entry for entry in entry_points(group=group, name=name)}
    if len(found) > 1:
        places = " and ".join(f"{entry.value} of {_shown_package(entry)}" for entry in found.values())
        raise InvalidInput(f"several packages register {name!r} in {group}: {places}; uninstall all but one", name=name)
    return next(iter(found.values()), None)


def names_of(group: str) -> list[str]:
    """Return the names that installed packages register."""
    return sorted(entry_points(group=group).names)


def check_registered(group: str, name: str, shown: str, permissions: Permissions) -> EntryPoint:
    """Return the entry point that a document names, without an import of its package.

    Args:
        group: of the entry points.
        name: as the document has it.
        shown: the name as messages show it, with the line that names it.
        permissions: of the document.

    Raises:
        InvalidInput: no package, or more than one, registers the name.
        NotAllowed: the package is not one that the owner of this machine allowed.
    """
    entry = registered(group, name)
    if entry is None:
        known = ", ".join(names_of(group)) or "none"
        raise InvalidInput(
            f"{shown} is not installed: no package registers it in {group}; installed: {known}; install its package",
            name=name,
        )
    permissions.check_package("" if entry.dist is None else entry.dist.name, shown)
    return entry


def load_registered(group: str, name: str, shown: str, permissions: Permissions) -> Any:
    """Import and return the object that a document names. Raises as `check_registered` and `import_by_name` do."""
    entry = check_registered(group, name, shown, permissions)
    return import_by_name(entry.value, f"{shown} ({entry.value})")


def _shown_package(entry: EntryPoint) -> str:
    return "an unnamed package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
