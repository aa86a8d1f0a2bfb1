"""Numbers and texts in a request's path and query, read strictly: one spelling each, given once, never empty."""

import math
import re
from urllib.parse import parse_qsl

from epochal.state.errors import Refused
from epochal.state.refusals import Refusal

MAX_WHOLE = 2**63 - 1
"""The largest whole number: it fits a signed 64-bit integer."""
MAX_SECONDS = 1e9
"""The largest number of seconds."""
MAX_NUMBER_CHARS = 32
"""Maximum length of a number's text."""
MAX_SHOWN_CHARS = 40
"""Maximum length of a sender's own text in an error about it."""

_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""As JSON writes numbers: no `1_0`, `+1`, `01`, `nan`, spaces or digits of other scripts."""


class Query:
    """The query of a request. Parameters that nobody asks for are ignored."""

    def __init__(self, query_string: bytes) -> None:
        text = query_string.decode("latin-1")
        if "%" in text or "+" in text:
            self._pairs = parse_qsl(text, keep_blank_values=True)
        else:
            self._pairs = [(pair.partition("=")[0], pair.partition("=")[2]) for pair in text.split("&") if pair]

    def text(self, name: str) -> str | None:
        """Return a parameter's value, or None if it is not given.

        Raises:
            Refused: `invalid-parameter`: it is given twice, or without a value.
        """
        found = [value for key, value in self._pairs if key == name]
        if not found:
            return None
        if len(found) > 1:
            raise Refused(Refusal.INVALID_PARAMETER, f"{name} is given {len(found)} times; give it once")
        if not found[0]:
            raise Refused(Refusal.INVALID_PARAMETER, f"{name} has no value; give one, or leave it out")
        return found[0]

    def whole(self, name: str, default: int, least: int = 0) -> int:
        """Return a parameter as `parse_whole` reads it, or the default if it is not given."""
        text = self.text(name)
        return default if text is None else parse_whole(name, text, least)

    def seconds(self, name: str, default: float = 0.0) -> float:
        """Return a parameter as `parse_seconds` reads it, or the default if it is not given."""
        text = self.text(name)
        return default if text is None else parse_seconds(name, text)

    def flag(self, name: str) -> bool:
        """Return whether a parameter is `true`; False if it is `false` or not given. Raise `Refused` otherwise."""
        text = self.text(name) or "false"
        if text not in ("true", "false"):
            raise Refused(Refusal.INVALID_PARAMETER, f"{name}={text[:MAX_SHOWN_CHARS]}; allowed: true or false")
        return text == "true"


def parse_whole(name: str, text: str, least: int = 0) -> int:
    """Return a whole number from `least` to `MAX_WHOLE` in plain decimal digits; raise `Refused` for other text."""
    number = int(text) if len(text) <= MAX_NUMBER_CHARS and _WHOLE.fullmatch(text) else None
    if number is None or not least <= number <= MAX_WHOLE:
        shown = text[:MAX_SHOWN_CHARS]
        raise Refused(Refusal.INVALID_PARAMETER, f"{name}={shown} is not a whole number from {least} to {MAX_WHOLE}")
    return number


def parse_seconds(name: str, text: str) -> float:
    """Return a number of seconds from 0 to `MAX_SECONDS`, as JSON writes numbers; raise `Refused` for other text."""
    seconds = float(text) if len(text) <= MAX_NUMBER_CHARS and _NUMBER.fullmatch(text) else math.nan
    if not 0 <= seconds <= MAX_SECONDS:
        shown = text[:MAX_SHOWN_CHARS]
        raise Refused(
            Refusal.INVALID_PARAMETER, f"{name}={shown} is not a number of seconds from 0 to {MAX_SECONDS:.0f}"
        )
    return seconds
