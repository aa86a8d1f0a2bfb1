"""Encoding and strict parsing of documents: canonical JSON and SHA-256 digests.

The rule kept here: equal documents are equal bytes on every machine, so that a digest names a document. Canonical
JSON has sorted keys, no spaces, ASCII only and no NaN; floats appear only in documents whose digests are not compared.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import fields
from functools import cache
from typing import Any, NewType, TypeAlias, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from epochal.state.errors import InvalidDocument
from epochal.state.reader_limits import MAX_JSON_VALUES

ClientId = NewType("ClientId", str)
"""The first 16 bytes of SHA-256 of a client's Ed25519 public key, as 32 lowercase hex characters."""

Sha256 = NewType("Sha256", str)
"""A SHA-256 digest as 64 lowercase hex characters."""

Blake3: TypeAlias = str
"""A BLAKE3 digest as 64 lowercase hex characters: that of a replica."""

Seed = NewType("Seed", str)
"""32 random bytes as 64 lowercase hex characters."""

MAX_REASONS_IN_ERROR = 5
MAX_EXACT = 2**53
"""The largest magnitude up to which every whole number is a distinct float."""
MAX_SHOWN_CHARS = 80
"""Maximum length of a sender's own text in an error about it."""

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


def strict_json(data: bytes | str) -> Any:
    """Return the plain values in the JSON bytes; a number without a fraction, such as 1.0, is an integer.

    Raises:
        ValueError: the bytes are not JSON by RFC 8259, hold NaN, a number beyond a float's or half a surrogate pair,
            are nested too deeply, or give a key twice in one object: JSON readers differ in what they make of these.
    """
    check_json_values(data)
    from_json(data, allow_inf_nan=False)
    return _load(data)


def load_json(data: bytes | str) -> Any:
    """Return the plain values in a JSON text, as lenient as Python's reader but for the number of values.

    Raises:
        ValueError: it is not JSON, or may have more than `MAX_JSON_VALUES` values.
        RecursionError: it is nested too deeply.
    """
    check_json_values(data)
    return json.loads(data)


def check_json_values(data: bytes | str) -> None:
    """Raise `ValueError` if a JSON text may hold more than `MAX_JSON_VALUES` values, which would take much memory."""
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    found = text.count(b",") + text.count(b"[") + text.count(b"{")
    if found > MAX_JSON_VALUES:
        raise ValueError(f"it may hold {found} values; at most {MAX_JSON_VALUES}")


def _load(data: bytes | str) -> Any:
    """Return the values in bytes that a stricter reader has taken, for what that reader does not see."""
    return json.loads(data, object_pairs_hook=unique_keys, parse_float=_number)


def _number(text: str) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:MAX_SHOWN_CHARS]} is too large")
    return int(number) if number.is_integer() and abs(number) <= MAX_EXACT else number


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of a JSON object as a dictionary; `ValueError` if a key occurs twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        doubled = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {doubled[:MAX_SHOWN_CHARS]!r} occurs twice")
    return found


def parse_document(kind: type[T], data: bytes | str) -> T:
    """Return the document of type `kind` in the JSON bytes, every field checked.

    Raises:
        InvalidDocument: the bytes are not JSON as `strict_json` reads it, or break a field's rule; the sender's fault,
            do not retry.
    """
    try:
        document: T = _validated(_adapter(cast("Hashable", kind)), data)
    except ValidationError as error:
        places = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or '(document)'}: {problem['msg']}"
            for problem in error.errors(include_url=False, include_input=False)[:MAX_REASONS_IN_ERROR]
        )
        raise InvalidDocument(f"not a valid {kind.__name__}: {places}", document=kind.__name__) from error
    except ValueError as error:
        raise InvalidDocument(f"not a valid {kind.__name__}: {error}", document=kind.__name__) from error
    return document


def _validated(adapter: TypeAdapter[Any], data: bytes | str) -> Any:
    try:
        document = adapter.validate_json(data)
    except ValidationError:  # a whole number may be written with a fraction, which pydantic does not take
        return adapter.validate_json(json.dumps(strict_json(data)))
    _load(data)
    return document


def to_plain(document: Any) -> Any:
    """Return the document as plain JSON values (dicts, lists, strings, numbers)."""
    return json.loads(canonical_json(document))
