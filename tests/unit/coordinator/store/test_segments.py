"""The bytes of a segment file: what a crash may leave, and what is damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.store.directory.segments import MAGIC, encode_entry, parse_segment
from state.errors import StoreFailed

BODIES = [b"snapshot", b"first", b"second", b"third"]


def segment(bodies: list[bytes] = BODIES) -> bytes:
    return MAGIC + b"".join(encode_entry(number, body) for number, body in enumerate(bodies))


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=6))
def test_segment_parses_to_what_was_encoded(bodies: list[bytes]) -> None:
    parsed = parse_segment(segment(bodies), "x", is_last=False)
    assert [body for _, body in parsed.entries] == bodies
    assert parsed.torn_bytes == 0


def test_segment_cut_anywhere_in_its_last_record_loses_only_that_record() -> None:
    whole = segment()
    start = len(segment(BODIES[:-1]))
    for length in range(start, len(whole)):
        parsed = parse_segment(whole[:length], "x", is_last=True)
        assert [body for _, body in parsed.entries] == BODIES[:-1]
        assert parsed.kept_bytes == start
        assert parsed.torn_bytes == length - start
        if length > start:
            with pytest.raises(StoreFailed):
                parse_segment(whole[:length], "x", is_last=False)


def test_segment_with_any_byte_flipped_is_damage_or_a_torn_last_record() -> None:
    whole = segment()
    last = len(segment(BODIES[:-1]))
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 0x40
        if position >= last:
            assert len(parse_segment(bytes(flipped), "x", is_last=True).entries) == len(BODIES) - 1
            continue
        try:
            entries = parse_segment(bytes(flipped), "x", is_last=True).entries
        except StoreFailed:
            continue
        raise AssertionError(f"byte {position} flipped unnoticed: {entries}")


def test_segment_with_a_record_missing_in_the_middle_is_damage() -> None:
    missing = MAGIC + b"".join(encode_entry(number, BODIES[number]) for number in (0, 1, 3))
    with pytest.raises(StoreFailed):
        parse_segment(missing, "x", is_last=True)
