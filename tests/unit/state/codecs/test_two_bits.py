"""`int2`: one content has one record, the scale loses little, and what is lost comes in later rounds."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.state.codecs.codec import LEAST_SCALE, Block, EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.model.tensors import Float32Array
from tests.support.data.fed_back import encode_with_feedback

CODEC = codec_named("int2")
FLOAT_MAX = float(np.finfo(np.float32).max)
INNER, OUTER = (0, 3), (1, 2)
scales = st.integers(0x00800000, 0x7F7FFFFF).map(lambda bits: np.uint32(bits).view(np.float32))
tensors = st.builds(
    lambda seed, count, scale: (np.random.default_rng(seed).standard_t(2, count) * scale).astype(np.float32),
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 3, 4, 5, 255, 256, 257, 600]),
    st.sampled_from([0.0, 1e-45, 1e-38, 3e-38, 1e-3, 1.0, 1e20]),
)


def record(scale: np.float32, codes: list[int]) -> Block:
    """The record of these codes of 0 to 3, whatever rules it breaks."""
    bits = sum(code << 2 * place for place, code in enumerate(codes))
    data = np.array([scale], "<f4").tobytes() + bits.to_bytes((len(codes) + 3) // 4, "little")
    return np.frombuffer(data, np.uint8)


def decoded(block: Block, count: int) -> Float32Array:
    return EncodedTensor(CODEC, (count,), block).values()


def rule_of(block: Block, count: int, max_abs: float = FLOAT_MAX) -> str | None:
    found = CODEC.check(block.tobytes(), 0, count, max_abs)
    return found if isinstance(found, str) else None


@given(scale=scales, codes=st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_values_of_an_accepted_record_say_its_bytes(scale: np.float32, codes: list[int]) -> None:
    """So no two accepted records decode alike; and just those with an inner code, and without an overflow, are."""
    block = record(scale, codes)
    with np.errstate(over="ignore"):
        is_finite = bool(np.isfinite(scale * np.float32(3))) or not set(codes) & set(OUTER)
    expected = "max_abs" if not is_finite else None if set(codes) & set(INNER) else "code_use"
    assert rule_of(block, len(codes)) == expected
    assert rule_of(block, len(codes), float("inf")) == expected
    if expected is None:
        values = decoded(block, len(codes))
        least = np.abs(values).min()
        again = [(3 if value < 0 else 0) ^ int(abs(value) != least) for value in values]
        assert record(least, again).tobytes() == block.tobytes()


@given(values=tensors)
@example(values=np.array([FLOAT_MAX, -FLOAT_MAX, 0], np.float32))
@example(values=np.full(256, 0.1, np.float32))
@example(values=np.array([2.2, 2.2, 1], np.float32))
@example(values=np.array([0.7, 0.8, 0.9, 1.0], np.float32))
@example(values=np.array([4 * LEAST_SCALE, 0], np.float32))
def test_encoded_values_stay_within_the_largest_of_their_block(values: Float32Array) -> None:
    block = CODEC.encode(values)
    assert rule_of(block, values.size) is None
    found = decoded(block, values.size)
    for start in range(0, values.size, 256):
        part = slice(start, start + 256)
        assert np.abs(found[part]).max() <= max(np.abs(values[part]).max(), LEAST_SCALE)
        wanted, inner = values[part].astype(np.float64), float(np.abs(found[part]).min())
        if 3 * inner <= np.abs(wanted).max():
            for level in (-3, -1, 1, 3):
                is_nearest = np.abs(wanted - found[part]) <= np.abs(wanted - level * inner) + 1e-6 * inner
                assert is_nearest.all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_scale_is_nearly_the_best_one(scale: float) -> None:
    """For normally distributed values, the best four equidistant levels leave 0.1188 of the squares (Max, 1960)."""
    values = (np.random.default_rng(5).standard_normal(1 << 18) * scale).astype(np.float32)
    left = values - decoded(CODEC.encode(values), values.size)
    assert 0.115 < float(np.square(left).sum() / np.square(values).sum()) < 0.1195


def test_feedback_brings_sums_of_rounds_near_to_those_wanted() -> None:
    """Without it, the error of each round stays; no value is 0, so zeros are sent as something too."""
    draw, count, rounds = np.random.default_rng(6), 4096, 30
    common = draw.standard_normal(count).astype(np.float32)
    common[::7] = 0
    residual, sent, plain = np.zeros(count, np.float32), np.zeros(count, np.float32), np.zeros(count, np.float32)
    for _ in range(rounds):
        block, residual = encode_with_feedback(CODEC, common, residual, 1.0)
        sent += decoded(block, count)
        plain += decoded(CODEC.encode(common), count)
    wanted = rounds * common
    errors = [float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)) for found in (sent, plain)]
    assert errors[0] < 0.08
    assert errors[1] > 0.3
    assert np.linalg.norm(residual) < 2 * np.linalg.norm(common), "it does not grow from round to round"
