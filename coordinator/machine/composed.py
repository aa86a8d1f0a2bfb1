"""Values that consist of parts of different classes, and what they are with other parts.

The machine makes a new run and a new round several times for each record, and the journal is replayed by the hundred
thousand records; so the parts are copied together, within a microsecond, and not one by one as `dataclasses.replace`
does.
"""

from collections.abc import Mapping
from typing import Any, Self


class Composed:
    """Base of a frozen dataclass, without `slots`, whose fields hold a part each."""

    def _with(self, names: Mapping[type, str], parts: tuple[Any, ...]) -> Self:
        """Return the value with these parts, each in the field of its kind; the value itself if they are its own."""
        known = self.__dict__
        changed = {names[type(part)]: part for part in parts}
        if all(known[name] is part for name, part in changed.items()):
            return self
        copy = object.__new__(type(self))
        copy.__dict__.update(known)
        copy.__dict__.update(changed)
        return copy
