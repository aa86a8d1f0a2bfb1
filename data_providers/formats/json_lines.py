"""JSON lines: the places of the lines of a file, found by reading it once in order."""

from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from epochal.data_providers.protocol import CorruptData
from epochal.state.reader_limits import MAX_LINE_BYTES, MAX_LINES

SCANNED_BYTES = 4 * 1024**2

Places = NDArray[np.int64]
"""Lines' places, `(2, n)`: first byte and end, without the line's end."""


def lines_of(file: BinaryIO, place: str) -> tuple[Places, int]:
    """Return the places of the lines that are not blank, and the size of the whole.

    Args:
        file: from where it is to its end.
        place: of the file, for messages.

    Raises:
        CorruptData: a line is longer than `MAX_LINE_BYTES`, or there are more than `MAX_LINES`; noticed before the line
            or the file is read whole. The fault of the data's owner.
        DataError: what reading the file raises.
    """
    found: list[Places] = []
    at, count, rest = 0, 0, b""
    while True:
        block = file.read(SCANNED_BYTES)
        *lines, rest = (rest + block).split(b"\n")
        if not block:
            lines.append(rest)  # the last one, which nothing ends
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        longer = np.flatnonzero(lengths > MAX_LINE_BYTES)
        if len(longer) or len(rest) > MAX_LINE_BYTES:
            number = count + (int(longer[0]) if len(longer) else len(lines)) + 1
            raise CorruptData(f"{place}, line {number}, has more than {MAX_LINE_BYTES} bytes, the maximum", path=place)
        count += len(lines)
        if count > MAX_LINES:
            raise CorruptData(f"{place} has more than {MAX_LINES} lines", path=place)
        stops = at - 1 + np.cumsum(lengths + 1)
        is_record = np.fromiter(map(bool, map(bytes.strip, lines)), np.bool_, len(lines))
        found.append(np.stack([stops - lengths, stops])[:, is_record])
        at += int(lengths.sum()) + len(lines)
        if not block:
            return np.concatenate(found, axis=1), at - 1
