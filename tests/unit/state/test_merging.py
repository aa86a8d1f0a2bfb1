"""The merge rule: golden vectors that every machine must reproduce, and a scalar oracle that rounds step by step."""

import ctypes
import platform
import struct
import sys
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.averaging import ratio_as_float32
from epochal.state.errors import InternalError
from epochal.state.merging import (
    CHUNK_ELEMENTS,
    Contribution,
    Diverged,
    OuterStep,
    UnsoundArithmetic,
    merge,
    verify_arithmetic,
)
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.model.tensors import Float32Array

DILOCO = OuterStep(0.7, 0.9)

moderate = st.floats(-1e4, 1e4, width=32)
denormal = st.floats(-1.1754942106924411e-38, 1.1754942106924411e-38, width=32)
values = moderate | denormal
weights = st.integers(1, 1000) | st.integers(1, 2**62)


def floats_of(text: str) -> Float32Array:
    """The float32 values whose big-endian bits stand in hex, as one writes numbers."""
    return np.array([int(word, 16) for word in text.split()], np.uint32).view(np.float32)


def bits_of(array: Float32Array) -> str:
    return " ".join(f"{word:08x}" for word in array.reshape(-1).view(np.uint32))


def rounded(value: float) -> float:
    """The nearest float32. A float64 `+ − ×` of two float32 rounds a second time without effect (53 ≥ 2·24 + 2)."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def oracle_weight(numerator: int, denominator: int) -> float:
    """The float32 nearest to the exact ratio, found by comparing neighbours as fractions."""
    exact = Fraction(numerator, denominator)
    guess = np.float32(numerator / denominator)
    around = [np.nextafter(guess, np.float32(0)), guess, np.nextafter(guess, np.float32(np.inf))]
    return float(min(around, key=lambda c: (abs(Fraction(float(c)) - exact), int(c.view(np.uint32)) & 1)))


def oracle(theta: float, v: float, contributions: Sequence[tuple[int, float]], outer: OuterStep) -> tuple[float, float]:
    """One value's update in plain Python, each operation rounded on its own."""
    eta, mu = rounded(outer.learning_rate), rounded(outer.momentum)
    total = sum(count for count, _ in contributions)
    products = [rounded(oracle_weight(count, total) * d) for count, d in contributions]
    mean = products[0]
    for product in products[1:]:
        mean = rounded(mean + product)
    new_v = rounded(rounded(mu * v) + mean)
    step = rounded(eta * rounded(mean + rounded(mu * new_v)))
    return rounded(theta - step), new_v


def replica_of(theta: Float32Array, v: Float32Array) -> Replica:
    return Replica(4, {"w": theta}, {"w": v})


def merged_bits(replica: Replica, contributions: Sequence[Contribution], outer: OuterStep) -> tuple[str, str]:
    after = merge(replica, contributions, outer)
    assert after.step == replica.step + 1
    return bits_of(after.parameters["w"]), bits_of(after.momentum["w"])


# One column per case: ordinary numbers; a sum that rounds; a momentum that decays into a denormal; denormals only;
# the smallest denormal; zeros whose sign shows that no sum begins at +0.
GOLDEN_THETA = "3f800000 c0490fdb 00000000 00200000 00000001 80000000"
GOLDEN_MOMENTUM = "3dcccccd 4b000001 00800000 80100000 00000001 80000000"
GOLDEN_FIRST = "3e99999a 33d6bf95 00000000 00000007 00000001 80000000"
GOLDEN_SECOND = "be4ccccd 3f7fffff 00000000 800fffff 00000003 80000000"
GOLDEN_NEW_THETA = "3f7cd58a ca9126f1 80489374 00374234 80000002 00000000"
GOLDEN_NEW_MOMENTUM = "3d681b4e 4ae66669 00733333 8019110e 00000003 80000000"
GOLDEN_DIGEST = "f52125ec58a97a681f21091f6084b8c78885cccf285c023bc05c0dc82044269c"

# Without outer momentum, the same parameters and differences.
GOLDEN_PLAIN_THETA = "3f82fc96 c066edb9 00000000 00277776 00000000 00000000"
GOLDEN_PLAIN_DIGEST = "35b2285c8ca7b0a91a8d85b10ddb98ea12dac4e7af5b96d44daeb34e252ebd36"


def golden_merge() -> Replica:
    replica = replica_of(floats_of(GOLDEN_THETA), floats_of(GOLDEN_MOMENTUM))
    contributions = [Contribution(1, {"w": floats_of(GOLDEN_FIRST)}), Contribution(2, {"w": floats_of(GOLDEN_SECOND)})]
    return merge(replica, contributions, DILOCO)


def test_merge_golden_vectors_are_kept() -> None:
    after = golden_merge()
    assert bits_of(after.parameters["w"]) == GOLDEN_NEW_THETA
    assert bits_of(after.momentum["w"]) == GOLDEN_NEW_MOMENTUM
    assert replica_digest(after) == GOLDEN_DIGEST


