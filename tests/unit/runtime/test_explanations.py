"""Explanations: complete, one for each kind, and nothing that no program says any more."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from run_manager.agent import EndReason
from runtime.explanations import explanation_of, explanations, kind_name, kind_of, kinds_like
from state.errors import EpochalError, InvalidInput, Refused, SpoolFull, StoreLost
from state.refusals import Refusal

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "batching", "coordinator", "coordinator_client", "data_providers", "epochal", "run_manager", "runtime", "state",
    "trainers", "training_service",
)  # fmt: skip
LOUD = {"warning", "error", "critical", "exception"}
EVENT = re.compile(r"[a-z0-9]+(_[a-z0-9]+)+")
ADVICE = "add an entry to runtime/explanations.toml"


def nodes() -> Iterator[ast.AST]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def events() -> set[str]:
    """The events that any program logs as a warning or worse."""
    return {
        str(node.args[0].value)
        for node in nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOUD and node.args
        if isinstance(node.args[0], ast.Constant) and EVENT.fullmatch(str(node.args[0].value))
    }


@pytest.fixture(scope="module")
def errors() -> set[str]:
    """The names of all public error classes of the project, in every file, whatever is installed."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases} for node in nodes() if isinstance(node, ast.ClassDef)
    }
    found = {"EpochalError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return {name for name in found if not name.startswith("_")}


def test_every_refusal_is_explained() -> None:
    missing = [kind.value for kind in Refusal if explanation_of(kind) is None]
    assert missing == [], ADVICE


def test_every_error_class_is_explained(errors: set[str]) -> None:
    missing = sorted(name for name in errors if explanation_of(name) is None)
    assert missing == [], ADVICE


def test_every_warning_of_the_log_is_explained(events: set[str]) -> None:
    missing = sorted(event for event in events if explanation_of(event) is None)
    assert missing == [], ADVICE


def test_every_way_a_client_ends_is_explained() -> None:
    missing = [reason.value for reason in EndReason if explanation_of(reason) is None]
    assert missing == [], ADVICE


def test_nothing_is_explained_that_no_program_says(errors: set[str], events: set[str]) -> None:
    known = {kind_name(name) for name in (*Refusal, *errors, *events, *EndReason)}
    assert sorted(explanations().keys() - known) == []


def test_every_kind_is_explained_once() -> None:
    groups = tomllib.loads((ROOT / "runtime/explanations.toml").read_text(encoding="utf-8"))
    assert sum(len(entries) for entries in groups.values()) == len(explanations())


@pytest.mark.parametrize(
    "name", ["store-failed", "StoreFailed", "store_failed", "store failed", "urn:epochal:problem:store-failed"]
)
def test_kind_is_found_however_it_is_spelt(name: str) -> None:
    found = explanation_of(name)
    assert found is not None
    assert found.kind == "store-failed"


def test_misspelt_kind_has_near_ones() -> None:
    assert kinds_like("stil_waits")[0] == "still-waits"


class LaterError(SpoolFull):
    """An error that came later, or from a package of somebody else."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Refused(Refusal.KEY_IN_USE, "no"), "key-in-use"),
        (StoreLost("gone"), "store-lost"),
        (LaterError("full"), "spool-full"),
        (InvalidInput("wrong"), "invalid-input"),
        (EpochalError("failed"), "epochal-error"),
    ],
)
def test_kind_of_an_error_is_the_most_exact_that_is_explained(error: EpochalError, kind: str) -> None:
    assert kind_of(error) == kind
