"""The body of an answer to a request for several ranges: `multipart/byteranges` (RFC 9110, 14.6), incrementally.

Pure: bytes in, bytes in place. The rules kept here: a part counts only if it is the next range that was asked for, of a
file of the expected size; anything else (another, a longer, a repeated or a missing range, another order, a head
without an end) is `BadMultipart`, after which the reader is not used again. A part is certain once what follows it is
right too: a shorter one ends where the next delimiter is already taken for data. Parts that are certain stay in place
whatever follows.
"""

import re
from collections.abc import Sequence

from epochal.data_providers.sources.http.filled_buffer import Filling

MAX_PART_HEAD_BYTES = 1024
"""Maximum size of what lies between two parts: a delimiter and the second one's header fields."""
_CONTENT_TYPE = re.compile(
    r"multipart/byteranges\s*;(?:.*;)?\s*boundary=(?:\"(?P<quoted>[^\"\\]{1,70})\"|(?P<token>[^\s;\",]{1,70}))\s*(?:;.*)?",
    re.IGNORECASE | re.ASCII,
)
_CONTENT_RANGE = re.compile(rb"bytes[ \t]+(\d{1,18})-(\d{1,18})/(\d{1,18})", re.IGNORECASE)
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


class MultipartReader:
    """Puts the parts of one body in place.

    Args:
        boundary: of the answer's content type.
        targets: the ranges that were asked for, in this order, none of them empty; bytes that they already hold were
            not asked for.
        size_bytes: of the file.
    """

    def __init__(self, boundary: bytes, targets: Sequence[Filling], size_bytes: int) -> None:
        self._delimiter = b"--" + boundary
        self._targets = targets
        self._size_bytes = size_bytes
        self._number = -1
        self._begin = 0
        self._between = bytearray()
        self._in_body = False

    @property
    def is_complete(self) -> bool:
        """Whether the delimiter after the last part was seen."""
        return self._number == len(self._targets)

    def feed(self, data: memoryview) -> None:
        """Take the next bytes of the body.

        Raises:
            BadMultipart: they do not belong to it; the part before them has been taken back.
        """
        try:
            self._feed(data)
        except BadMultipart:
            self._take_back()
            raise

    def finish(self) -> None:
        """Raise `BadMultipart`, after `break_off`, unless the body is complete."""
        if not self.is_complete:
            self.break_off()
            raise BadMultipart(f"it ends after {max(self._number, 0)} of {len(self._targets)} parts")

    def break_off(self) -> None:
        """Keep of the part under way what belongs to it: nothing follows.

        All of it is taken back if a delimiter is in it, or if what came after it is none; else at most the beginning
        of a delimiter at its end.
        """
        if self.is_complete or self._number < 0:
            return
        delimiter, target = _LINE_END + self._delimiter, self._targets[self._number]
        came = bytes(target.into[self._begin : target.filled])
        follows = bytes(self._between[: len(delimiter)])
        if delimiter in came or not delimiter.startswith(follows):
            self._take_back()
        elif not follows:
            sizes = range(min(len(delimiter), len(came)), 0, -1)
            target.filled -= next((size for size in sizes if came.endswith(delimiter[:size])), 0)

    def _take_back(self) -> None:
        if 0 <= self._number < len(self._targets):
            self._targets[self._number].filled = self._begin

    def _feed(self, data: memoryview) -> None:
        while data:
            if self._in_body:
                target = self._targets[self._number]
                count = min(len(data), target.missing)
                target.take(data[:count])
                self._in_body = target.missing > 0
            else:
                count = self._feed_between(data)
            data = data[count:]

    def _feed_between(self, data: memoryview) -> int:
        """Take bytes of what lies between two parts, and return how many."""
        held = len(self._between)
        if self.is_complete:  # what follows the last delimiter has no meaning
            self._between += data[: MAX_PART_HEAD_BYTES + 1 - held]
            self._check_length()
            return len(data)
        self._between += data[: MAX_PART_HEAD_BYTES + 1 - held]
        if self._number == len(self._targets) - 1:
            last = _LINE_END + self._delimiter + b"--"
            if self._between.startswith(last):
                self._number += 1
                self._between.clear()
                return max(len(last) - held, 0)
            if not last.startswith(self._between):
                raise BadMultipart("it continues after its last part")
            return len(data)
        end = self._between.find(_END_OF_HEAD)
        if end < 0:
            self._check_length()
            return len(data)
        head = bytes(self._between[:end])
        self._check_part(self._number + 1, head)
        self._between.clear()
        self._number += 1
        self._begin = self._targets[self._number].filled
        self._in_body = True
        return end + len(_END_OF_HEAD) - held

    def _check_length(self) -> None:
        if len(self._between) > MAX_PART_HEAD_BYTES:
            raise BadMultipart(f"more than {MAX_PART_HEAD_BYTES} bytes between two parts")

    def _check_part(self, number: int, head: bytes) -> None:
        """Raise `BadMultipart` unless this is the head of the part with this number."""
        if number == 0 and not head.startswith(_LINE_END):
            head = _LINE_END + head  # the line end before the first delimiter may be missing
        nothing, *lines = head.split(_LINE_END)
        if nothing or not lines or lines[0].rstrip(b" \t") != self._delimiter:
            raise BadMultipart("a part does not begin with the delimiter")
        ranges: list[bytes] = []
        for field in lines[1:]:
            name, _, value = field.partition(b":")
            if name.lower() == b"content-range":
                ranges.append(value.strip())
            elif name.lower() in _REFUSED_FIELDS and value.strip().lower() not in (b"identity", b"binary"):
                raise BadMultipart("a part has an encoding")
        found = _CONTENT_RANGE.fullmatch(ranges[0]) if len(ranges) == 1 else None
        if found is None:
            raise BadMultipart("a part does not say which range it is")
        target = self._targets[number]
        first, stop = target.start + target.filled, target.stop
        if (int(found[1]), int(found[2]) + 1, int(found[3])) != (first, stop, self._size_bytes):
            said = ranges[0].decode("ascii")
            raise BadMultipart(f"{said} where bytes {first}-{stop - 1}/{self._size_bytes} were to follow")
