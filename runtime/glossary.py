"""The glossary: the words with which a run is described, and their meanings, which `glossary.toml` holds.

The rule kept here: `docs/concepts.md`, the run's page and the terminal show these texts, and none of their own.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from epochal.state.shown.glossary import NOT_REPORTED, PARTS


@dataclass(frozen=True, slots=True)
class Word:
    """The meaning of a word.

    Attributes:
        means: plain text, for everybody.
        more: Markdown that only the documentation adds; "" without any.
    """

    means: str
    more: str = ""


def _tables() -> dict[str, Any]:
    return tomllib.loads((files("epochal.runtime") / "glossary.toml").read_text(encoding="utf-8"))


_READ = _tables()
GLOSSARY: Mapping[str, Word] = MappingProxyType({name: Word(**word) for name, word in _READ["words"].items()})
"""The words of a run, in the order of the documentation."""
WORDS: Mapping[str, str] = MappingProxyType(
    {name: word.means for name, word in GLOSSARY.items()}
    | {part.label: part.means for part in (*PARTS.values(), NOT_REPORTED)}
)
"""The meaning of each word of a run's views: those of the glossary, and the parts of a client's round."""
STATUS: Mapping[str, str] = MappingProxyType(
    {
        name: means if isinstance(means, str) else GLOSSARY[means["word"]].means
        for name, means in _READ["status"].items()
    }
)
"""Words of the panel of `epochal status`."""
CHECKS: Mapping[str, str] = MappingProxyType(_READ["checks"])
"""Fields of the reports of a local run, of an audit and of a backup."""
