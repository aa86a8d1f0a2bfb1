"""The explanations of refusals, failures and warnings by kind, each with a remedy: the texts of `explanations.toml`.

The rule kept here: one text for the command line, the services' pages and the documentation. A kind is a refusal's
value, or the name of an error class or log event with hyphens.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from epochal.state.errors import EpochalError, InvalidInput, Refused

GROUPS = MappingProxyType(
    {"refusals": "Refusals", "errors": "Errors of programs", "ends": "How a client ends", "log": "Warnings in the log"}
)
"""Title of each group of kinds."""


SHORT_NAMES = MappingProxyType(
    {
        "unavailable": "source-unavailable",
        "corrupt": "corrupt-data",
        "trainer": "trainer-failed",
        "not-finite": "trainer-failed",
    }
)
"""Kinds by the names that they have in a client's report of a failure
(`epochal.state.errors.FailureKind`)."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One kind. Text in backquotes is code.

    Attributes:
        kind: its name, with hyphens.
        group: one of `GROUPS`.
        means: why it happens.
        remedy: what to do.
        is_usual: whether it happens in healthy runs, too, because clients wait, repeat and leave.
    """

    kind: str
    group: str
    means: str
    remedy: str
    is_usual: bool = False

    @property
    def summary(self) -> str:
        """The first sentence of why it happens."""
        return re.split(r"(?<=\.) ", self.means, maxsplit=1)[0]


@cache
def explanations() -> dict[str, Explanation]:
    """Return every explanation by its kind, in the order of the file."""
    groups = tomllib.loads(files("epochal.runtime").joinpath("explanations.toml").read_text(encoding="utf-8"))
    return {
        kind: Explanation(kind, group, entry["means"], entry["do"], entry.get("usual", False))
        for group, entries in groups.items()
        for kind, entry in entries.items()
    }


def kind_name(name: str) -> str:
    """Return the kind that a refusal, a class (`StoreFailed`) or a log event (`store_failed`) is called by."""
    with_hyphens = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name.strip())
    return with_hyphens.replace("_", "-").replace(" ", "-").lower().removeprefix("urn:epochal:problem:")


def explanation_of(name: str) -> Explanation | None:
    """Return the explanation of a kind, however it is spelt, or None."""
    kind = kind_name(name)
    return explanations().get(SHORT_NAMES.get(kind, kind))


def is_usual(kind: str) -> bool:
    """Return whether a kind happens in healthy runs, too. One that is not known does not."""
    found = explanation_of(kind)
    return found is not None and found.is_usual


def kinds_like(name: str, words: Mapping[str, str]) -> list[str]:
    """Return up to five kinds, or words (by their lower case), that a misspelt one may mean, the nearest first."""
    found = difflib.get_close_matches(kind_name(name), [*explanations(), *words], n=5, cutoff=0.6)
    return [words.get(near, near) for near in found]


def kind_of(error: EpochalError) -> str:
    """Return the kind under which an error is explained: its refusal, or its nearest class that has an entry.

    An `InvalidInput` that was raised because of a more exact error is explained as that one.
    """
    known = explanations()
    if type(error) is InvalidInput and isinstance(error.__cause__, EpochalError):
        return kind_of(error.__cause__)
    if isinstance(error, Refused) and error.kind in known:
        return str(error.kind)
    return next(kind for each in type(error).__mro__ if (kind := kind_name(each.__name__)) in known)
