"""Damage in the write-ahead log of an SQLite database, which SQLite takes for the log's end without a word.

Theory of operation (https://www.sqlite.org/fileformat2.html#the_write_ahead_log). The log is a header and frames. Each
frame is a page; the last one of a transaction is marked as a commit. Header and frames have checksums, each of which
continues the one before, and the frames that belong to a header repeat its two salts. Where a checksum differs, SQLite
ends the log: so it leaves out a transaction that a power failure interrupted.

A transaction begins after the one before was synced. So an interrupted one has nothing after it: where more than one
commit follows the end, transactions were kept and then damaged.
"""

import struct
from pathlib import Path

_HEADER = struct.Struct(">IIIIIIII")
_FRAME = struct.Struct(">IIIIII")
_MAGIC, _MAGIC_BIG_ENDIAN = 0x377F0682, 0x377F0683
_WORD = 0xFFFFFFFF
MIN_PAGE_BYTES = 512
MIN_LOST = 2
"""Number of commits after the log's end that no interrupted transaction leaves."""


def damage_in(log: Path) -> str | None:
    """Return what is damaged in a log, of which nothing is written meanwhile; None if nothing is known to be.

    Args:
        log: the file, which may be missing.

    Raises:
        OSError: it cannot be read.
    """
    try:
        content = log.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) < _HEADER.size + _FRAME.size:
        return None
    magic, _, page_bytes, _, *salts, first, second = _HEADER.unpack_from(content)
    frame_bytes = _FRAME.size + page_bytes
    is_header = magic in (_MAGIC, _MAGIC_BIG_ENDIAN) and page_bytes >= MIN_PAGE_BYTES
    order = ">" if magic == _MAGIC_BIG_ENDIAN else "<"
    checked = _checksum(content[: _HEADER.size - 8], (0, 0), order)
    if not is_header or checked != (first, second):
        return f"{log.name}: its header is damaged, so that all transactions in it are lost"
    at, number = _HEADER.size, 0
    while at + frame_bytes <= len(content):
        _, _, *own, first, second = _FRAME.unpack_from(content, at)
        checked = _checksum(content[at : at + 8], checked, order)
        checked = _checksum(content[at + _FRAME.size : at + frame_bytes], checked, order)
        if own != salts or checked != (first, second):
            break
        at, number = at + frame_bytes, number + 1
    lost = 0
    for later in range(at, len(content) - frame_bytes + 1, frame_bytes):
        _, pages, *own, _, _ = _FRAME.unpack_from(content, later)
        lost += bool(pages) and own == salts
    if lost < MIN_LOST:
        return None
    return f"{log.name}: frame {number + 1} is damaged, so that {lost} transactions from there on are lost"


def _checksum(content: bytes, before: tuple[int, int], order: str) -> tuple[int, int]:
    """Return SQLite's checksum of whole pairs of words, continued from the one before."""
    first, second = before
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _WORD
        second = (second + odd + first) & _WORD
    return first, second
