"""The multipart parser: nothing but the ranges that were asked for is taken."""

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.sources.http.filled_buffer import Filling
from epochal.data_providers.sources.http.multipart import (
    MAX_PART_HEAD_BYTES,
    BadMultipart,
    boundary_of,
    fill_from_parts,
)
from tests.fuzz.multipart import BOUNDARY, RANGES, SIZE_BYTES, fuzz_one

DATA = bytes(range(SIZE_BYTES))


def part(first: int, stop: int, *, line: bytes = b"", extra: bytes = b"") -> bytes:
    said = line or b"Content-Range: bytes %d-%d/%d" % (first, stop - 1, SIZE_BYTES)
    return b"\r\n--" + BOUNDARY + b"\r\nContent-Type: x/y\r\n" + said + extra + b"\r\n\r\n" + DATA[first:stop]


END = b"\r\n--" + BOUNDARY + b"--\r\n"
PARTS = [part(*one) for one in RANGES]
BODY = b"".join(PARTS) + END


def targets_of(ranges: Sequence[tuple[int, int]] = RANGES) -> list[Filling]:
    return [Filling(start, memoryview(bytearray(stop - start))) for start, stop in ranges]


def read(body: bytes, targets: list[Filling] | None = None) -> list[Filling]:
    """The targets after a body. Raises `BadMultipart` at its first mistake, or if it is not complete."""
    targets = targets_of() if targets is None else targets
    fill_from_parts(bytearray(body), BOUNDARY, targets, SIZE_BYTES)
    return targets


@pytest.mark.parametrize("body", [BODY, BODY[2:], BODY + b"an epilogue"])
def test_multipart_body_fills_its_ranges(body: bytes) -> None:
    assert [bytes(target.into) for target in read(body)] == [DATA[start:stop] for start, stop in RANGES]


def test_multipart_part_goes_on_where_an_earlier_answer_ended() -> None:
    targets = targets_of()
    targets[2].take(memoryview(DATA)[20:33])
    read(PARTS[0] + PARTS[1] + part(33, 40) + END, targets)
    assert bytes(targets[2].into) == DATA[20:40]


MISTAKES: dict[str, bytes] = {
    "nothing": b"",
    "cut in a head": BODY[:20],
    "cut in a body": BODY[: len(PARTS[0]) - 1],
    "no end": BODY[: -len(END)],
    "cut in the end": BODY[:-4],
    "one part less": PARTS[0] + PARTS[1] + END,
    "one part more": BODY[: -len(END)] + part(50, 60) + END,
    "another order": PARTS[1] + PARTS[0] + PARTS[2] + END,
    "a part twice": PARTS[0] + PARTS[0] + PARTS[1] + PARTS[2] + END,
    "overlapping": PARTS[0] + part(4, 10) + PARTS[2] + END,
    "joined": part(2, 10) + PARTS[2] + END,
    "a part that is too short": part(2, 4) + PARTS[1] + PARTS[2] + END,
    "a part that is too long": part(2, 6) + PARTS[1] + PARTS[2] + END,
    "fewer bytes than said": PARTS[0][:-1] + PARTS[1] + PARTS[2] + END,
    "more bytes than said": PARTS[0] + b"x" + PARTS[1] + PARTS[2] + END,
    "an empty line for a head": PARTS[0] + b"\r\n\r\n" + PARTS[1] + PARTS[2] + END,
    "another size": part(2, 5, line=b"Content-Range: bytes 2-4/65") + PARTS[1] + PARTS[2] + END,
    "unknown size": part(2, 5, line=b"Content-Range: bytes 2-4/*") + PARTS[1] + PARTS[2] + END,
    "no range": part(2, 5, line=b"X: y") + PARTS[1] + PARTS[2] + END,
    "two ranges": part(2, 5, extra=b"\r\nContent-Range: bytes 2-4/64") + PARTS[1] + PARTS[2] + END,
    "2^63 bytes": part(2, 5, line=b"Content-Range: bytes 0-%d/%d" % (2**63 - 1, 2**63)) + PARTS[1] + PARTS[2] + END,
    "encoded": part(2, 5, extra=b"\r\nContent-Encoding: gzip") + PARTS[1] + PARTS[2] + END,
    "another boundary": BODY.replace(b"--b", b"--c"),
    "a page": b"<html>" + b"x" * 100,
    "an endless head": b"\r\n--b\r\nX: " + b"x" * 2 * MAX_PART_HEAD_BYTES,
}


@pytest.mark.parametrize("body", MISTAKES.values(), ids=MISTAKES)
def test_multipart_body_with_a_mistake_is_refused(body: bytes) -> None:
    with pytest.raises(BadMultipart):
        read(body)


SHORT = [
    PARTS[0][:-1] + PARTS[1] + PARTS[2] + END,
    PARTS[0] + PARTS[1] + PARTS[2][:-1] + END,
    PARTS[0][:-2] + PARTS[1][:-1] + PARTS[2][:-7] + END,
]
"""Bodies with parts that are shorter than they say."""


@pytest.mark.parametrize("body", [BODY, *SHORT])
def test_multipart_body_that_breaks_anywhere_leaves_no_wrong_byte(body: bytes) -> None:
    for size in range(len(body)):
        targets = targets_of()
        with contextlib.suppress(BadMultipart):
            read(body[:size], targets)
        for target in targets:
            assert bytes(target.into[: target.filled]) == DATA[target.start : target.start + target.filled], size


@given(st.binary(max_size=200))
def test_multipart_parser_survives_any_bytes(data: bytes) -> None:
    fuzz_one(data)


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/byteranges; boundary=00001", b"00001"),
        ('Multipart/ByteRanges;boundary="a b:c"', b"a b:c"),
        ("multipart/byteranges; charset=x; boundary=a; y=z", b"a"),
        ("multipart/byteranges", None),
        ("multipart/byteranges; boundary=", None),
        ("multipart/byteranges; boundary=é", None),
        (f"multipart/byteranges; boundary={'x' * 71}", None),
        ("multipart/mixed; boundary=x", None),
        ("text/html", None),
    ],
)
def test_multipart_boundary_is_that_of_the_content_type(content_type: str, boundary: bytes | None) -> None:
    assert boundary_of(content_type) == boundary
