"""The bytes of a segment file: what a crash may leave, and what is damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.coordinator.store.directory.segments import MAGIC, encode_entry, encode_mark, parse_segment
from epochal.state.errors import StoreFailed

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


def test_segment_that_ends_with_a_mark_names_its_successor() -> None:
    for is_last in (True, False):
        parsed = parse_segment(segment() + encode_mark(7), "x", is_last=is_last)
        assert parsed.successor == 7
        assert [body for _, body in parsed.entries] == BODIES
        assert parsed.kept_bytes == len(segment())


def test_segment_with_a_record_after_its_mark_is_damage() -> None:
    data = segment() + encode_mark(7) + encode_entry(len(BODIES), b"more")
    with pytest.raises(StoreFailed):
        parse_segment(data, "x", is_last=True)


def test_segment_with_a_damaged_record_before_its_mark_is_damage() -> None:
    data = bytearray(segment() + encode_mark(7))
    data[len(segment()) - 1] ^= 1
    with pytest.raises(StoreFailed):
        parse_segment(bytes(data), "x", is_last=True)


def test_last_record_cut_short_is_torn_and_not_damaged() -> None:
    whole, start = segment(), len(segment(BODIES[:-1]))
    for length in range(start + 1, len(whole)):
        parsed = parse_segment(whole[:length], "x", is_last=True)
        assert (parsed.torn_bytes, parsed.damaged_bytes) == (length - start, 0)


def test_last_record_with_a_flipped_bit_is_damaged_and_not_torn() -> None:
    whole, start = segment(), len(segment(BODIES[:-1]))
    for bit in range(8 * start, 8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        parsed = parse_segment(bytes(flipped), "x", is_last=True)
        assert (parsed.torn_bytes, parsed.damaged_bytes) == (0, len(whole) - start)


def test_zeros_that_a_file_system_left_at_the_end_are_torn() -> None:
    parsed = parse_segment(segment() + bytes(100), "x", is_last=True)
    assert (parsed.torn_bytes, parsed.damaged_bytes) == (100, 0)
