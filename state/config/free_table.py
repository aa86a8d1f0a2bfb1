"""Tables of a state file whose keys are not Epochal's own: a Hugging Face config, the options of a custom model.

The rule kept here: such a table holds plain values, so that it is the same in TOML and in JSON, and is bounded.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from epochal.state.config.schema import MAX_INTEGER, Path

MAX_NESTING = 32
"""The largest number of tables and lists around a value."""


PLAIN = "a string, true, false, a finite number of 64 bits, or a list or table of these"


class WrongEntry(ValueError):
    """An entry of such a table is wrong.

    Attributes:
        path: of the entry in the table.
        allowed: a phrase that says what would be right there.
    """

    def __init__(self, path: Path, allowed: str) -> None:
        super().__init__(f"{'.'.join(map(str, path))}: allowed is {allowed}")
        self.path = path
        self.allowed = allowed


def check_free_table(table: Mapping[str, Any], max_bytes: int) -> None:
    """Raise `WrongEntry` unless the table holds plain values, `ValueError` if its JSON is longer than `max_bytes`."""
    for key, value in table.items():
        _check_value(value, (key,))
    if len(json.dumps(table)) > max_bytes:
        raise ValueError("too long")


def _check_value(value: Any, path: Path) -> None:
    match value:
        case None | bool() | str():
            return
        case int() if abs(value) <= MAX_INTEGER:
            return
        case float() if math.isfinite(value):
            return
        case dict() | list() if len(path) < MAX_NESTING:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                _check_value(item, (*path, key))
            return
    raise WrongEntry(
        path, PLAIN if len(path) < MAX_NESTING else f"at most {MAX_NESTING} tables and lists in each other"
    )
