"""The name that a client chooses for people to read, and other short texts of clients. A name proves nothing: the
client's id does.

Such text comes from another machine, and people see it on pages, in terminals and in logs. So it holds only characters
that are seen: nothing that a terminal obeys, that turns or breaks a line, or that hides.
"""

import re
import unicodedata
from typing import Annotated

from pydantic import AfterValidator, Field, WithJsonSchema

MAX_CLIENT_NAME_CHARS = 64
MAX_SOFTWARE_CHARS = 32
CLIENT_NAME_ALLOWED = (
    f"1 to {MAX_CLIENT_NAME_CHARS} letters, digits, marks, signs and single spaces in Unicode's normal form C; no "
    "control, direction, invisible or line characters"
)
TEXT_ALLOWED = "letters, digits, marks, signs and spaces; no control, direction, invisible or line characters"
_SHOWN_KINDS = frozenset("LMNPS")
"""Unicode's general categories of letters, marks, numbers, punctuation and symbols, each by its first letter."""
SOFTWARE_PATTERN = rf"^[0-9A-Za-z][0-9A-Za-z.+!_-]{{0,{MAX_SOFTWARE_CHARS - 1}}}$"


def name_mistake(name: str) -> str | None:
    """Return what is wrong with a client's name, in words, or None if nothing is."""
    if not name:
        return "it is empty"
    if len(name) > MAX_CLIENT_NAME_CHARS:
        return f"it has {len(name)} characters"
    unseen = _unseen(name)
    if unseen is not None:
        return unseen
    if name != name.strip(" ") or "  " in name:
        return "it has spaces at an end, or two in a row"
    if unicodedata.category(name[0])[0] == "M":
        return "it begins with a mark that changes the character before it"
    return None if unicodedata.is_normalized("NFC", name) else "it is not in Unicode's normal form C"


def _unseen(text: str) -> str | None:
    """Return which character of a text is not seen, in words, or None if all are."""
    for place, char in enumerate(text):
        if char != " " and unicodedata.category(char)[0] not in _SHOWN_KINDS:
            return f"character {place + 1} is U+{ord(char):04X} ({_kind_of(char)})"
    return None


def _kind_of(char: str) -> str:
    return unicodedata.name(char, "a control character, or one without a meaning").lower()


def checked_client_name(name: str) -> str:
    """Return the name. Raise `ValueError` with what is allowed unless a client may have it."""
    mistake = name_mistake(name)
    if mistake is not None:
        raise ValueError(f"{name[:MAX_CLIENT_NAME_CHARS]!a}: {mistake}; allowed: {CLIENT_NAME_ALLOWED}")
    return name


def checked_text(text: str) -> str:
    """Return the text. Raise `ValueError` with what is allowed unless all of its characters are visible."""
    unseen = _unseen(text)
    if unseen is not None:
        raise ValueError(f"{text[:MAX_CLIENT_NAME_CHARS]!a}: {unseen}; allowed: {TEXT_ALLOWED}")
    return text


SEEN = AfterValidator(checked_text)
"""Marks a client's text for people, on one line."""
ClientName = Annotated[
    str,
    AfterValidator(checked_client_name),
    WithJsonSchema(
        {"type": "string", "minLength": 1, "maxLength": MAX_CLIENT_NAME_CHARS, "description": CLIENT_NAME_ALLOWED}
    ),
]
Software = Annotated[str, Field(pattern=SOFTWARE_PATTERN)]
"""The version of a client's program, such as `0.9.0`."""


def software_version(version: str) -> str | None:
    """Return a program's version as a join message states it, or None if it does not fit there."""
    return version if re.fullmatch(SOFTWARE_PATTERN, version) else None


def shown_client(client_id: str, name: str) -> str:
    """Return a client's id, and its name if it has one, for a sentence."""
    return f"{client_id} ({name!r})" if name else client_id
