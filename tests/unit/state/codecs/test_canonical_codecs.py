"""One content has one byte string: `int8` and `int4`, whose scale follows from the values, and no record twice."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.state.codecs.codec import LEAST_SCALE, Block, Codec, EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.codecs.integers import IntegerCodec
from epochal.state.model.tensors import Float32Array

INTEGERS = {"int8": 127, "int4": 7}
FLOAT_MAX = float(np.finfo(np.float32).max)
LEAST_BITS, INFINITY_BITS = 0x00800000, 0x7F800000
MAX_ABS_OF_A_RUN = 1e30
"""The largest `merge.max_abs` that a state file may have."""


def number(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def integer_codec(name: str) -> IntegerCodec:
    codec = codec_named(name)
    assert isinstance(codec, IntegerCodec)
    return codec


def record(name: str, scale: np.float32, codes: list[int]) -> Block:
    """The record of these codes, whatever rules it breaks; a last high nibble is 0."""
    if name == "int4":
        padded = [code & 15 for code in codes] + [0] * (len(codes) % 2)
        codes = [low | high << 4 for low, high in zip(padded[::2], padded[1::2], strict=True)]
    data = np.array([scale], "<f4").tobytes() + bytes(code & 255 for code in codes)
    return np.frombuffer(data, np.uint8)


def decoded(codec: Codec, block: Block, count: int) -> Float32Array:
    return EncodedTensor(codec, (count,), block).values()


def rule_of(name: str, scale: np.float32, codes: list[int], max_abs: float = FLOAT_MAX) -> str | None:
    found = codec_named(name).check(record(name, scale, codes).tobytes(), 0, len(codes), max_abs)
    return found if isinstance(found, str) else None


scales = st.one_of(
    st.sampled_from([LEAST_BITS, LEAST_BITS + 1, 0x3F800000, 0x3DCCCCCD, INFINITY_BITS - 1]),
    st.integers(LEAST_BITS, LEAST_BITS + 0x0400_0000),
    st.integers(LEAST_BITS, INFINITY_BITS - 1),
).map(number)


@st.composite
def records(draw: st.DrawFn, name: str) -> tuple[np.float32, list[int]]:
    """A scale, and codes of which the largest is often the largest that there is."""
    largest = INTEGERS[name]
    code = st.one_of(st.sampled_from([0, largest, -largest]), st.integers(-largest, largest))
    return draw(scales), draw(st.lists(code, min_size=1, max_size=5))


@pytest.mark.parametrize("name", INTEGERS)
@given(data=st.data())
def test_record_is_accepted_just_if_its_values_encode_to_it(name: str, data: st.DataObject) -> None:
    """So decoding has an inverse, and no two accepted records decode alike."""
    scale, codes = data.draw(records(name))
    codec, block = codec_named(name), record(name, scale, codes)
    values = decoded(codec, block, len(codes))
    is_encoded = bool(np.isfinite(values).all()) and codec.encode(values).tobytes() == block.tobytes()
    assert (rule_of(name, scale, codes) is None) is is_encoded
    assert not np.signbit(values[values == 0]).any()


@pytest.mark.parametrize("name", INTEGERS)
@given(
    bits=st.lists(st.integers(0, INFINITY_BITS - 1), min_size=1, max_size=600),
    signs=st.integers(0, 2**32),
    exponent=st.sampled_from([0, 0, -64, -120]),
)
@example(bits=[1], signs=0, exponent=0)
@example(bits=[LEAST_BITS * 127 // 2, LEAST_BITS - 1], signs=1, exponent=0)
def test_every_finite_tensor_is_encoded_within_the_rules(name: str, bits: list[int], signs: int, exponent: int) -> None:
    magnitudes = np.minimum(np.array(bits, np.uint32).view(np.float32), np.float32(MAX_ABS_OF_A_RUN))
    flips = np.random.default_rng(signs).choice(np.array([-1, 1], np.float32), len(bits))
    values = np.ldexp(magnitudes * flips, exponent).astype(np.float32)
    codec = codec_named(name)
    block = codec.encode(values)
    assert isinstance(codec.check(block.tobytes(), 0, values.size, FLOAT_MAX), float)
    assert codec.encode(decoded(codec, block, values.size)).tobytes() == block.tobytes()


@pytest.mark.parametrize("name", INTEGERS)
def test_each_largest_value_of_a_binade_gives_a_scale_that_is_accepted(name: str) -> None:
    """All 2²³ of them: with a power of two as a factor, every other binade rounds in the same way."""
    codec, count = integer_codec(name), 1 << 20
    for first in range(0x3F800000, 0x40000000, count):
        rows = np.arange(first, first + count, dtype=np.uint32).view(np.float32)[:, None]
        block = np.empty((count, codec.record_bytes(1)), np.uint8)
        codec.encode_rows(rows, block)
        assert isinstance(codec.check_rows(block, 1, FLOAT_MAX), float)
        assert (codec.decode(block.reshape(-1)[:5], 1, 0, np.empty(1, np.float32)) > 0).all()


@pytest.mark.parametrize(
    ("codes", "factor"), [([0, 0], 2.0), ([126, 2], 1.0), ([-126, 0], 1.0), ([63, 1], 2.0), ([1, 1], 127.0)]
)
def test_scale_that_is_not_that_of_the_values_is_refused(codes: list[int], factor: float) -> None:
    assert rule_of("int8", LEAST_SCALE * np.float32(factor * 4), codes) == "scale_use"
    assert rule_of("int8", LEAST_SCALE, codes) is None


@pytest.mark.parametrize("name", INTEGERS)
def test_block_whose_product_overflows_is_refused_whatever_the_bound(name: str) -> None:
    largest, scale = INTEGERS[name], number(INFINITY_BITS - 1)
    assert rule_of(name, scale, [largest, 1], MAX_ABS_OF_A_RUN) == "max_abs"
    assert rule_of(name, scale, [largest, 1], FLOAT_MAX) == "max_abs"
    assert rule_of(name, scale, [largest, 1], float("inf")) == "scale_use"


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("bits", [0, 1, LEAST_BITS - 1, 0x80000000, 0xBF800000, INFINITY_BITS, 0x7FC00000])
def test_scale_that_is_no_positive_normal_number_is_refused(name: str, bits: int) -> None:
    codes: Any = [INTEGERS[name], 0]
    assert rule_of(name, number(bits), codes) == "scale"
