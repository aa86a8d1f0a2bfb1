"""The body of an answer to a request for several ranges: `multipart/byteranges` (RFC 9110, 14.6).

Pure: bytes in, bytes in place. The rules kept here: a part counts only if it is the next range that was asked for, of a
file of the expected size, and if a delimiter follows it: a shorter one ends where the next delimiter is already taken
for data. Anything else (another, a longer, a repeated or a missing range, another order, a head without an end) is
`BadMultipart`. The parts before it stay in place.
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


def fill_from_parts(body: bytearray, boundary: bytes, targets: Sequence[Filling], size_bytes: int) -> None:
    """Put the parts of a body in place, as far as they are right.

    Args:
        body: all of it, or what came before it broke off.
        boundary: of the answer's content type.
        targets: the ranges that were asked for, in this order, none of them empty; bytes that they already hold were
            not asked for.
        size_bytes: of the file.

    Raises:
        BadMultipart: a part is wrong, or missing; those before it are in place.
    """
    delimiter = _LINE_END + b"--" + boundary
    at = -len(_LINE_END) if body.startswith(delimiter[len(_LINE_END) :]) else 0  # its first line end may be missing
    with memoryview(body) as view:
        for target in targets:
            begin = _after_head(body, at, delimiter, target, size_bytes)
            at = begin + target.missing
            if not body.startswith(delimiter, at):
                raise BadMultipart("no delimiter follows a part")
            target.take(view[begin:at])
    if not body.startswith(b"--", at + len(delimiter)):  # what follows the last delimiter has no meaning
        raise BadMultipart("it continues after its last part")


def _after_head(body: bytearray, at: int, delimiter: bytes, target: Filling, size_bytes: int) -> int:
    """Return where a part's bytes begin. Raise `BadMultipart` unless its delimiter and head are at this place."""
    begin = max(at, 0)
    end = body.find(_END_OF_HEAD, begin, begin + MAX_PART_HEAD_BYTES)
    if end < 0:
        raise BadMultipart("a part without the end of its head")
    first_line, *fields = bytes(body[at + len(delimiter) : end]).split(_LINE_END)
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
    first = target.start + target.filled
    if (int(found[1]), int(found[2]) + 1, int(found[3])) != (first, target.stop, size_bytes):
        said = ranges[0].decode("ascii")
        raise BadMultipart(f"{said} where bytes {first}-{target.stop - 1}/{size_bytes} were to follow")
    return end + len(_END_OF_HEAD)
