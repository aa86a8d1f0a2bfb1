"""Tables of a state file whose keys are not Epochal's own: a Hugging Face config, the options of a custom model.

The rule kept here: such a table holds plain values, so that it is the same in TOML and in JSON, and is bounded.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from state.config.schema import MAX_INTEGER

MAX_NESTING = 32
"""The largest number of tables and lists around a value."""


def check_free_table(table: Mapping[str, Any], max_bytes: int) -> None:
    """Raise `ValueError` unless the table holds plain values and takes at most `max_bytes` as JSON."""
    _check_value(table, MAX_NESTING)
    if len(json.dumps(table)) > max_bytes:
        raise ValueError("too long")


def _check_value(value: Any, nesting: int) -> None:
    match value:
        case None | bool() | str():
            return
        case int() if abs(value) <= MAX_INTEGER:
            return
        case float() if math.isfinite(value):
            return
        case dict() | list() if nesting:
            for item in value.values() if isinstance(value, dict) else value:
                _check_value(item, nesting - 1)
            return
    raise ValueError("no plain value, or nested too deeply")
