"""JSON lines: the places of the lines of a file, found by reading it once in order."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.protocol import CorruptData
from epochal.state.reader_limits import MAX_LINE_BYTES, MAX_LINES

SCANNED_BYTES = 4 * 1024**2
_MAX_BLANK_BYTES = 4
"""A longer line of blanks counts as a record, which is not JSON."""
_NEWLINE = 0x0A
_BLANKS = frozenset(b" \t\r")

Places = NDArray[np.int64]
"""Lines' places, `(2, n)`: first byte and end, without the line's end."""


def lines_of(read: Callable[[int], bytes], place: str) -> tuple[Places, int]:
    """Return the places of the lines that are not blank, and the size of the whole.

    Args:
        read: returns up to so many further bytes, b"" at the end.
        place: of the file, for messages.

    Raises:
        CorruptData: a line is longer than `MAX_LINE_BYTES`, or there are more than `MAX_LINES`; noticed before the line
            or the file is read whole. The fault of the data's owner.
        DataError: what `read` raises.
    """
    starts: list[NDArray[np.int64]] = []
    stops: list[NDArray[np.int64]] = []
    begin, size_bytes, count, begun = 0, 0, 0, b""
    while True:
        block = read(SCANNED_BYTES)
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE).astype(np.int64) + size_bytes
        if not block:
            ends = np.array([size_bytes], np.int64)
        firsts = np.concatenate(([begin], ends[:-1] + 1)) if len(ends) else ends
        lengths = ends - firsts
        end = size_bytes + len(block)
        unfinished = end - (int(ends[-1]) + 1 if len(ends) else begin) if block else 0
        _check_lengths(lengths, unfinished, count, place)
        kept = lengths > 0
        for number in np.flatnonzero(kept & (lengths <= _MAX_BLANK_BYTES)).tolist():
            text = block[max(int(firsts[number]) - size_bytes, 0) : int(ends[number]) - size_bytes]
            if firsts[number] < size_bytes:
                text = begun + text
            kept[number] = not set(text) <= _BLANKS
        starts.append(firsts[kept])
        stops.append(ends[kept])
        count += len(ends)
        if not block:
            return np.stack([np.concatenate(starts), np.concatenate(stops)]), size_bytes
        if len(ends):
            begin, begun = int(ends[-1]) + 1, b""
        tail = max(begin - size_bytes, 0)
        begun = (begun + block[tail : tail + _MAX_BLANK_BYTES + 1])[: _MAX_BLANK_BYTES + 1]
        size_bytes = end


def _check_lengths(lengths: NDArray[np.int64], unfinished: int, count: int, place: str) -> None:
    longest = int(lengths.max(initial=0))
    if longest > MAX_LINE_BYTES:
        line = f"{place}, line {count + int(lengths.argmax()) + 1},"
        raise CorruptData(f"{line} has {longest} bytes; at most {MAX_LINE_BYTES}", path=place)
    if unfinished > MAX_LINE_BYTES:
        line = f"{place}, line {count + len(lengths) + 1},"
        raise CorruptData(f"{line} has more than {unfinished} bytes; at most {MAX_LINE_BYTES}", path=place)
    if count + len(lengths) > MAX_LINES:
        raise CorruptData(f"{place} has more than {MAX_LINES} lines", path=place)
