"""Documents that carry a signature (Ed25519) in a field of their own, so that anybody can check them later, offline.

Signed are the bytes `epochal/NAME/v1`, a zero byte, and the document's canonical JSON with an empty `signature`. NAME
is the document's type, so that a signature of one kind of document is never one of another kind.
"""

from dataclasses import replace
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from epochal.state.errors import InvalidDocument
from epochal.state.wire import canonical_json


def signed_bytes(document: Any) -> bytes:
    """Return the bytes of a document (a dataclass with a `signature`) that its signature covers."""
    return b"epochal/" + type(document).__name__.encode() + b"/v1\0" + canonical_json(replace(document, signature=""))


def check_signature(document: Any, public_key: str) -> None:
    """Raise `InvalidDocument` unless a document's signature is by this key (raw Ed25519 public key, hex)."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(document.signature), signed_bytes(document))
    except (InvalidSignature, ValueError):
        name = type(document).__name__
        raise InvalidDocument(f"the {name} is not signed by key {public_key}, or was changed", document=name) from None
