"""The outer step: golden vectors that every machine must reproduce, and a scalar oracle that rounds step by step."""

import ctypes
import platform
import struct
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.codecs.codec import EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.errors import InternalError
from epochal.state.merging import CHUNK_ELEMENTS, Diverged, OuterStep, UnsoundArithmetic, merge, verify_arithmetic
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.model.tensors import Float32Array

DILOCO = OuterStep(0.7, 0.9)

moderate = st.floats(-1e4, 1e4, width=32)
denormal = st.floats(-1.1754942106924411e-38, 1.1754942106924411e-38, width=32)
values = moderate | denormal


def floats_of(text: str) -> Float32Array:
    """The float32 values whose big-endian bits stand in hex, as one writes numbers."""
    return np.array([int(word, 16) for word in text.split()], np.uint32).view(np.float32)


def bits_of(array: Float32Array) -> str:
    return " ".join(f"{word:08x}" for word in array.reshape(-1).view(np.uint32))


def rounded(value: float) -> float:
    """The nearest float32. A float64 `+ − ×` of two float32 rounds a second time without effect (53 ≥ 2·24 + 2)."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def oracle(theta: float, v: float, mean: float, outer: OuterStep) -> tuple[float, float]:
    """One value's outer step in plain Python, each operation rounded on its own."""
    eta, mu = rounded(outer.learning_rate), rounded(outer.momentum)
    mean = rounded(rounded(outer.part) * mean)
    new_v = rounded(rounded(mu * v) + mean)
    step = rounded(eta * rounded(mean + rounded(mu * new_v)))
    return rounded(theta - step), new_v


def replica_of(theta: Float32Array, v: Float32Array) -> Replica:
    return Replica(4, {"w": theta}, {"w": v})


def merged_bits(replica: Replica, mean: Float32Array, outer: OuterStep) -> tuple[str, str]:
    after = merge(replica, {"w": mean}, outer)
    assert after.step == replica.step + 1
    return bits_of(after.parameters["w"]), bits_of(after.momentum["w"])


# One column per case: ordinary numbers; a sum that rounds; a momentum that decays into a denormal; denormals only;
# the smallest denormal; signs of zero.
GOLDEN_THETA = "3f800000 c0490fdb 00000000 00200000 00000001 80000000"
GOLDEN_MOMENTUM = "3dcccccd 4b000001 00800000 80100000 00000001 80000000"
GOLDEN_MEAN = "bd088888 3f2aaaaa 00000000 800aaaa7 00000002 80000000"
GOLDEN_NEW_THETA = "3f7cd58a ca9126f1 80489374 00374232 80000002 00000000"
GOLDEN_NEW_MOMENTUM = "3d681b4e 4ae66669 00733333 8019110d 00000003 80000000"
GOLDEN_DIGEST = "8762d7631bd8b7d107c140e8a7c076355159f6aa3b54b44e21f34942c692cded"

# Without outer momentum, the same parameters and mean.
GOLDEN_PLAIN_THETA = "3f82fc96 c066edb9 00000000 00277775 00000000 00000000"
GOLDEN_PLAIN_DIGEST = "c6f3683fadd30851241542a68d6c8ad61f7a12a653a30cb6b4a7ba9bf550cb74"


def test_merge_golden_vectors_are_kept() -> None:
    after = merge(
        replica_of(floats_of(GOLDEN_THETA), floats_of(GOLDEN_MOMENTUM)), {"w": floats_of(GOLDEN_MEAN)}, DILOCO
    )
    assert bits_of(after.parameters["w"]) == GOLDEN_NEW_THETA
    assert bits_of(after.momentum["w"]) == GOLDEN_NEW_MOMENTUM
    assert replica_digest(after) == GOLDEN_DIGEST


@given(
    start=st.lists(st.tuples(values, values, values), min_size=1, max_size=12),
    outer=st.tuples(st.floats(1e-3, 2), st.floats(1e-3, 0.999)),
)
def test_merge_agrees_bit_for_bit_with_the_oracle(
    start: list[tuple[float, float, float]], outer: tuple[float, float]
) -> None:
    step = OuterStep(*outer)
    theta, v, mean = np.array(start, np.float32).T
    expected = np.array([oracle(*one, step) for one in start], np.float32).T
    assert merged_bits(replica_of(theta, v), mean, step) == (bits_of(expected[0]), bits_of(expected[1]))


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
    arrays = [np.sin(base), np.cos(base), np.sin(base * 2)]

    def run(arrays: list[Float32Array]) -> tuple[str, str]:
        theta, v, mean = arrays
        return merged_bits(replica_of(theta, v), mean, DILOCO)

    assert run([scattered(array, how) for array in arrays]) == run(arrays)


