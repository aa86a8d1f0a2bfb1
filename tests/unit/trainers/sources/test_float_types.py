"""Conversion of stored numbers: against NumPy's own, and against ml_dtypes' idea of bfloat16 written out by hand."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.trainers.sources.float_types import FloatType, float_type_of, from_float32, to_float32

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def nearest_bfloat16(value: float) -> bytes:
    """Return the nearest bfloat16 (ties to even), found among the two neighbours."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    low = bits & 0xFFFF0000
    candidates = [low, low + 0x10000] if bits != low else [low]
    exact = struct.unpack("<f", struct.pack("<I", bits))[0]

    def distance(candidate: int) -> tuple[float, int]:
        found = struct.unpack("<f", struct.pack("<I", candidate))[0]
        return abs(found - exact), (candidate >> 16) & 1

    return struct.pack("<H", min(candidates, key=distance) >> 16)


@given(FLOATS.filter(lambda value: abs(value) <= FloatType.BFLOAT16.largest))
def test_bfloat16_is_the_nearest_number_with_ties_to_even(value: float) -> None:
    assert from_float32(np.array([value], np.float32), FloatType.BFLOAT16) == nearest_bfloat16(value)


@given(st.binary(min_size=2, max_size=64).filter(lambda data: len(data) % 2 == 0))
def test_every_bfloat16_survives_a_round_trip(data: bytes) -> None:
    raw = np.frombuffer(data, np.uint8)
    values = np.empty(raw.size // 2, np.float32)
    to_float32(raw, FloatType.BFLOAT16, values)
    exponents = np.frombuffer(data, "<u2") & 0x7F80
    finite = exponents != 0x7F80
    back = np.frombuffer(from_float32(values[finite], FloatType.BFLOAT16), "<u2")
    assert back.tolist() == np.frombuffer(data, "<u2")[finite].tolist()


@given(st.lists(FLOATS, max_size=8))
def test_float32_and_float16_are_those_of_numpy(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    assert from_float32(values, FloatType.FLOAT32) == values.astype("<f4").tobytes()
    small = values[np.abs(values) <= FloatType.FLOAT16.largest]
    stored = from_float32(small, FloatType.FLOAT16)
    assert stored == small.astype("<f2").tobytes()
    back = np.empty_like(small)
    to_float32(np.frombuffer(stored, np.uint8), FloatType.FLOAT16, back)
    assert np.array_equal(back, small.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("kind", FloatType)
def test_largest_number_of_a_type_is_finite_in_it(kind: FloatType) -> None:
    values = np.array([kind.largest, -kind.largest], np.float32)
    back = np.empty_like(values)
    to_float32(np.frombuffer(from_float32(values, kind), np.uint8), kind, back)
    assert back.tolist() == [kind.largest, -kind.largest]
    assert float_type_of(kind.code) is kind
    assert float_type_of("I64") is None
