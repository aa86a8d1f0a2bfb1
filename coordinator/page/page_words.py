"""The modules of the page that are made from the tables of words: what the page calls things is what others call them.

The rule kept here: a word that another program shows as well is in `runtime` alone.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, get_args

from epochal.runtime.explanations import explanation_of
from epochal.runtime.glossary import WORDS
from epochal.state.errors import FailureKind
from epochal.state.refusals import Refusal
from epochal.state.shown.glossary import FATES, NOT_REPORTED, PARTS, PHASES, WHOSE_NOBODY
from epochal.state.shown.installing import INSTALL_NOTE, install_command
from epochal.state.shown.join_guide import CERTIFICATE_FILE
from epochal.state.shown.smoothing import SMOOTHED_PART


def words_module() -> str:
    """Return `words.js`: the words of a run's views, and what they mean."""
    parts = {name: asdict(part) for name, part in PARTS.items()} | {"unknown": asdict(NOT_REPORTED)}
    return _module(
        "The words of a run's views, made from the coordinator's own tables.",
        PARTS=parts,
        WHOSE_NOBODY=dict(WHOSE_NOBODY),
        FATES=dict(FATES),
        PHASES={str(phase.value): words for phase, words in PHASES.items()},
        WORDS=dict(WORDS),
        INSTALL_NOTE=INSTALL_NOTE.replace("`", ""),
        INSTALL=(install_command(), install_command("EXTRAS")),
        SMOOTHED_PART=SMOOTHED_PART,
        CERTIFICATE_FILE=CERTIFICATE_FILE,
    )


def kinds_module() -> str:
    """Return `kinds.js`: what each kind of refusal and of failure means."""
    found = {kind: explanation_of(kind) for kind in (*map(str, Refusal), *get_args(FailureKind))}
    kinds = {kind: {"page": known.kind, "means": known.summary} for kind, known in found.items() if known is not None}
    return _module("Kinds of refusals and failures, made from the coordinator's own explanations.", KINDS=kinds)


MODULES: Mapping[str, Callable[[], str]] = MappingProxyType({"words.js": words_module, "kinds.js": kinds_module})
"""The maker of each of these modules, by its name."""


def _module(says: str, **tables: Any) -> str:
    lines = [f"export const {name} = {json.dumps(table, ensure_ascii=False)};" for name, table in tables.items()]
    return "\n".join((f"// {says}", *lines, ""))
