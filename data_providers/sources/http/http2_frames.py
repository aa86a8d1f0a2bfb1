"""The frames of one HTTP/2 connection (RFC 9113, 4.1) as they come: their limits, and GOAWAY among them.

Pure: bytes in, bytes out. The rule kept here: a frame, a head, and frames in a row that bring nothing have limits, and
they count before any of it is held. `h2` takes nothing after GOAWAY, while a server that is about to close goes on with
the streams that it has begun; therefore GOAWAY is read here, and `h2` does not see it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

MAX_FRAME_BYTES = 256 * 1024
MAX_BARREN_FRAMES = 1000
"""Maximum number of frames in a row (SETTINGS, PING, empty DATA, …) that bring no answer further."""
MAX_GOAWAY_BYTES = 16 * 1024
MAX_HEAD_BLOCK_BYTES = 16 * 1024
"""Maximum size of a head as it is sent, compressed, which takes time to read."""
_FRAME_HEAD_BYTES = 9
_DATA, _HEADERS, _GOAWAY, _CONTINUATION = 0, 1, 7, 9
_STREAM_NUMBER = 2**31 - 1


class Violation(ValueError):
    """The server broke the protocol; the reason repeats nothing of what it sent."""


@dataclass(frozen=True, slots=True)
class GoAway:
    """GOAWAY: the server answers no stream after `last_stream`."""

    last_stream: int


class Frames:
    """Splits what comes over a connection."""

    def __init__(self) -> None:
        self._held = b""
        self._left_of_frame = 0
        self._barren_frames = 0
        self._head_block_bytes = 0

    def progressed(self) -> None:
        """Note that an answer came further."""
        self._barren_frames = 0

    def take(self, data: bytes) -> Iterator[bytes | GoAway]:
        """Yield GOAWAY, and what is between as it came. Raise `Violation` at a limit."""
        data = self._held + data
        self._held = b""
        start = place = 0
        while place < len(data):
            if self._left_of_frame:
                step = min(self._left_of_frame, len(data) - place)
                self._left_of_frame -= step
                place += step
                continue
            stop = place + _FRAME_HEAD_BYTES
            if stop > len(data):
                self._held = data[place:]
                break
            size, kind = int.from_bytes(data[place : place + 3], "big"), data[place + 3]
            self._check(size, kind)
            if kind != _GOAWAY:
                self._count(size, kind)
                place, self._left_of_frame = stop, size
                continue
            if stop + size > len(data):
                self._held = data[place:]
                break
            self._count(size, kind)
            if start < place:
                yield data[start:place]
            yield GoAway(int.from_bytes(data[stop : stop + 4], "big") & _STREAM_NUMBER)
            start = place = stop + size
        if start < place:
            yield data[start:place]

    def _check(self, size: int, kind: int) -> None:
        if size > (MAX_GOAWAY_BYTES if kind == _GOAWAY else MAX_FRAME_BYTES):
            raise Violation(f"a frame of {size} bytes")

    def _count(self, size: int, kind: int) -> None:
        if size and kind == _DATA:
            return
        self._barren_frames += 1
        if self._barren_frames > MAX_BARREN_FRAMES:
            raise Violation(f"more than {MAX_BARREN_FRAMES} frames that bring nothing")
        if kind == _HEADERS:
            self._head_block_bytes = size
        elif kind == _CONTINUATION:
            self._head_block_bytes += size
        if self._head_block_bytes > MAX_HEAD_BLOCK_BYTES:
            raise Violation(f"a head of more than {MAX_HEAD_BLOCK_BYTES} bytes")
