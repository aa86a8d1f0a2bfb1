"""WebDataset's tar files: neighbouring members with the same name up to its first dot are one sample.

Of a sample, `NAME.json` is the record and `NAME.txt` a text: without a record the record is `{"text": …}`, and beside
one that has no `text` it becomes its `text`. Other members (images, sound) are left out. Nothing is ever unpacked by a
member's name, so a name can do no harm. Tar itself: POSIX 1003.1 (ustar, pax) and GNU's long names.
"""

import hashlib
import json
import tarfile
from array import array
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.protocol import CorruptData
from epochal.state.reader_limits import MAX_LINE_BYTES, MAX_TAR_END_BYTES, MAX_TAR_HEADER_BYTES, MAX_TAR_MEMBERS
from epochal.state.wire import load_json

BLOCK_BYTES = 512
_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL_PAX = tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, b"xX", b"g"
_NOT_THERE = -1
_SHOWN_CHARACTERS = 100

Places = NDArray[np.int64]
"""Samples' places, `(4, n)`: first byte and end of the record, first byte and end of the text; -1 for none."""


@dataclass(slots=True)
class _Found:
    """The samples so far, and the one that is not finished."""

    place: str
    places: "array[int]" = field(default_factory=lambda: array("q"))
    keys: "array[int]" = field(default_factory=lambda: array("Q"))
    key: str | None = None
    held: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, name: str, start: int, size_bytes: int) -> None:
        key, kind = _key_and_kind(name)
        if key is None:
            return
        if key != self.key:
            self.finish()
            self.key = key
        if kind not in ("json", "txt"):
            return
        if kind in self.held:
            raise CorruptData(f"{self.place} holds {_shown(name)} twice", place=self.place)
        if size_bytes > MAX_LINE_BYTES:
            raise CorruptData(f"{self.place}: {_shown(name)} has {size_bytes} bytes; at most {MAX_LINE_BYTES}")
        self.held[kind] = start, start + size_bytes

    def finish(self) -> None:
        if self.held:
            self.places.extend(self.held.get("json", (_NOT_THERE, _NOT_THERE)))
            self.places.extend(self.held.get("txt", (_NOT_THERE, _NOT_THERE)))
            digest = hashlib.blake2b((self.key or "").encode("utf-8", "surrogateescape"), digest_size=8).digest()
            self.keys.append(int.from_bytes(digest, "little"))
            self.held = {}

    def all(self) -> Places:
        self.finish()
        keys = np.frombuffer(self.keys, np.uint64) if self.keys else np.zeros(0, np.uint64)
        order = np.argsort(keys, kind="stable")
        twice = np.flatnonzero(keys[order][1:] == keys[order][:-1])
        if len(twice):
            first, second = order[twice[0]] + 1, order[twice[0] + 1] + 1
            raise CorruptData(f"{self.place}: samples {first} and {second} have the same name", place=self.place)
        flat = np.frombuffer(self.places, np.int64) if self.places else np.zeros(0, np.int64)
        return flat.reshape(-1, 4).T.copy()


