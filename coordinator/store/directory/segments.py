"""The journal's file format: segments of checksummed records.

A segment file holds an 8-byte magic with the format's version, then records. A record is a header of 20 bytes
(little-endian: u32 body length, u64 sequence, 8 bytes of BLAKE2b over length, sequence and body) and the body. The
first record is the snapshot that opens the segment.

The rule kept here: the last record of the last segment may be torn, because the machine stopped while writing it and no
one was told that it was kept; it is dropped and reported. Any other record with a wrong checksum is damage, an error.
"""

import hashlib
import struct
from dataclasses import dataclass

from coordinator.store.journal import JournalRecord, Segment, Snapshot
from state.errors import StoreFailed

MAGIC = b"EPOCHJ01"
MAX_RECORD_BYTES = 1024 * 1024 * 1024
_HEAD = struct.Struct("<IQ8s")
_COVERED = struct.Struct("<IQ")


def _checksum(sequence: int, body: bytes) -> bytes:
    digest = hashlib.blake2b(_COVERED.pack(len(body), sequence), digest_size=8)
    digest.update(body)
    return digest.digest()


def encode_entry(sequence: int, body: bytes) -> bytes:
    """Return one record as bytes. Raise `StoreFailed` if its body is longer than `MAX_RECORD_BYTES`."""
    if len(body) > MAX_RECORD_BYTES:
        raise StoreFailed(f"journal record {sequence} has {len(body)} bytes; the maximum is {MAX_RECORD_BYTES}")
    return _HEAD.pack(len(body), sequence, _checksum(sequence, body)) + body


@dataclass(frozen=True, slots=True)
class ParsedSegment:
    """The entries of a segment file: sequence numbers and bodies. `torn_bytes` follow the first `kept_bytes`."""

    entries: tuple[tuple[int, bytes], ...]
    kept_bytes: int
    torn_bytes: int

    def as_segment(self, number: int) -> Segment:
        """Return the entries as a segment of the journal."""
        (sequence, body), *records = self.entries
        return Segment(number, Snapshot(sequence, body), tuple(JournalRecord(later, text) for later, text in records))


def parse_segment(data: bytes, name: str, *, is_last: bool) -> ParsedSegment:
    """Return the entries of a segment file.

    Args:
        data: the whole file.
        name: its name in messages.
        is_last: whether this is the journal's last segment, whose end may be torn.

    Raises:
        StoreFailed: the file is not a segment, or is damaged elsewhere than at the end of the last segment.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise StoreFailed(f"{name} is not a journal segment of this version")
    entries: list[tuple[int, bytes]] = []
    offset = len(MAGIC)
    while offset < len(data):
        entry = _entry_at(data, offset)
        if entry is None or (entries and entry[0] != entries[-1][0] + 1):
            break
        entries.append(entry)
        offset += _HEAD.size + len(entry[1])
    torn_bytes = len(data) - offset
    if torn_bytes and (not is_last or not entries or _any_whole_entry_after(data, offset, entries[-1][0])):
        raise StoreFailed(f"{name} is damaged at byte {offset}, before its end", offset=offset)
    if not entries:
        raise StoreFailed(f"{name} has no snapshot")
    return ParsedSegment(tuple(entries), offset, torn_bytes)


def _entry_at(data: bytes, offset: int) -> tuple[int, bytes] | None:
    if offset + _HEAD.size > len(data):
        return None
    length, sequence, checksum = _HEAD.unpack_from(data, offset)
    start = offset + _HEAD.size
    if start + length > len(data):
        return None
    body = data[start : start + length]
    return (sequence, body) if _checksum(sequence, body) == checksum else None


def _any_whole_entry_after(data: bytes, offset: int, last_sequence: int) -> bool:
    """Return whether a whole record follows, so that the damage is not a torn end."""
    furthest = last_sequence + 1 + (len(data) - offset) // _HEAD.size
    for start in range(offset, len(data) - _HEAD.size + 1):
        sequence = int.from_bytes(data[start + 4 : start + 12], "little")
        if last_sequence < sequence <= furthest and _entry_at(data, start) is not None:
            return True
    return False
