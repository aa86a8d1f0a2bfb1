"""WebDataset's tar files: neighbouring members with the same name up to its first dot are one sample.

Of a sample, `NAME.json` is the record and `NAME.txt` a text: without a record the record is `{"text": …}`, and beside
one that has no `text` it becomes its `text`. Other members (images, sound) are left out. Nothing is ever unpacked by a
member's name, so a name can do no harm. `tarfile` reads the headers.
"""

import hashlib
import json
import tarfile
from array import array
from dataclasses import dataclass, field
from typing import IO, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.protocol import CorruptData
from epochal.state.reader_limits import MAX_LINE_BYTES, MAX_TAR_END_BYTES, MAX_TAR_HEADER_BYTES, MAX_TAR_MEMBERS
from epochal.state.wire import load_json

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
    at = 0
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", _Headers(file, place)), mode="r:") as tar:
            for _ in range(MAX_TAR_MEMBERS):
                member = tar.next()
                if member is None:
                    _check_end(file, tar.offset, size_bytes, place)
                    return found.all()
                tar.members = []  # type: ignore[attr-defined]  # which would keep all of them
                if not at < tar.offset <= size_bytes or member.size < 0:
                    raise CorruptData(f"{place} is cut off: the member at byte {at} has {member.size} bytes")
                at = tar.offset
                if member.issparse():
                    raise CorruptData(f"{place}: {_shown(member.name)} is a sparse file; not supported", place=place)
                if member.isreg():
                    found.take(member.name, member.offset_data, member.size)
    except (tarfile.TarError, ValueError, OverflowError, LookupError, RecursionError) as error:
        raise CorruptData(f"{place} is not a tar file, or is cut off, at byte {at}: {error}", place=place) from error
    raise CorruptData(f"{place} holds more than {MAX_TAR_MEMBERS} members", place=place)


class _Headers:
    """A file as `tarfile` reads it, which refuses reads larger than any header."""

    def __init__(self, file: BinaryIO, place: str) -> None:
        self.seek, self.tell = file.seek, file.tell
        self._file = file
        self._place = place

    def read(self, size_bytes: int) -> bytes:
        if not 0 <= size_bytes <= MAX_TAR_HEADER_BYTES:
            raise CorruptData(
                f"{self._place} has an extended header of {size_bytes} bytes; at most {MAX_TAR_HEADER_BYTES}"
            )
        return self._file.read(size_bytes)


def _check_end(file: BinaryIO, at: int, size_bytes: int, place: str) -> None:
    """Raise `CorruptData` unless nothing but the end mark, and zeros behind it, follow the last member."""
    file.seek(at)
    head = file.read(tarfile.BLOCKSIZE)
    if len(head) < tarfile.BLOCKSIZE:
        raise CorruptData(f"{place} is cut off at byte {at + len(head)}: it has no end mark", place=place)
    if head.strip(b"\0"):
        raise CorruptData(f"{place} is not a tar file at byte {at}", place=place)
    if size_bytes - at > MAX_TAR_END_BYTES or file.read(MAX_TAR_END_BYTES).strip(b"\0"):
        raise CorruptData(
            f"{place} continues after its end mark at byte {at}: archives one after the other are not read"
        )


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
