"""`state/codecs/compiled.py`: compiled loops compute the bits that NumPy computes, or are not used."""

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.state.codecs import compiled
from epochal.state.codecs.codec import EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.merging import Diverged, OuterStep, merge, probe_bits, verify_arithmetic
from epochal.state.model.replica import Replica, replica_digest
from epochal.state.model.tensors import Float32Array, TensorLayout
from epochal.state.updates import UpdateSum, Weight

pytest.importorskip("numba", reason="compiled loops are an extra")

NAMES = ("int2", "int4", "int8")
SIZES = st.integers(1, 600)
SEEDS = st.integers(0, 2**32 - 1)


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> Iterator[None]:
    assert compiled.load(probe_bits)
    yield
    compiled._loaded = None


def any_bits(seed: int, size: int, *, finite: bool) -> Float32Array:
    """Return floats of random bits; half of them are denormals, zeros, or near one another, where ties are."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, size, dtype=np.uint32)
    kind = rng.integers(0, 4, size)
    bits = np.where(kind == 0, bits & 0x807FFFFF, bits)
    bits = np.where(kind == 1, (bits & 0x80000000) | 0x3F000000 | (bits & 0x00F00000), bits)
    values = bits.astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(values), values, np.float32(0)) if finite else values


def same(found: Float32Array, wanted: Float32Array) -> bool:
    """Return whether all bits are equal; any NaN equals any other."""
    bits, other = found.view(np.uint32), wanted.view(np.uint32)
    return bool(np.all((bits == other) | (np.isnan(found) & np.isnan(wanted))))


class _WithNumpy:
    """NumPy instead of the loops."""

    def __enter__(self) -> None:
        self._loops, compiled._loaded = compiled._loaded, None

    def __exit__(self, *_: object) -> None:
        compiled._loaded = self._loops


@pytest.mark.parametrize("name", NAMES)
@given(SEEDS, SIZES)
@example(0, 256)
def test_encoded_bytes_are_those_of_numpy(name: str, seed: int, size: int) -> None:
    codec, values = codec_named(name), any_bits(seed, size, finite=True)
    with _WithNumpy():
        wanted = codec.encode(values)
    assert codec.encode(values).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("name", NAMES)
@given(SEEDS, SIZES)
def test_values_of_any_bytes_are_those_of_numpy(name: str, seed: int, size: int) -> None:
    codec = codec_named(name)
    block = np.random.default_rng(seed).integers(0, 256, codec.encode(np.zeros(size, np.float32)).size, np.uint8)
    tensor = EncodedTensor(codec, (size,), block)
    with _WithNumpy():
        wanted = tensor.values()
    assert same(tensor.values(), wanted)


@pytest.mark.parametrize("name", NAMES)
@given(SEEDS, SIZES)
def test_sum_of_results_is_that_of_numpy(name: str, seed: int, size: int) -> None:
    codec, start = codec_named(name), any_bits(seed, size, finite=True)
    tensors = [EncodedTensor(codec, (size,), codec.encode(any_bits(seed + n, size, finite=True))) for n in (1, 2)]

    def summed() -> Float32Array:
        sums = start.copy()
        total = UpdateSum(TensorLayout((("w", (size,)),)), "all", sums, None)
        for batch_count, tensor in enumerate(tensors, 3):
            total.add(Weight(batch_count, 0.3), {"w": tensor})
        return sums

    with _WithNumpy():
        wanted = summed()
    assert same(summed(), wanted)


def merged(replica: Replica, mean: Float32Array) -> bytes | str:
    try:
        after = merge(replica, {"w": mean}, OuterStep(0.7, 0.9))
    except Diverged as error:
        return error.message
    return after.parameters["w"].tobytes() + after.momentum["w"].tobytes()


@given(SEEDS, SIZES, st.booleans())
def test_outer_step_of_any_numbers_is_that_of_numpy(seed: int, size: int, finite: bool) -> None:
    theta, velocity, mean = (any_bits(seed + number, size, finite=finite) for number in range(3))
    if finite:  # small enough that nothing overflows
        theta, velocity, mean = (values * np.float32(2**-4) for values in (theta, velocity, mean))
    replica = Replica(0, {"w": theta}, {"w": velocity})
    with _WithNumpy():
        wanted = merged(replica, mean)
    assert merged(replica, mean) == wanted


def test_replica_without_outer_momentum_is_that_of_numpy() -> None:
    values: npt.NDArray[np.float32] = any_bits(1, 1000, finite=True) * np.float32(2**-4)
    replica, mean = Replica(0, {"w": values}, {}), {"w": values[::-1]}
    with _WithNumpy():
        wanted = replica_digest(merge(replica, mean, OuterStep(0.7, 0.0)))
    assert replica_digest(merge(replica, mean, OuterStep(0.7, 0.0))) == wanted


@pytest.mark.nightly
def test_loops_have_no_fused_operation() -> None:
    loops = compiled.compiled()
    assert loops is not None
    for loop in (loops.decode, loops.encode, loops.encode_two_bits, loops.outer_step):
        if loop.stats.cache_hits:  # type: ignore[union-attr]
            loop.recompile()  # type: ignore[union-attr]  # of what comes from the cache no code is shown
        for code in loop.inspect_asm().values():  # type: ignore[union-attr]
            assert not re.findall(r"\bv?fn?m(?:add|sub|la|ls)\w*", code)


def test_loops_that_differ_from_numpy_are_not_used() -> None:
    compiled._loaded = None
    answers = iter((b"with NumPy", b"with loops"))
    assert not compiled.load(lambda: next(answers))
    assert compiled.compiled() is None
    assert compiled.load(probe_bits)
    verify_arithmetic()
