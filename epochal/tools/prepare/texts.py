"""The documents of a portion: UTF-8, each with its place, and what is wrong with the others."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from epochal.batching.chunking.datum_records import is_datum
from epochal.data_providers.protocol import CorruptData
from epochal.tools.prepare.portions import Portion
from epochal.tools.prepare.prepare_options import PrepareOptions

DIGEST_BYTES = 16
"""Size of a document's digest: two different texts among 10¹² have the same one with a probability of 10⁻¹⁵."""
MAX_FIELDS_SHOWN = 10
_BOM = b"\xef\xbb\xbf"


def digest_of(text: bytes) -> bytes:
    """Return the digest of a document's text, by which repeats are found and documents are held out."""
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES, person=b"epochal/prepare").digest()


class _Bad(Exception):
    """A document is wrong: how."""


@dataclass
class Documents:
    """The documents of a portion.

    Attributes:
        texts: each as valid UTF-8.
        places: where each of them is.
        empty: number of documents, as in `EncodedPortion`.
        bad: sentences, as in `EncodedPortion`.
    """

    texts: list[bytes] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    empty: int = 0
    bad: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, portion: Portion, options: PrepareOptions, of_record: Callable[[Any], bytes] | None = None
    ) -> "Documents":
        """Return the documents of a portion.

        Args:
            portion: of the sources.
            options: say what is text.
            of_record: returns the text of a JSON record, or raises `CorruptData`; None: that of its text field.
        """
        found = cls()
        is_cut = portion.kind == "records" or (portion.kind == "text" and options.documents != "file")
        for number, raw in enumerate(portion.texts):
            try:
                text = _valid(raw.removeprefix(_BOM) if portion.rows[number] == 1 else raw)
                if is_cut:
                    text = text.rstrip(b"\r\n")
                if portion.kind == "records" and text and not text.isspace():
                    text = _of_record(text, options, of_record)
            except _Bad as error:
                found.bad.append(f"{portion.place(number)}: {error}")
                continue
            if not text or text.isspace():
                found.empty += not is_cut or not raw.isspace()  # blank lines are separators
            else:
                found.texts.append(text)
                found.places.append(portion.place(number))
        return found


def _valid(raw: bytes) -> bytes:
    """Return a document's bytes. Raise `_Bad` unless they are UTF-8."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Bad(f"not UTF-8 at its byte {error.start} ({raw[error.start]:#04x})") from error
    return raw


def _of_record(line: bytes, options: PrepareOptions, of_record: Callable[[Any], bytes] | None) -> bytes:
    """Return the text of a line of JSON."""
    name = options.text_field
    try:
        record = json.loads(line.decode())
    except json.JSONDecodeError as error:
        raise _Bad(f"not JSON at character {error.pos}: {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of many digits, or a thousand brackets
        raise _Bad(f"not JSON that can be read: {error}") from error
    if of_record is not None:
        try:
            return of_record(record)
        except CorruptData as error:
            raise _Bad(error.message) from error
    if not isinstance(record, dict) or not isinstance(record.get(name), str):
        raise _Bad(_without_text(record, name))
    text: str = record[name]
    try:
        return text.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise _Bad(f"{name} has a lone surrogate at character {error.start}") from error


def _without_text(record: object, name: str) -> str:
    if not isinstance(record, dict):
        return f"a JSON {type(record).__name__}; allowed: an object with the text in {name!r} (--text-field)"
    if is_datum(record):
        allowed = 'text; train on such files as they are, with data_type = "Multimodal"'
        return f"a sample of text and images, which is not prepared; allowed: {allowed}"
    if name in record:
        return f"{name!r} is a JSON {type(record[name]).__name__}; allowed: a string"
    shown = ", ".join(map(repr, list(record)[:MAX_FIELDS_SHOWN])) or "none"
    return f"there is no {name!r}; allowed for --text-field: {shown}"
