"""Hides what may be a secret in a file's values before a message shows them: webhooks' addresses and keys.

A file with a mistake does not say what its author meant: an address may stand in the wrong field, in a misspelt table,
or on a line that is not TOML. So all texts in `[notify]` and in tables that are not known are hidden, but for the words
that `[notify]` knows and the names of environment variables; elsewhere addresses, and what is named like a secret, are
hidden where the key is not known.
"""

import re
from collections.abc import Mapping
from typing import Any

TABLE = "notify"
HIDDEN = "(not shown)"
_WORDS = ("url", "secret", "token", "password", "webhook", TABLE)
"""Parts of the names of keys whose values are hidden where the key is not known."""
_PUBLIC_KEYS = ("on",)
_PUBLIC_WORD = re.compile(r"[a-z-]{1,16}")
_VARIABLE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,63}")
_HEADER = re.compile(r"\s*\[+\s*[\"']?([^\]\"'.\s]*)")
_ADDRESS = "://"


def shown_value(value: Any, path: tuple[str | int, ...], *, is_unknown: bool = False) -> Any:
    """Return a value as a message may show it, with `HIDDEN` in place of texts that may be secrets.

    Args:
        value: as the file has it.
        path: of the value in the file.
        is_unknown: whether the key at the end of the path is not known.
    """
    is_private = path[:1] == (TABLE,) or (is_unknown and len(path) == 1)
    return _shown(value, path[-1] if path else "", is_private=is_private, is_unknown=is_unknown)


def _shown(value: Any, key: str | int, *, is_private: bool, is_unknown: bool) -> Any:
    named = is_unknown and any(word in str(key).casefold() for word in _WORDS)
    match value:
        case Mapping():
            return {
                shown_key(name): _shown(item, name, is_private=is_private or named, is_unknown=is_unknown)
                for name, item in value.items()
            }
        case list() | tuple():
            return [_shown(item, key, is_private=is_private, is_unknown=is_unknown) for item in value]
        case str() if _VARIABLE.fullmatch(value) or (key in _PUBLIC_KEYS and _PUBLIC_WORD.fullmatch(value)):
            return value
        case str() if is_private or named or (is_unknown and _ADDRESS in value):
            return HIDDEN
        case int() | float() if is_private and any(word in str(key).casefold() for word in _WORDS):
            return HIDDEN
    return value


def shown_key(key: str | int) -> str:
    """Return a key as a message may show it: `HIDDEN` for an address that was written as one."""
    return HIDDEN if isinstance(key, str) and _ADDRESS in key else str(key)


def shown_line(text: str, line_number: int) -> str:
    """Return a line of a file that is not TOML, without the spaces around it; `HIDDEN` if it may hold a secret.

    Args:
        text: the whole file.
        line_number: of the line, from 1.
    """
    lines = text.split("\n")
    line = lines[line_number - 1].strip()
    headers = (found[1] for one in reversed(lines[:line_number]) if (found := _HEADER.match(one)))
    told = line.casefold()
    is_private = next(headers, "").casefold().startswith(TABLE[:3]) or any(word in told for word in (*_WORDS, _ADDRESS))
    return HIDDEN if is_private else line