def samples_of_tar(file: BinaryIO, size_bytes: int, place: str) -> Places:
    """Return the places of a tar file's samples that hold a record or a text. Members are skipped, not read.

    Args:
        file: is read from its beginning.
        size_bytes: of the whole file.
        place: of the file, for messages.

    Raises:
        CorruptData: it is cut off or is no tar file, two members have the same name, or a record is too large; the
            fault of the data's owner.
        DataError: what reading the file raises.
    """
    found = _Found(place)
    at, said = 0, _Said()
    for _ in range(MAX_TAR_MEMBERS):
        file.seek(at)
        head = _exactly(file, BLOCK_BYTES, at, place)
        if not head.strip(b"\0"):
            _check_end(file, at + BLOCK_BYTES, size_bytes, place)
            return found.all()
        try:
            member = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        except (tarfile.HeaderError, ValueError, OverflowError) as error:
            raise CorruptData(f"{place} is not a tar file at byte {at}: {error}", place=place) from error
        at += BLOCK_BYTES
        if member.type in (_LONG_NAME, _LONG_LINK) or member.type in (b"x", b"X", _GLOBAL_PAX):
            text = _extended(file, member.size, at, place)
            said.note(member.type, text, place)
            held_bytes = member.size
        else:
            held_bytes = member.size if said.size_bytes is None else said.size_bytes
            if not (member.isreg() or member.type not in tarfile.SUPPORTED_TYPES):
                held_bytes = 0
            if not 0 <= held_bytes <= size_bytes - at:
                raise CorruptData(f"{place} is cut off: the member at byte {at} has {held_bytes} bytes", place=place)
            if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE) and not member.isdir():
                found.take(said.name or member.name, at, held_bytes)
            elif member.type == tarfile.GNUTYPE_SPARSE:
                raise CorruptData(f"{place}: {_shown(member.name)} is a sparse file; not supported", place=place)
            said = _Said()
        at += -(-held_bytes // BLOCK_BYTES) * BLOCK_BYTES
        if at > size_bytes:
            raise CorruptData(f"{place} is cut off at byte {size_bytes}", place=place)
    raise CorruptData(f"{place} holds more than {MAX_TAR_MEMBERS} members", place=place)


@dataclass(slots=True)
class _Said:
    """The name and size that extended headers give the next member."""

    name: str | None = None
    size_bytes: int | None = None

    def note(self, kind: bytes, text: bytes, place: str) -> None:
        if kind == _LONG_NAME:
            self.name = text.partition(b"\0")[0].decode("utf-8", "surrogateescape")
        elif kind in (b"x", b"X"):
            pairs = _pax(text, place)
            if any(key.startswith(b"GNU.sparse") for key in pairs):
                raise CorruptData(f"{place} holds a sparse file; not supported", place=place)
            if b"path" in pairs:
                self.name = pairs[b"path"].decode("utf-8", "surrogateescape")
            if b"size" in pairs:
                if not pairs[b"size"].isdigit() or len(pairs[b"size"]) > 18:
                    raise CorruptData(f"{place} has a member of size {pairs[b'size'][:20]!r}", place=place)
                self.size_bytes = int(pairs[b"size"])


def _pax(text: bytes, place: str) -> dict[bytes, bytes]:
    pairs: dict[bytes, bytes] = {}
    at = 0
    while at < len(text) and text[at]:
        digits, space, _ = text[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() and space else 0
        line = text[at : at + length]
        key, equals, value = line[len(digits) + 1 : -1].partition(b"=")
        if len(line) != length or not equals or line[-1:] != b"\n":
            raise CorruptData(f"{place} has an extended header that cannot be read", place=place)
        pairs[key] = value
        at += length
    return pairs


def _extended(file: BinaryIO, size_bytes: int, at: int, place: str) -> bytes:
    if not 0 <= size_bytes <= MAX_TAR_HEADER_BYTES:
        raise CorruptData(f"{place} has an extended header of {size_bytes} bytes; at most {MAX_TAR_HEADER_BYTES}")
    return _exactly(file, size_bytes, at, place)


def _check_end(file: BinaryIO, at: int, size_bytes: int, place: str) -> None:
    if size_bytes - at > MAX_TAR_END_BYTES:
        raise CorruptData(
            f"{place} continues after its end mark at byte {at}: archives one after the other are not read"
        )
    if _exactly(file, size_bytes - at, at, place).strip(b"\0"):
        raise CorruptData(
            f"{place} continues after its end mark at byte {at}: archives one after the other are not read"
        )


def _exactly(file: BinaryIO, size_bytes: int, at: int, place: str) -> bytes:
    found = bytearray()
    while len(found) < size_bytes:
        part = file.read(size_bytes - len(found))
        if not part:
            raise CorruptData(f"{place} is cut off at byte {at + len(found)}: it has no end mark", place=place)
        found += part
    return bytes(found)


def _key_and_kind(name: str) -> tuple[str | None, str]:
    """Return the name up to the first dot of its last part, and what follows, in lower case; None for hidden ones."""
    while name.startswith("./"):
        name = name[2:]
    folder, slash, last = name.rpartition("/")
    stem, dot, kind = last.partition(".")
    return (folder + slash + stem if stem and dot else None), kind.lower()


def _shown(name: str) -> str:
    return repr(name[:_SHOWN_CHARACTERS])


def record_of(record: bytes | None, text: bytes | None, place: str) -> bytes:
    """Return a sample's record, of the content of its `.json` and its `.txt`.

    Raises:
        CorruptData: the text is not UTF-8, or the record beside it is no JSON object; the fault of the data's owner.
    """
    if text is None:
        return record or b""
    try:
        said = text.decode("utf-8")
        if record is None:
            return json.dumps({"text": said}, ensure_ascii=False).encode()
        held = load_json(record)
        if not isinstance(held, dict):
            raise ValueError(f"beside a .txt there is a {type(held).__name__}, not an object")
        return record if "text" in held else json.dumps({**held, "text": said}, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{place}: {error}", place=place) from error
