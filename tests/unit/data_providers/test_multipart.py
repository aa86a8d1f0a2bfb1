"""The multipart parser: nothing but the ranges that were asked for is taken."""

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.data_providers.sources.http.filled_buffer import Filling
from epochal.data_providers.sources.http.multipart import MAX_PART_HEAD_BYTES, BadMultipart, Parts, boundary_of
from tests.fuzz.multipart import BOUNDARY, RANGES, SIZE_BYTES, fill_from_parts, fuzz_one

DATA = bytes(range(SIZE_BYTES))


def part(first: int, stop: int, *, line: bytes = b"", extra: bytes = b"") -> bytes:
    said = line or b"Content-Range: bytes %d-%d/%d" % (first, stop - 1, SIZE_BYTES)
    return b"\r\n--" + BOUNDARY + b"\r\nContent-Type: x/y\r\n" + said + extra + b"\r\n\r\n" + DATA[first:stop]


END = b"\r\n--" + BOUNDARY + b"--\r\n"
PARTS = [part(*one) for one in RANGES]
BODY = b"".join(PARTS) + END


def targets_of(ranges: Sequence[tuple[int, int]] = RANGES) -> list[Filling]:
    return [Filling(start, memoryview(bytearray(stop - start))) for start, stop in ranges]


def read(body: bytes, targets: list[Filling] | None = None, *, piece_bytes: int = 2**20) -> list[Filling]:
    """The targets after a body. Raises `BadMultipart` at its first mistake, or if it is not complete."""
    targets = targets_of() if targets is None else targets
    fill_from_parts(body, targets, piece_bytes)
    return targets


PIECES = pytest.mark.parametrize("piece_bytes", [1, 2, 7, 60, 2**20])
"""Numbers of bytes that come at a time."""
EPILOGUE = b"\r\n\r\n".join([b"an epilogue"] * 2 * MAX_PART_HEAD_BYTES)


@PIECES
@pytest.mark.parametrize("body", [BODY, BODY[2:], BODY + EPILOGUE], ids=["whole", "no first line end", "epilogue"])
def test_multipart_body_fills_its_ranges(body: bytes, piece_bytes: int) -> None:
    targets = read(body, piece_bytes=piece_bytes)
    assert [bytes(target.into) for target in targets] == [DATA[start:stop] for start, stop in RANGES]
    assert not any(target.missing for target in targets)


def test_multipart_part_is_in_place_before_the_next_one_has_come() -> None:
    targets = targets_of()
    parts = Parts(BOUNDARY, targets, SIZE_BYTES)
    came = b"".join(PARTS[:2]) + END[:5]
    parts.feed(memoryview(came))
    assert [target.filled for target in targets] == [3, 0, 0]
    parts.feed(memoryview(PARTS[2][5:]))
    assert [target.filled for target in targets] == [3, 1, 0]


def test_multipart_range_in_another_field_is_no_head_of_the_next_part() -> None:
    named = part(2, 5, extra=b"\r\nX: 2-4/64")
    read(named + part(9, 10, extra=b"\r\nX: 9-9/64") + PARTS[2] + END)
    wrong = part(9, 10, line=b"Content-Range: bytes 2-4/64", extra=b"\r\nX: 9-9/64")
    with pytest.raises(BadMultipart, match="bytes 2-4/64 where bytes 9-9/64 were to follow"):
        read(named + wrong + PARTS[2] + END)


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
    "another boundary before the first part": b"\r\n--c" + BODY[5:],
    "a page": b"<html>" + b"x" * 100,
    "an endless head": b"\r\n--b\r\nX: " + b"x" * 2 * MAX_PART_HEAD_BYTES,
}


@PIECES
@pytest.mark.parametrize("body", MISTAKES.values(), ids=MISTAKES)
def test_multipart_body_with_a_mistake_is_refused(body: bytes, piece_bytes: int) -> None:
    with pytest.raises(BadMultipart):
        read(body, piece_bytes=piece_bytes)


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
            read(body[:size], targets, piece_bytes=1 + size % 9)
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
