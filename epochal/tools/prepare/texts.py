"""The documents of a portion: UTF-8, each with its place, and what is wrong with the others."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from epochal.data_providers.protocol import CorruptData
from epochal.tools.prepare.portions import BLANK_LINES, MAX_BLANK_BYTES, Place, Portion
from epochal.tools.prepare.prepare_options import PrepareOptions

DIGEST_BYTES = 16
"""Size of a document's digest: two different texts among 10¹² have the same one with a probability of 10⁻¹⁵."""
MAX_FIELDS_SHOWN = 10
_LEADING_BLANK_LINES = re.compile(rb"(?:[ \t\r]{0,%d}\n)*" % MAX_BLANK_BYTES)
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def digest_of(text: bytes) -> bytes:
    """Return the digest of a document's text, by which repeats are found and documents are held out."""
    return hashlib.blake2b(text, digest_size=DIGEST_BYTES, person=b"epochal/prepare").digest()


@dataclass
class Documents:
    """The documents of a portion.

    Attributes:
        texts: each as valid UTF-8.
        places: where each of them is.
        empty, replaced: numbers of documents, as in `EncodedPortion`.
        skipped, bad: sentences, as in `EncodedPortion`.
    """

    texts: list[bytes] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    empty: int = 0
    replaced: int = 0
    skipped: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, portion: Portion, options: PrepareOptions, of_record: Callable[[Any], bytes] | None = None
    ) -> "Documents":
        """Return the documents of a portion.

        Args:
            portion: of the sources.
            options: say what is text, and what is done with text that is not valid.
            of_record: returns the text of a JSON record, or raises `CorruptData`; None: that of its text field.
        """
        found = cls()
        for place, raw in _raw_documents(portion):
            text = found._valid(place, raw, options)
            if text is not None and portion.form == "records":
                text = found._of_record(place, text, options, of_record)
            if text is None:
                continue
            if not text or text.isspace():
                found.empty += portion.form not in ("lines", "blank-lines")  # those are separators
            elif len(text) > options.max_document_bytes:
                most = options.max_document_bytes
                found.bad.append(
                    f"{in_words(place)}: a document of {len(text)} bytes; allowed: --max-document-bytes {most}"
                )
            else:
                found.texts.append(text)
                found.places.append(place)
        return found

    def _valid(self, place: Place, raw: bytes, options: PrepareOptions) -> bytes | None:
        """Return a document's bytes if they are UTF-8, or as the options say if they are not."""
        if place.offset == 0 and raw.startswith(_BOM):
            raw = raw.removeprefix(_BOM)
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as error:
            hint = "; it looks like UTF-16" if place.offset == 0 and raw.startswith(_UTF_16) else ""
            at = f"byte {error.start} of the row" if place.offset is None else f"byte {place.offset + error.start}"
            self._invalid(f"{in_words(place)}: not UTF-8 at {at} ({raw[error.start]:#04x}){hint}", options)
            if options.invalid_text == "replace":
                self.replaced += 1
                return raw.decode("utf-8", "replace").encode()
            return None
        return raw

    def _invalid(self, message: str, options: PrepareOptions) -> None:
        if options.invalid_text == "skip":
            self.skipped.append(message)
        elif options.invalid_text == "error":
            allowed = "allowed: text in UTF-8, or --invalid-text skip or replace"
            self.bad.append(f"{message}; {allowed}")

    def _of_record(
        self, place: Place, line: bytes, options: PrepareOptions, of_record: Callable[[Any], bytes] | None
    ) -> bytes | None:
        """Return the text of a line of JSON, or None."""
        if not line or line.isspace():
            return None
        name, where = options.text_field, in_words(place)
        try:
            record = json.loads(line.decode())
        except json.JSONDecodeError as error:
            self.bad.append(f"{where}: not JSON at character {error.pos}: {error.msg}")
            return None
        except (ValueError, RecursionError) as error:  # a number of many digits, or a thousand brackets
            self.bad.append(f"{where}: not JSON that can be read: {error}")
            return None
        if of_record is not None:
            try:
                return of_record(record)
            except CorruptData as error:
                self.bad.append(f"{where}: {error.message}")
                return None
        if not isinstance(record, dict) or not isinstance(record.get(name), str):
            self.bad.append(f"{where}: {_without_text(record, name)}")
            return None
        text: str = record[name]
        try:
            return text.encode()
        except UnicodeEncodeError as error:  # half of a surrogate pair
            self._invalid(f"{where}: {name} has a lone surrogate at character {error.start}", options)
            if options.invalid_text == "replace":
                self.replaced += 1
                return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
            return None


def _without_text(record: object, name: str) -> str:
    if not isinstance(record, dict):
        return f"a JSON {type(record).__name__}; allowed: an object with the text in {name!r} (--text-field)"
    if name in record:
        return f"{name!r} is a JSON {type(record[name]).__name__}; allowed: a string"
    shown = ", ".join(map(repr, list(record)[:MAX_FIELDS_SHOWN])) or "none"
    return f"there is no {name!r}; allowed for --text-field: {shown}"


def in_words(place: Place) -> str:
    """Return a place for messages."""
    return f"{place.file}, {'row' if place.offset is None else 'line'} {place.line}"


def _raw_documents(portion: Portion) -> Iterator[tuple[Place, bytes]]:
    """Yield each document's place and bytes, as the sources hold them."""
    for place, part in zip(portion.places, portion.parts, strict=True):
        if portion.form == "texts":
            yield place, part
        elif portion.form == "blank-lines":
            yield from _between(place, part)
        else:
            offset = place.offset or 0
            for number, line in enumerate(part.split(b"\n")):
                yield Place(place.file, offset, place.line + number), line.removesuffix(b"\r")
                offset += len(line) + 1


def _between(place: Place, part: bytes) -> Iterator[tuple[Place, bytes]]:
    begin, line = 0, place.line
    for found in [*BLANK_LINES.finditer(part), None]:
        end = len(part) if found is None else found.start()
        leading = _LEADING_BLANK_LINES.match(part, begin, end)
        start = begin if leading is None else leading.end()
        first_line = line + part.count(b"\n", begin, start)
        yield Place(place.file, (place.offset or 0) + start, first_line), part[start:end].rstrip(b"\r\n")
        if found is not None:
            line += part.count(b"\n", begin, found.end())
            begin = found.end()
