"""Bounds of the documents and messages by their values: peers of every version agree on them."""

from types import ModuleType

import pytest

from state import (
    datasets,
    documents,
    election,
    intervals,
    merging,
    messages,
    permutation,
    replica,
    results,
    tensors,
    wire,
)
from state.messages import Capabilities
from state.refusals import Refusal

MOST = 2**63 - 1

BOUNDS: dict[ModuleType, dict[str, object]] = {
    datasets: {"MAX_DESCRIBED_FILES": 4, "MAX_DESCRIBED_NAME_CHARS": 64},
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
        "MAX_CLAIMED_TOKENS": MOST,
        "MAX_RELEASED_INTERVALS": 1024,
        "PROTOCOL_VERSION": 1,
    },
    permutation: {"MAX_PERMUTED": 2**63, "FEISTEL_ROUNDS": 16},
    replica: {"_METADATA_BOUND_BYTES": 1024, "_MAX_STEP": MOST},
    results: {"METADATA_BOUND_BYTES": 2048},
    tensors: {
        "MAX_HEADER_BYTES": 16_777_216,
        "CHECK_CHUNK_ELEMENTS": 262_144,
        "MAX_DIMENSIONS": 32,
        "MAX_DIFFERENCES_SHOWN": 3,
        "MAX_NAME_SHOWN": 64,
    },
    wire: {"MAX_REASONS_IN_ERROR": 5, "MAX_SHOWN_CHARS": 80},
}

STATUSES = {
    400: "body-incomplete host-missing",
    401: "unauthorized nonce-invalid",
    403: "access-denied ejected forbidden",
    404: "not-found unknown-run unknown-model unknown-session",
    405: "method-not-allowed",
    408: "body-timeout",
    409: "nonce-consumed key-in-use unsupported-protocol fingerprint-differs already-committed data-undecided behind "
    "late-result not-committed not-in-roster not-now replica-differs stale-round incomplete-step stale-step",
    410: "gone unknown-future",
    413: "body-too-large blob-too-large",
    416: "range-not-satisfiable",
    421: "host-not-allowed",
    422: "invalid-body invalid-parameter result-invalid blob-mismatch invalid-tensors not-saved untrainable",
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