@given(
    start=st.lists(st.tuples(values, values), min_size=1, max_size=12),
    counts=st.lists(weights, min_size=1, max_size=4),
    outer=st.tuples(st.floats(1e-3, 2), st.floats(0, 0.999)),
    data=st.data(),
)
def test_merge_agrees_bit_for_bit_with_the_oracle(
    start: list[tuple[float, float]], counts: list[int], outer: tuple[float, float], data: st.DataObject
) -> None:
    rows = [data.draw(st.lists(values, min_size=len(start), max_size=len(start))) for _ in counts]
    step = OuterStep(*outer)
    replica = replica_of(np.array([t for t, _ in start], np.float32), np.array([v for _, v in start], np.float32))
    contributions = [Contribution(c, {"w": np.array(r, np.float32)}) for c, r in zip(counts, rows, strict=True)]
    expected = [
        oracle(theta, v, [(count, row[i]) for count, row in zip(counts, rows, strict=True)], step)
        for i, (theta, v) in enumerate(start)
    ]
    thetas = np.array([theta for theta, _ in expected], np.float32)
    momenta = np.array([v for _, v in expected], np.float32)
    assert merged_bits(replica, contributions, step) == (bits_of(thetas), bits_of(momenta))


@given(weights, weights)
def test_merge_weight_is_the_float32_nearest_to_the_exact_ratio(one: int, other: int) -> None:
    assert float(ratio_as_float32(one, one + other)) == oracle_weight(one, one + other)


def test_merge_weight_is_rounded_once_unlike_a_float64_quotient() -> None:
    denominator = 2**62
    numerator = 2**61 + 2**37 + 1  # a hair above the middle of two float32, invisible to float64
    assert float(np.float32(numerator / denominator)) == 0.5
    assert float(ratio_as_float32(numerator, denominator)) == 0.5 + 2**-24
    assert [float(ratio_as_float32(n, d)).hex() for n, d in ((1, 1), (1, 3), (2, 3), (1, 2**63))] == [
        "0x1.0000000000000p+0",
        "0x1.5555560000000p-2",
        "0x1.5555560000000p-1",
        "0x1.0000000000000p-63",
    ]


def scattered(array: Float32Array, how: str) -> Float32Array:
    """The same values, laid out in memory in another way."""
    if how == "strided":
        return np.repeat(array.reshape(-1), 2)[::2].reshape(array.shape)
    if how == "fortran":
        return np.asfortranarray(array)
    raw = np.empty(array.nbytes + 1, np.uint8)[1:]  # not aligned to four bytes
    unaligned = raw.view(np.float32).reshape(array.shape)
    unaligned[...] = array
    return unaligned


@pytest.mark.parametrize("how", ["strided", "fortran", "unaligned"])
def test_merge_does_not_depend_on_memory_layout(how: str) -> None:
    base = np.arange(1, 7 * 33 + 1, dtype=np.float32).reshape(7, 33)
    arrays = [np.sin(base), np.cos(base), np.sin(base * 2), np.cos(base * 3)]

    def run(arrays: list[Float32Array]) -> tuple[str, str]:
        theta, v, first, second = arrays
        return merged_bits(
            replica_of(theta, v), [Contribution(3, {"w": first}), Contribution(5, {"w": second})], DILOCO
        )

    assert run([scattered(array, how) for array in arrays]) == run(arrays)


def test_merge_does_not_depend_on_size_or_chunks() -> None:
    size = CHUNK_ELEMENTS * 2 + 5
    theta = np.sin(np.arange(size, dtype=np.float32))
    contributions = [np.cos(theta * k).astype(np.float32) for k in (1, 2, 3)]

    def run(part: slice) -> Replica:
        replica = replica_of(theta[part], theta[::-1][part])
        return merge(replica, [Contribution(k + 1, {"w": d[part]}) for k, d in enumerate(contributions)], DILOCO)

    whole = run(slice(None))
    for start, stop in ((0, 1), (CHUNK_ELEMENTS - 3, CHUNK_ELEMENTS + 4), (size - 2, size)):
        piece = run(slice(start, stop))
        assert bits_of(piece.parameters["w"]) == bits_of(whole.parameters["w"][start:stop])
        assert bits_of(piece.momentum["w"]) == bits_of(whole.momentum["w"][start:stop])


def test_merge_order_of_the_outcome_matters_and_is_kept() -> None:
    replica = replica_of(np.zeros(1, np.float32), np.zeros(1, np.float32))
    large, small, other = (Contribution(1, {"w": np.array([x], np.float32)}) for x in (1e8, 1.0, -1e8))
    step = OuterStep(1.0, 0.0)
    in_order = merge(replica, [large, other, small], step)
    assert float(in_order.parameters["w"][0]) == -rounded(oracle_weight(1, 3))
    assert float(merge(replica, [large, small, other], step).parameters["w"][0]) == 0


def test_merge_of_one_client_without_momentum_ends_where_the_client_ended() -> None:
    start, end = np.array([1.0, -2.0, 4.0], np.float32), np.array([0.5, -2.5, 4.0], np.float32)
    after = merge(replica_of(start, np.zeros(3, np.float32)), [Contribution(9, {"w": start - end})], OuterStep(1, 0))
    assert after.parameters["w"].tolist() == end.tolist()


