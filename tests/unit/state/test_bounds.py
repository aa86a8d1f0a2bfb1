"""Bounds of the documents and messages by their values: peers of every version agree on them."""

from dataclasses import fields
from types import ModuleType

import pytest

from epochal.state import dataset_descriptions, documents, election, intervals, merging, permutation, results, wire
from epochal.state.errors import Mistake, StoreBlocked
from epochal.state.messages import requests as messages
from epochal.state.messages import round_times
from epochal.state.messages.requests import Capabilities, RunStatus, Standing
from epochal.state.model import layout_difference, replica, tensors
from epochal.state.refusals import Refusal, Retry

MOST = 2**63 - 1

BOUNDS: dict[ModuleType, dict[str, object]] = {
    dataset_descriptions: {"MAX_DESCRIBED_FILES": 4, "MAX_DESCRIBED_NAME_CHARS": 64},
    documents: {
        "DOCUMENT_FORMAT": 1,
        "MAX_RUN_DOCUMENT_BYTES": 4096,
        "MAX_REASON_CHARS": 240,
        "MAX_SHARE": 1_000_000,
        "SHARE_UNITS_PER_BATCH": 8,
        "MAX_ROSTER": 100_000,
    },
    election: {"MAX_WITNESSES": 32},
    intervals: {"MAX_INDEX": MOST},
    merging: {"CHUNK_ELEMENTS": 65_536},
    messages: {
        "MAX_MESSAGE_CHARS": 500,
        "MAX_NAME_CHARS": 64,
        "MAX_FINGERPRINT_CHARS": 128,
        "MAX_DATASETS_IN_STATUS": 4,
        "MAX_RELEASED_INTERVALS": 1024,
        "PROTOCOL_VERSION": 1,
    },
    permutation: {"MAX_PERMUTED": 2**63, "FEISTEL_ROUNDS": 16},
    replica: {"_METADATA_BOUND_BYTES": 1024, "_MAX_STEP": MOST},
    round_times: {"MAX_CLAIMED_TOKENS": MOST, "MAX_TOLD_MS": 10**12, "MAX_TOLD_BYTES": 2**53},
    results: {"METADATA_BOUND_BYTES": 2048},
    tensors: {
        "CHECK_CHUNK_ELEMENTS": 262_144,
        "MAX_DIMENSIONS": 32,
    },
    layout_difference: {"MAX_DIFFERENCES_SHOWN": 3, "MAX_NAME_SHOWN": 64},
    wire: {"MAX_REASONS_IN_ERROR": 5, "MAX_SHOWN_CHARS": 80},
}

STATUSES = {
    400: "body-incomplete host-missing",
    401: "unauthorized nonce-invalid",
    403: "access-denied ejected forbidden",
    404: "not-found unknown-run unknown-session",
    405: "method-not-allowed",
    408: "body-timeout",
    409: "nonce-consumed key-in-use unsupported-codec unsupported-protocol fingerprint-differs already-committed "
    "data-undecided behind late-result not-committed not-in-roster not-now offset-differs replica-differs "
    "stale-round incomplete-step stale-step",
    410: "gone",
    413: "body-too-large blob-too-large",
    416: "range-not-satisfiable",
    421: "host-not-allowed",
    422: "invalid-body invalid-parameter result-invalid blob-mismatch invalid-tensors untrainable",
    429: "rate-limited",
    500: "internal unknown",
    503: "overloaded run-full store-failed",
    507: "blobs-full",
}


@pytest.mark.parametrize("module", BOUNDS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_bounds_of_the_documents_have_these_values(module: ModuleType) -> None:
    assert {name: getattr(module, name) for name in BOUNDS[module]} == BOUNDS[module]


def test_each_refusal_is_answered_with_this_http_status() -> None:
    found: dict[int, set[str]] = {}
    for refusal in Refusal:
        found.setdefault(refusal.status, set()).add(refusal.value)
    assert found == {status: set(names.split()) for status, names in STATUSES.items()}


def test_client_that_claims_nothing_takes_one_batch_a_round() -> None:
    assert Capabilities().batches_per_round == 1


def test_refusals_may_be_tried_again_later_or_anew_alone() -> None:
    assert {refusal.retry for refusal in Refusal if refusal.may_retry} == {Retry.LATER, Retry.ANEW}
    assert {refusal.retry for refusal in Refusal if not refusal.may_retry} == {Retry.NEVER, Retry.LEAVE}
    assert Refusal.of("no such reason") is Refusal.UNKNOWN


def test_status_that_says_nothing_of_it_has_no_misses_and_no_pause() -> None:
    defaults = {(kind, field.name): field.default for kind in (Standing, RunStatus) for field in fields(kind)}
    assert (defaults[Standing, "missed"], defaults[RunStatus, "pausing"]) == (0, False)


def test_store_that_does_not_know_what_it_needs_needs_no_bytes() -> None:
    assert StoreBlocked("full", is_full=True).needed_bytes == 0


def test_mistake_says_what_is_wrong_and_what_would_be_right() -> None:
    assert str(Mistake("a.b", "3", "1 or 2")) == "a.b is 3; allowed: 1 or 2"
    assert str(Mistake("", None, "1", nearest="c")) == "(file) is missing; allowed: 1 (did you mean `c`?)"


def test_work_list_has_isolated_intervals_first() -> None:
    work = documents.WorkList((documents.IsolatedWork(intervals.BatchId(9, 9), ()),), (intervals.BatchId(1, 2),))
    assert work.intervals() == (intervals.BatchId(9, 9), intervals.BatchId(1, 2))
    assert work.batch_count() == 3


@pytest.mark.parametrize(
    ("elected", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4), (9, 6), (32, 21)]
)
def test_quorum_is_two_thirds_rounded_down_and_more_than_half(elected: int, needed: int) -> None:
    assert election.quorum(elected) == needed
