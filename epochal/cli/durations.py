"""Times as people write them on a command line: `3d`, `12h`, `90m`, `30s`."""

import math
import re

from epochal.state.errors import InvalidInput

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhdw])", re.ASCII)


def parse_duration(place: str, text: str, most_s: float) -> float:
    """Return the seconds that a text such as `3d` names.

    Args:
        place: of the text, for messages.
        text: a number and its unit.
        most_s: the longest time that is allowed.

    Raises:
        InvalidInput: it is no time, or not one between 0 and `most_s`.
    """
    found = _DURATION.fullmatch(text)
    seconds = math.nan if found is None else float(found[1]) * _UNITS_S[found[2]]
    if not 0 < seconds <= most_s:
        raise InvalidInput(
            f"{place} {text[:40]!r}: allowed: a number and a unit (s, m, h, d or w), such as 3d or 12h, at most "
            f"{most_s / _UNITS_S['d']:g} days"
        )
    return seconds


def shown_duration(seconds: float) -> str:
    """Return about how long a time is, in the largest unit of which it has at least two."""
    for unit in ("d", "h", "m"):
        if seconds >= 2 * _UNITS_S[unit]:
            return f"{seconds / _UNITS_S[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"
