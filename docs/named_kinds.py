"""Every kind that programs report: refusals, error classes, warnings of the log, and how a client ends.

Sources are read, not imported, so the answer is the same whatever is installed.
"""

import re
from functools import cache
from pathlib import Path

from epochal.run_manager.agent import EndReason
from epochal.runtime.explanations import explanations, kind_name
from epochal.state.refusals import Refusal

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "batching", "coordinator", "coordinator_client", "data_providers", "epochal", "run_manager", "runtime", "state",
    "trainers", "training_service",
)  # fmt: skip
_LOUD_EVENT = re.compile(r'\.(?:warning|error|critical|exception)\(\s*"([a-z0-9]+(?:_[a-z0-9]+)+)"')
"""What a logger writes that somebody should read."""
_CLASS = re.compile(r"^ *class (\w+)\(([^)]*)\)", re.MULTILINE)


@cache
def kinds() -> frozenset[str]:
    """Return the kind of everything that a program may say."""
    return frozenset(kind_name(name) for name in (*Refusal, *EndReason, *error_classes(), *loud_events()))


@cache
def loud_events() -> frozenset[str]:
    """Return the events that any program logs as a warning or worse."""
    return frozenset(event for source in _sources() for event in _LOUD_EVENT.findall(source))


@cache
def error_classes() -> frozenset[str]:
    """Return the names of the public error classes, in every file."""
    bases = {name: set(re.findall(r"[\w.]+", above)) for source in _sources() for name, above in _CLASS.findall(source)}
    found = {"EpochalError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return frozenset(name for name in found if not name.startswith("_"))


def mistakes() -> list[str]:
    """Return a line for each kind without an explanation, and for each explanation of a kind that no code reports."""
    known, where = explanations().keys(), "runtime/explanations.toml"
    return [
        *(
            f"{where} does not explain `{kind}`: add an entry, with `means` and `do`"
            for kind in sorted(kinds() - known)
        ),
        *(f"{where} explains `{kind}`, which no program says" for kind in sorted(known - kinds())),
    ]


@cache
def _sources() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
