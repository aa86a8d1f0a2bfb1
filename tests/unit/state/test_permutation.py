"""`state/permutation.py`: bijections that every machine computes alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.errors import InvalidInput
from epochal.state.permutation import MAX_PERMUTED, permutation_key, permute, shuffled_positions
from tests.support.data.data_oracle import slow_permute, slow_round_keys

SEED = bytes(range(32))


def images(n: int, indices: list[int], number: int = 7) -> list[int]:
    key = permutation_key(SEED, b"golden", number)
    return [int(image) for image in permute(key, n, np.array(indices, dtype=np.uint64))]


@pytest.mark.parametrize(
    ("n", "indices", "expected"),
    [
        (1, [0], [0]),
        (2, [0, 1], [0, 1]),
        (10, list(range(10)), [4, 6, 5, 1, 9, 7, 0, 3, 8, 2]),
        (1_000_003, [0, 1, 2, 500_000, 1_000_002], [840_951, 928_996, 474_167, 683_323, 233_778]),
        (
            2**63,
            [0, 1, 2**62, 2**63 - 1],
            [2512528147600933645, 4842276731422616845, 3265004217132885944, 2093674410686377056],
        ),
    ],
)
def test_permute_golden_vectors_never_change(n: int, indices: list[int], expected: list[int]) -> None:
    assert images(n, indices) == expected


def test_shuffled_positions_golden_vectors_never_change() -> None:
    assert shuffled_positions(SEED, 12, b"golden") == [4, 11, 7, 5, 8, 9, 6, 0, 1, 3, 2, 10]
    assert shuffled_positions(SEED, 12, b"other") == [9, 10, 6, 1, 4, 5, 0, 7, 2, 8, 11, 3]


def test_permute_whole_range_is_a_bijection() -> None:
    for n in (*range(1, 70), 127, 128, 129, 1000, 1023, 1025, 4096):
        assert sorted(images(n, list(range(n)))) == list(range(n)), n


@given(st.data(), st.binary(max_size=40), st.integers(1, MAX_PERMUTED), st.integers(0, 2**64 - 1))
def test_permute_any_range_agrees_with_plain_integers(data: st.DataObject, seed: bytes, n: int, number: int) -> None:
    indices = data.draw(st.lists(st.integers(0, n - 1), max_size=40))
    found = permute(permutation_key(seed, b"d", number), n, np.array(indices, dtype=np.uint64))
    keys = slow_round_keys(seed, b"d", number)
    assert found.dtype == np.uint64
    assert found.tolist() == [slow_permute(keys, n, index) for index in indices]


@pytest.mark.parametrize(("n", "index"), [(0, 0), (MAX_PERMUTED + 1, 0), (5, 5)])
def test_permute_outside_its_range_is_refused(n: int, index: int) -> None:
    with pytest.raises(InvalidInput):
        images(n, [index])


def test_permutation_key_parts_do_not_run_together() -> None:
    keys = {
        permutation_key(b"ab", b"c", 0),
        permutation_key(b"a", b"bc", 0),
        permutation_key(b"abc", b"", 0),
        permutation_key(b"ab", b"c", 1),
    }
    assert len(keys) == 4


@given(st.binary(max_size=40), st.integers(0, 300), st.binary(max_size=40))
def test_shuffled_positions_is_a_permutation(seed: bytes, count: int, domain: bytes) -> None:
    assert sorted(shuffled_positions(seed, count, domain)) == list(range(count))
