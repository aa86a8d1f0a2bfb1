"""`state/checkpoint_parts.py`: where a checkpoint is cut, and what its digest proves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.checkpoint_parts import (
    MAX_PARTS,
    CheckpointManifest,
    CheckpointPart,
    check_cut,
    check_parts,
    part_ranges,
    parts_digest,
)
from epochal.state.errors import InvalidDocument
from epochal.state.wire import canonical_json, sha256_hex

A, B = CheckpointPart(sha256_hex(b"aa"), 2), CheckpointPart(sha256_hex(b"b"), 1)


@given(size_bytes=st.integers(1, 5000), part_bytes=st.integers(1, 700))
def test_parts_cover_the_file_and_only_the_last_is_smaller(size_bytes: int, part_bytes: int) -> None:
    ranges = list(part_ranges(size_bytes, part_bytes))
    assert [byte for start, stop in ranges for byte in (start, stop)][1:-1:2] == [start for start, _ in ranges[1:]]
    assert (ranges[0][0], ranges[-1][1]) == (0, size_bytes)
    assert all(stop - start == part_bytes for start, stop in ranges[:-1])
    assert 1 <= ranges[-1][1] - ranges[-1][0] <= part_bytes


def test_checkpoint_of_one_part_has_the_digest_of_its_bytes() -> None:
    assert parts_digest([A]) == sha256_hex(b"aa")


def test_manifest_is_canonical_json_with_this_digest() -> None:
    text = (
        '{"format":1,"parts":['
        '{"sha256":"961b6dd3ede3cb8ecbaacbd68de040cd78eb2ed5889130cceb4c49268ea4d506","size_bytes":2},'
        '{"sha256":"3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d","size_bytes":1}]}'
    )
    assert canonical_json(CheckpointManifest((A, B))) == text.encode()
    assert parts_digest([A, B]) == sha256_hex(text.encode())


@pytest.mark.parametrize("parts", [(B, A), (A, A), (A,)])
def test_other_parts_than_the_digest_names_are_refused(parts: tuple[CheckpointPart, ...]) -> None:
    with pytest.raises(InvalidDocument) as error:
        check_parts(parts, parts_digest([A, B]), 3)
    assert error.value.context["rule"] == "parts"
    check_parts((A, B), parts_digest([A, B]), 3)


@pytest.mark.parametrize("parts", [(B, A), (A, B, B), (A,) * (MAX_PARTS + 1)], ids=["order", "small", "many"])
def test_checkpoint_that_is_cut_in_another_way_is_refused(parts: tuple[CheckpointPart, ...]) -> None:
    with pytest.raises(InvalidDocument, match="parts; allowed"):
        check_cut(parts, 2)
    check_cut((A, A, B), 2)
