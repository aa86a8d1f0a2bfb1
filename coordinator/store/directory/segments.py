"""The journal's file format: segments of checksummed records.

A segment file holds an 8-byte magic with the format's version, then records. A record is a header of 20 bytes
(little-endian: u32 body length, u64 sequence, 8 bytes of BLAKE2b over length, sequence and body) and the body. The
first record is the snapshot that opens the segment. A mark, which is shaped like a record, ends a segment that another
one follows, and names that one: so a missing newest segment is noticed.

The rules kept here: the last record of the last segment may be torn, because the machine stopped while writing it and
no one was told that it was kept. It may also be damaged: it has its whole length and a wrong checksum, so somebody may
have been told. Both are left out and reported. Any other record with a wrong checksum is an error.
"""

import hashlib
import struct
from dataclasses import dataclass

from epochal.coordinator.machine.journal_records import JournalRecord, Segment, Snapshot
from epochal.state.errors import StoreFailed

MAGIC = b"EPOCHJ02"
MAX_RECORD_BYTES = 1024 * 1024 * 1024
_HEAD = struct.Struct("<IQ8s")
_COVERED = struct.Struct("<IQ")
_MARK = 2**64 - 1
"""The sequence number of a mark, which no record reaches."""
_SUCCESSOR = struct.Struct("<Q")


def _checksum(sequence: int, body: bytes) -> bytes:
    digest = hashlib.blake2b(_COVERED.pack(len(body), sequence), digest_size=8)
    digest.update(body)
    return digest.digest()


def encode_entry(sequence: int, body: bytes) -> bytes:
    """Return one record as bytes. Raise `StoreFailed` if its body is longer than `MAX_RECORD_BYTES`."""
    if len(body) > MAX_RECORD_BYTES:
        raise StoreFailed(f"journal record {sequence} has {len(body)} bytes; the maximum is {MAX_RECORD_BYTES}")
    return _HEAD.pack(len(body), sequence, _checksum(sequence, body)) + body


def encode_mark(successor: int) -> bytes:
    """Return the mark that ends a segment, with the number of the segment that follows it."""
    return encode_entry(_MARK, _SUCCESSOR.pack(successor))


def encode_segment(segment: Segment) -> bytes:
    """Return a segment as the bytes of a file, without a mark."""
    entries = [encode_entry(segment.snapshot.sequence, segment.snapshot.body)]
    entries += [encode_entry(record.sequence, record.body) for record in segment.records]
    return MAGIC + b"".join(entries)


@dataclass(frozen=True, slots=True)
class ParsedSegment:
    """A segment file.

    Attributes:
        entries: sequence numbers and bodies.
        successor: number of the segment that the mark names; None without a mark.
        kept_bytes: size of magic and entries, which the mark, or torn or damaged bytes, follow.
        torn_bytes: size of an incomplete last record.
        damaged_bytes: size of a complete last record with a wrong checksum.
    """

    entries: tuple[tuple[int, bytes], ...]
    successor: int | None
    kept_bytes: int
    torn_bytes: int
    damaged_bytes: int

    @property
    def is_opening(self) -> bool:
        """Whether the snapshot is the only entry."""
        return len(self.entries) == 1

    def as_segment(self, number: int) -> Segment:
        """Return the entries as a segment of the journal."""
        (sequence, body), *records = self.entries
        return Segment(number, Snapshot(sequence, body), tuple(JournalRecord(later, text) for later, text in records))


def parse_segment(data: bytes, name: str, *, is_last: bool) -> ParsedSegment:
    """Return the entries of a segment file.

    Args:
        data: the whole file.
        name: its name in messages.
        is_last: whether this is the journal's last segment, whose last record may be torn or damaged.

    Raises:
        StoreFailed: the file is not a segment, or is damaged elsewhere than at the end of the last segment.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise StoreFailed(f"{name} is not a journal segment of this version")
    entries: list[tuple[int, bytes]] = []
    offset = len(MAGIC)
    while (entry := _entry_at(data, offset)) is not None and _follows(entries, entry):
        entries.append(entry)
        offset += _HEAD.size + len(entry[1])
    successor = None if entry is None or not entries else _marked(entry, data, offset)
    if successor is not None:
        return ParsedSegment(tuple(entries), successor, offset, 0, 0)
    rest = data[offset:]
    if rest and (not is_last or not entries or _any_whole_entry_after(data, offset, entries[-1][0])):
        raise StoreFailed(f"{name} is damaged at byte {offset}, before its end; restore a backup", offset=offset)
    if not entries:
        raise StoreFailed(f"{name} has no snapshot")
    damaged_bytes = len(rest) if _is_damaged(rest) else 0
    return ParsedSegment(tuple(entries), None, offset, len(rest) - damaged_bytes, damaged_bytes)


def _follows(entries: list[tuple[int, bytes]], entry: tuple[int, bytes]) -> bool:
    return entry[0] != _MARK and (not entries or entry[0] == entries[-1][0] + 1)


def _marked(entry: tuple[int, bytes], data: bytes, offset: int) -> int | None:
    """Return the number that the entry names if it is a mark and ends the file, else None."""
    sequence, body = entry
    is_mark = sequence == _MARK and len(body) == _SUCCESSOR.size and offset + _HEAD.size + len(body) == len(data)
    return int(_SUCCESSOR.unpack(body)[0]) if is_mark else None


def _entry_at(data: bytes, offset: int) -> tuple[int, bytes] | None:
    if offset + _HEAD.size > len(data):
        return None
    length, sequence, checksum = _HEAD.unpack_from(data, offset)
    start = offset + _HEAD.size
    if start + length > len(data):
        return None
    body = data[start : start + length]
    return (sequence, body) if _checksum(sequence, body) == checksum else None


def _is_damaged(rest: bytes) -> bool:
    """Return whether these last bytes of a file are a whole record that has changed since, not a part of one.

    A file system may leave zeros where a record was being written. A length that has itself changed is recognised by
    the checksum, which fits if the record ends where the file does.
    """
    if len(rest) < _HEAD.size or not rest.strip(b"\x00"):
        return False
    length, sequence, checksum = _HEAD.unpack_from(rest)
    has_whole_length = bool(_HEAD.size + length <= len(rest))
    return has_whole_length or _checksum(sequence, rest[_HEAD.size :]) == checksum


def _any_whole_entry_after(data: bytes, offset: int, last_sequence: int) -> bool:
    """Return whether a whole record or mark follows, so that the damage is not at the end."""
    furthest = last_sequence + 1 + (len(data) - offset) // _HEAD.size
    for start in range(offset, len(data) - _HEAD.size + 1):
        sequence = int.from_bytes(data[start + 4 : start + 12], "little")
        follows = last_sequence < sequence <= furthest or sequence == _MARK
        if follows and _entry_at(data, start) is not None:
            return True
    return False
