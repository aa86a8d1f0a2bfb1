"""Receipts: what a member has contributed to a run, signed by the coordinator, and checkable without it."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from epochal.state.documents import Count, HexId, HexSha256
from epochal.state.errors import InvalidDocument
from epochal.state.messages.requests import HexKey, HexSignature, signed_parts
from epochal.state.messages.signed_documents import check_signature
from epochal.state.wire import client_id_of
from epochal.state.wire_document import WireDocument

MAX_ISSUED_S = 253402300799.0
"""The last second of the year 9999, the last one that a calendar here has."""


@dataclass(frozen=True, slots=True)
class ReceiptRequest(WireDocument):
    """A request for a key's receipt, which its owner signs as a join (`JoinRequest`), but over `receipt_message`."""

    public_key: HexKey
    nonce: Annotated[str, Field(max_length=128)]
    signature: HexSignature
    host: Annotated[str, Field(max_length=255)]


def receipt_message(run_id: str, nonce: str, public_key: str, coordinator_key: str, host: str) -> bytes:
    """Return the bytes that who asks for a receipt signs: as `join_message`, with `"epochal/receipt/v1"`."""
    return signed_parts("epochal/receipt/v1", run_id, nonce, public_key, coordinator_key, host)


@dataclass(frozen=True, slots=True)
class Receipt(WireDocument):
    """The contribution of a key's owner to a run since the key was first seen, also of rounds that were compacted.

    Attributes:
        coordinator_key: raw Ed25519 public key, hex, by which it is signed.
        public_key, client_id: the member's.
        issued_s: when, in seconds since 1970 on the coordinator's clock.
        step: last step that the run had applied then.
        outcome_chain: hash over all outcomes up to that step: the `replica_chain` of an audit of the run at that step.
        compacted_segments: number of the journal's segments that were kept as a proof. Their rounds are counted here
            as the proof holds them, and can no longer be counted one by one.
        rounds, batches, tokens: of the results that were applied.
        weighed_tokens: the same tokens, each times the factor with which its result counted.
        first_step, last_step: of the first and last such result; None without one.
        signature: `epochal.state.messages.signed_documents`, hex.
    """

    run_id: str
    lineage: str
    coordinator_key: HexKey
    public_key: HexKey
    client_id: HexId
    issued_s: Annotated[float, Field(ge=0, le=MAX_ISSUED_S)]
    step: Count
    outcome_chain: HexSha256
    compacted_segments: Count
    rounds: Count
    batches: Count
    tokens: Count
    weighed_tokens: float
    first_step: Count | None
    last_step: Count | None
    signature: str = ""


def check_receipt(receipt: Receipt, coordinator_key: str | None = None) -> None:
    """Raise `InvalidDocument` unless a receipt is whole: signed by the key in it, and that the coordinator's, if given.

    Args:
        receipt: from anywhere.
        coordinator_key: of the run, as the checker knows it.
    """
    if coordinator_key is not None and receipt.coordinator_key != coordinator_key:
        raise InvalidDocument(f"the receipt is signed by key {receipt.coordinator_key}; expected: {coordinator_key}")
    check_signature(receipt, receipt.coordinator_key)
    if receipt.client_id != client_id_of(bytes.fromhex(receipt.public_key)):
        raise InvalidDocument(f"client id {receipt.client_id} is not the one of key {receipt.public_key}")
