"""The body of an answer to a request for several ranges: `multipart/byteranges` (RFC 9110, 14.6).

Pure: bytes in, bytes in place. The rules kept here: a part counts only if it is the next range that was asked for, of a
file of the expected size, and if a delimiter follows it: a shorter one ends where the next delimiter is already taken
for data. Anything else (another, a longer, a repeated or a missing range, another order, a head without an end) is
`BadMultipart`. The parts before it stay in place. A head that differs from the last one in its range alone is not read.
"""

import re
from collections import deque
from collections.abc import Sequence

from epochal.data_providers.sources.http.filled_buffer import Filling

MAX_PART_HEAD_BYTES = 1024
"""Maximum size of what lies between two parts: a delimiter and the second one's header fields."""
_CONTENT_TYPE = re.compile(
    r"multipart/byteranges\s*;(?:.*;)?\s*boundary=(?:\"(?P<quoted>[^\"\\]{1,70})\"|(?P<token>[^\s;\",]{1,70}))\s*(?:;.*)?",
    re.IGNORECASE | re.ASCII,
)
_CONTENT_RANGE = re.compile(rb"bytes[ \t]+(\d{1,18}-\d{1,18}/\d{1,18})", re.IGNORECASE)
_END_OF_HEAD = b"\r\n\r\n"
_LINE_END = b"\r\n"
_REFUSED_FIELDS = (b"content-encoding", b"content-transfer-encoding")


class BadMultipart(Exception):
    """The body does not hold the ranges that were asked for, as they were asked for. The server's fault."""


def boundary_of(content_type: str) -> bytes | None:
    """Return the boundary of a `multipart/byteranges` content type (RFC 2046, 5.1.1); None for another one."""
    found = _CONTENT_TYPE.fullmatch(content_type.strip())
    if found is None:
        return None
    boundary = found["quoted"] or found["token"]
    return boundary.encode() if boundary.isascii() and not boundary.endswith(" ") else None


def most_bytes(targets: Sequence[Filling]) -> int:
    """Return the maximum size of a body with these ranges."""
    return sum(target.missing for target in targets) + (len(targets) + 2) * MAX_PART_HEAD_BYTES


class Parts:
    """Puts the parts of a body in place as its bytes come.

    Args:
        boundary: of the answer's content type.
        targets: the ranges that were asked for, in this order, none of them empty; bytes that they already hold were
            not asked for.
        size_bytes: of the file.
    """

    def __init__(self, boundary: bytes, targets: Sequence[Filling], size_bytes: int) -> None:
        self._delimiter = _LINE_END + b"--" + boundary
        self._left = deque(targets)
        self._size_bytes = size_bytes
        self._coming: Filling | None = None
        self._place = memoryview(b"")
        """The rest of the coming part's place."""
        self._head = bytearray()
        """Bytes since the coming part's end."""
        self._usual = [b""]
        """The last head, before and after its range."""

    def feed(self, data: memoryview) -> None:
        """Take the next bytes of the body. Raise `BadMultipart` at a wrong part; those before it are in place."""
        while data:
            if self._place:
                came = data[: len(self._place)]
                self._place[: len(came)] = came
                self._place, data = self._place[len(came) :], data[len(came) :]
                continue
            known = len(self._head)
            self._head += data[: MAX_PART_HEAD_BYTES - known]
            if not self._left:  # what follows the last delimiter has no meaning
                return
            end = self._head.find(_END_OF_HEAD) + len(_END_OF_HEAD)
            if end < len(_END_OF_HEAD):
                if len(self._head) == MAX_PART_HEAD_BYTES:
                    raise BadMultipart("a part without the end of its head")
                return
            data = data[end - known :]
            del self._head[end:]
            self._begin_part()

    def finish(self) -> None:
        """Note the end of the body, or that it broke off. Raise `BadMultipart` unless every part has come."""
        if self._place:
            raise BadMultipart("a part breaks off")
        self._end_part()
        if self._left or not self._head.startswith(b"--", len(self._delimiter)):
            raise BadMultipart("parts are missing, or it continues after its last part")

    def _end_part(self) -> None:
        """Note that the coming part is in place. Raise `BadMultipart` unless a delimiter follows it."""
        if self._coming is None and self._head.startswith(self._delimiter[len(_LINE_END) :]):
            self._head[:0] = _LINE_END  # which may be missing before the first part
        if not self._head.startswith(self._delimiter):
            raise BadMultipart("no delimiter where a part ends")
        if self._coming is not None:
            self._coming.filled = len(self._coming.into)

    def _begin_part(self) -> None:
        """Let the next part come. Raise `BadMultipart` unless this is its head."""
        self._end_part()
        target = self._left.popleft()
        said = b"%d-%d/%d" % (target.start + target.filled, target.stop - 1, self._size_bytes)
        if self._head != said.join(self._usual):
            found = _range_of(bytes(self._head[len(self._delimiter) : -len(_END_OF_HEAD)]))
            if found != said:
                raise BadMultipart(f"bytes {found.decode()} where bytes {said.decode()} were to follow")
            self._usual = bytes(self._head).split(said)
        self._head.clear()
        self._coming, self._place = target, target.into[target.filled :]


def _range_of(head: bytes) -> bytes:
    """Return the range and the file's size that a part's head names. Raise `BadMultipart` unless it names one."""
    first_line, *fields = head.split(_LINE_END)
    if first_line.strip(b" \t"):
        raise BadMultipart("a part does not begin with the delimiter")
    ranges: list[bytes] = []
    for field in fields:
        name, _, value = field.partition(b":")
        if name.lower() == b"content-range":
            ranges.append(value.strip())
        elif name.lower() in _REFUSED_FIELDS and value.strip().lower() not in (b"identity", b"binary"):
            raise BadMultipart("a part has an encoding")
    found = _CONTENT_RANGE.fullmatch(ranges[0]) if len(ranges) == 1 else None
    if found is None:
        raise BadMultipart("a part does not say which range it is")
    return found[1]
