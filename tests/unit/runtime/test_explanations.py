"""Explanations: complete, one for each kind, and nothing that no program says any more."""

from typing import get_args

import pytest

from docs import named_kinds
from epochal.runtime.explanations import explanation_of, explanations, is_usual, kind_of, kinds_like
from epochal.state.errors import EpochalError, FailureKind, InvalidInput, Refused, SpoolFull, StoreLost
from epochal.state.refusals import Refusal


def test_everything_that_a_program_says_is_explained_and_nothing_else() -> None:
    assert named_kinds.mistakes() == []


@pytest.mark.parametrize("name", ["CorruptData", "DoesNotFit", "WorkerLost", "EpochalError"])
def test_error_class_of_any_package_counts_as_said(name: str) -> None:
    assert name in named_kinds.error_classes()


@pytest.mark.parametrize("event", ["store_failed", "still_waits", "ended_while_a_thread_was_busy"])
def test_event_of_any_logger_counts_as_said(event: str) -> None:
    assert event in named_kinds.loud_events()


@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_kind_of_a_reported_failure_is_explained(kind: str) -> None:
    assert explanation_of(kind) is not None


def test_kind_without_an_explanation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    less = {kind: found for kind, found in explanations().items() if kind != "key-in-use"}
    monkeypatch.setattr(named_kinds, "explanations", lambda: {**less, "never-said": explanations()["key-in-use"]})
    missing, stale = named_kinds.mistakes()
    assert "does not explain `key-in-use`" in missing
    assert "explains `never-said`" in stale


@pytest.mark.parametrize(
    "name", ["store-failed", "StoreFailed", "store_failed", "store failed", "urn:epochal:problem:store-failed"]
)
def test_kind_is_found_however_it_is_spelt(name: str) -> None:
    found = explanation_of(name)
    assert found is not None
    assert found.kind == "store-failed"


def test_usual_refusals_are_those_that_clients_answer_by_themselves() -> None:
    usual = [found for found in explanations().values() if found.is_usual]
    assert {found.group for found in usual} == {"refusals"}
    assert [found.kind for found in usual if not found.remedy.startswith(("Nothing", "Clients wait"))] == []
    assert is_usual("stale-round")
    assert not any(is_usual(kind) for kind in ("unauthorized", "result-invalid", "corrupt", "never-said"))


def test_summary_of_each_kind_is_one_sentence() -> None:
    for found in explanations().values():
        assert found.means.startswith(found.summary)
        assert found.summary.endswith((".", "?")), found.kind


def test_misspelt_kind_has_near_ones() -> None:
    assert kinds_like("stil_waits", {})[0] == "still-waits"


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
