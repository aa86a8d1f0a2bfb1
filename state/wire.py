"""Encoding and strict parsing of documents: canonical JSON and SHA-256 digests.

The rule kept here: equal documents are equal bytes on every machine, so that a digest names a document. Canonical
JSON has sorted keys, no spaces, ASCII only and no NaN; floats appear only in documents whose digests are not compared.
"""

import hashlib
import json
from collections.abc import Hashable
from dataclasses import fields
from functools import cache
from typing import Any, NewType, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from state.errors import InvalidDocument

ClientId = NewType("ClientId", str)
"""The first 16 bytes of SHA-256 of a client's Ed25519 public key, as 32 lowercase hex characters."""

Sha256 = NewType("Sha256", str)
"""A SHA-256 digest as 64 lowercase hex characters."""

Seed = NewType("Seed", str)
"""32 random bytes as 64 lowercase hex characters."""

MAX_REASONS_IN_ERROR = 5

T = TypeVar("T")


def sha256_hex(data: bytes | bytearray | memoryview) -> Sha256:
    """Return the SHA-256 digest of the bytes, in lowercase hex."""
    return Sha256(hashlib.sha256(data).hexdigest())


def client_id_of(public_key: bytes) -> ClientId:
    """Return the client id of a raw Ed25519 public key (32 bytes)."""
    return ClientId(hashlib.sha256(public_key).hexdigest()[:32])


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def _fields_of(document: Any) -> dict[str, Any]:
    kind: Any = type(document)
    return {name: getattr(document, name) for name in _field_names(kind)}


def canonical_json(document: Any) -> bytes:
    """Return the one encoding of a document (a dataclass instance or plain JSON values), as ASCII bytes."""
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, default=_fields_of
    ).encode("ascii")


def document_digest(document: Any) -> Sha256:
    """Return the SHA-256 digest of the document's canonical JSON."""
    return sha256_hex(canonical_json(document))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class WireDocument:
    """Base of every document and message: an unknown field is an error and not a silent loss, and so is a NaN."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)


def parse_document(kind: type[T], data: bytes | str) -> T:
    """Return the document of type `kind` in the JSON bytes, every field checked.

    Raises:
        InvalidDocument: the bytes are not JSON or break a field's rule; the sender's fault, do not retry.
    """
    try:
        document: T = _adapter(cast("Hashable", kind)).validate_json(data)
    except ValidationError as error:
        places = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or '(document)'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)[:MAX_REASONS_IN_ERROR]
        )
        raise InvalidDocument(f"not a valid {kind.__name__}: {places}", document=kind.__name__) from error
    return document


def to_plain(document: Any) -> Any:
    """Return the document as plain JSON values (dicts, lists, strings, numbers)."""
    return json.loads(canonical_json(document))