def plain_replica_of(theta: Float32Array) -> Replica:
    return Replica(4, {"w": theta}, {})


# The same with the factors 1 and 3eaaaaab (a third): weights 3eaaaaab and 3e638e3a.
GOLDEN_FACTOR = 1 / 3
GOLDEN_FACTORED_THETA = "3f5e91ba ca9126f0 80489374 002dcd04 80000001 00000000"
GOLDEN_FACTORED_MOMENTUM = "3e150c84 4ae66668 00733333 8011f49d 00000002 80000000"
GOLDEN_FACTORED_DIGEST = "3ae1b991ba4e96c514264a6c75d89788e248b0e8bb3d506cafd5915f49f70f55"


def test_merge_with_a_factor_has_golden_vectors() -> None:
    replica = replica_of(floats_of(GOLDEN_THETA), floats_of(GOLDEN_MOMENTUM))
    contributions = [
        Contribution(1, {"w": floats_of(GOLDEN_FIRST)}),
        Contribution(2, {"w": floats_of(GOLDEN_SECOND)}, rounded(GOLDEN_FACTOR)),
    ]
    after = merge(replica, contributions, DILOCO)
    assert bits_of(after.parameters["w"]) == GOLDEN_FACTORED_THETA
    assert bits_of(after.momentum["w"]) == GOLDEN_FACTORED_MOMENTUM
    assert replica_digest(after) == GOLDEN_FACTORED_DIGEST


def test_merge_without_momentum_has_golden_vectors() -> None:
    contributions = [Contribution(1, {"w": floats_of(GOLDEN_FIRST)}), Contribution(2, {"w": floats_of(GOLDEN_SECOND)})]
    after = merge(plain_replica_of(floats_of(GOLDEN_THETA)), contributions, OuterStep(0.7, 0.0))
    assert bits_of(after.parameters["w"]) == GOLDEN_PLAIN_THETA
    assert (after.step, after.momentum) == (5, {})
    assert replica_digest(after) == GOLDEN_PLAIN_DIGEST


def test_merge_without_momentum_moves_as_with_a_momentum_of_zero() -> None:
    theta = np.sin(np.arange(CHUNK_ELEMENTS + 7, dtype=np.float32))
    contributions = [Contribution(k, {"w": np.cos(theta * k).astype(np.float32)}) for k in (1, 2, 3)]
    plain = merge(plain_replica_of(theta), contributions, OuterStep(0.7, 0.0))
    held = merge(replica_of(theta, np.zeros_like(theta)), contributions, OuterStep(0.7, 0.0))
    assert np.array_equal(plain.parameters["w"], held.parameters["w"])
    assert replica_digest(plain) != replica_digest(held)


def test_merge_with_momentum_of_a_replica_without_is_our_own_bug() -> None:
    with pytest.raises(InternalError, match="without outer momentum"):
        merge(plain_replica_of(np.zeros(2, np.float32)), [Contribution(1, {"w": np.zeros(2, np.float32)})], DILOCO)


def test_merge_that_overflows_is_reported_by_name() -> None:
    replica = replica_of(np.array([-3e38], np.float32), np.zeros(1, np.float32))
    with pytest.raises(Diverged, match="'w'"):
        merge(replica, [Contribution(1, {"w": np.array([3e38], np.float32)})], DILOCO)


def test_merge_of_what_no_outcome_contains_is_our_own_bug() -> None:
    replica = replica_of(np.zeros(2, np.float32), np.zeros(2, np.float32))
    good = np.zeros(2, np.float32)
    for wrong in (
        [],
        [Contribution(0, {"w": good})],
        [Contribution(1, {"w": good}, 0.0)],
        [Contribution(1, {"w": good}, 1.5)],
        [Contribution(1, {"x": good})],
        [Contribution(1, {"w": np.zeros(3, np.float32)})],
        [Contribution(1, {"w": np.zeros(2)})],  # type: ignore[dict-item]
    ):
        with pytest.raises(InternalError):
            merge(replica, wrong, DILOCO)


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 0), (-1, 1), (2**64, 1), (1, 2**64)])
def test_weight_of_an_impossible_count_is_our_own_bug(numerator: int, denominator: int) -> None:
    with pytest.raises(InternalError):
        ratio_as_float32(numerator, denominator)


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="sets the C library's rounding")
@pytest.mark.parametrize(
    ("rounding", "found"),
    [(0x400, "a tie"), (0x800, "a denormal result"), (0xC00, "a tie")],
    ids=["down", "up", "to zero"],
)
def test_thread_that_rounds_otherwise_is_found(rounding: int, found: str) -> None:
    library = ctypes.CDLL(None)
    library.fesetround(rounding)
    try:
        with pytest.raises(UnsoundArithmetic, match=f"{found} is not computed"):
            verify_arithmetic()
    finally:
        library.fesetround(0)