def test_merge_does_not_depend_on_size_or_chunks() -> None:
    size = CHUNK_ELEMENTS * 2 + 5
    theta = np.sin(np.arange(size, dtype=np.float32))
    mean = np.cos(theta * 2).astype(np.float32)

    def run(part: slice) -> Replica:
        return merge(replica_of(theta[part], theta[::-1][part]), {"w": mean[part]}, DILOCO)

    whole = run(slice(None))
    for start, stop in ((0, 1), (CHUNK_ELEMENTS - 3, CHUNK_ELEMENTS + 4), (size - 2, size)):
        piece = run(slice(start, stop))
        assert bits_of(piece.parameters["w"]) == bits_of(whole.parameters["w"][start:stop])
        assert bits_of(piece.momentum["w"]) == bits_of(whole.momentum["w"][start:stop])


@pytest.mark.parametrize("codec", ["float32", "int8", "int4"])
def test_merge_of_an_encoded_update_is_that_of_its_values(codec: str) -> None:
    size = CHUNK_ELEMENTS + 4096 + 77
    theta, v, mean = np.random.default_rng(7).standard_normal((3, size)).astype(np.float32)
    encoded = EncodedTensor(codec_named(codec), (size,), codec_named(codec).encode(mean))
    replica = replica_of(theta, v)
    merged = merge(replica, {"w": encoded}, DILOCO)
    assert replica_digest(merged) == replica_digest(merge(replica, {"w": encoded.values()}, DILOCO))


def test_merge_without_momentum_at_rate_one_ends_where_the_mean_leads() -> None:
    start, end = np.array([1.0, -2.0, 4.0], np.float32), np.array([0.5, -2.5, 4.0], np.float32)
    after = merge(replica_of(start, np.zeros(3, np.float32)), {"w": start - end}, OuterStep(1, 0))
    assert after.parameters["w"].tolist() == end.tolist()


def plain_replica_of(theta: Float32Array) -> Replica:
    return Replica(4, {"w": theta}, {})


def test_merge_without_momentum_has_golden_vectors() -> None:
    after = merge(plain_replica_of(floats_of(GOLDEN_THETA)), {"w": floats_of(GOLDEN_MEAN)}, OuterStep(0.7, 0.0))
    assert bits_of(after.parameters["w"]) == GOLDEN_PLAIN_THETA
    assert (after.step, after.momentum) == (5, {})
    assert replica_digest(after) == GOLDEN_PLAIN_DIGEST


def test_merge_without_momentum_moves_as_with_a_momentum_of_zero() -> None:
    theta = np.sin(np.arange(CHUNK_ELEMENTS + 7, dtype=np.float32))
    mean = np.cos(theta).astype(np.float32)
    plain = merge(plain_replica_of(theta), {"w": mean}, OuterStep(0.7, 0.0))
    held = merge(replica_of(theta, np.zeros_like(theta)), {"w": mean}, OuterStep(0.7, 0.0))
    assert np.array_equal(plain.parameters["w"], held.parameters["w"])
    assert replica_digest(plain) != replica_digest(held)


def test_merge_with_momentum_of_a_replica_without_is_our_own_bug() -> None:
    with pytest.raises(InternalError, match="without outer momentum"):
        merge(plain_replica_of(np.zeros(2, np.float32)), {"w": np.zeros(2, np.float32)}, DILOCO)


def test_merge_that_overflows_is_reported_by_name() -> None:
    replica = replica_of(np.array([-3e38], np.float32), np.zeros(1, np.float32))
    with pytest.raises(Diverged, match="'w'"):
        merge(replica, {"w": np.array([3e38], np.float32)}, DILOCO)


@pytest.mark.parametrize(
    "wrong", [{}, {"x": np.zeros(2, np.float32)}, {"w": np.zeros(3, np.float32)}, {"w": np.zeros(2)}]
)
def test_merge_of_what_no_update_contains_is_our_own_bug(wrong: Any) -> None:
    replica = replica_of(np.zeros(2, np.float32), np.zeros(2, np.float32))
    with pytest.raises(InternalError):
        merge(replica, wrong, DILOCO)


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
