"""Whatever a client encodes of a difference within `merge.max_abs` is within it when it is decoded."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochal.state.codecs.clipping import encoded_parts, largest_encodable
from epochal.state.codecs.codec import Codec, EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.model.tensors import Float32Array
from tests.support.data.fed_back import encode_with_feedback

CODECS = ["float32", "int8", "int4", "int2", "sparse-64"]
DECAY = 0.95
ROUNDS_UP = {"int8": 1017.0, "int4": 57.0}
"""In float32, 127 · (1017 ÷ 127) and 7 · (57 ÷ 7) are one unit in the last place more."""
FLOAT_MAX = float(np.finfo(np.float32).max)

bounds = st.one_of(st.floats(1e-30, 1e30), st.sampled_from([57.0, 1017.0, 1e4, 1e30]))


@st.composite
def tensors(draw: st.DrawFn, max_abs: float) -> Float32Array:
    """Values within the bound; many at it, or up to two units below."""
    most = np.float32(max_abs)
    if float(most) > max_abs:
        most = np.nextafter(most, np.float32(0))
    near = [most]
    for _ in range(2):
        near.append(np.nextafter(near[-1], np.float32(0)))
    values = st.one_of(st.sampled_from([float(value) for value in near]), st.floats(0, float(most), width=32))
    magnitudes = np.array(draw(st.lists(values, min_size=1, max_size=300)), np.float32)
    signs = np.random.default_rng(draw(st.integers(0, 99))).choice(np.array([-1, 1], np.float32), magnitudes.size)
    found: Float32Array = magnitudes * signs
    return found


def rule_of(codec: Codec, block: Float32Array, count: int, max_abs: float) -> str | None:
    found = codec.check(block.tobytes(), 0, count, max_abs)
    return found if isinstance(found, str) else None


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data(), max_abs=bounds)
def test_difference_within_the_bound_is_accepted(name: str, data: st.DataObject, max_abs: float) -> None:
    codec, difference = codec_named(name), data.draw(tensors(max_abs))
    (block,) = encoded_parts(codec, difference, max_abs)
    assert rule_of(codec, block, difference.size, max_abs) is None


@pytest.mark.parametrize("name", CODECS[1:])
@given(data=st.data(), max_abs=bounds, carried=st.sampled_from([0.0, 1.0, 19.0]))
def test_difference_with_feedback_beyond_the_bound_is_accepted(
    name: str, data: st.DataObject, max_abs: float, carried: float
) -> None:
    """And what was cut off is left out, so it is sent later."""
    codec, difference = codec_named(name), data.draw(tensors(max_abs))
    before = np.float32(carried) * np.resize(data.draw(tensors(max_abs)), difference.size)
    block, left = encode_with_feedback(codec, difference, before, DECAY, max_abs)
    assert rule_of(codec, block, difference.size, max_abs) is None
    wanted = difference + before * np.float32(DECAY)
    assert np.array_equal(left, wanted - EncodedTensor(codec, difference.shape, block).values())


@pytest.mark.parametrize("name", CODECS)
@given(max_abs=bounds)
@example(max_abs=57.0)
@example(max_abs=FLOAT_MAX)
@example(max_abs=1e-44)
def test_limit_is_the_largest_magnitude_that_is_accepted(name: str, max_abs: float) -> None:
    codec, limit = codec_named(name), largest_encodable(name, max_abs)

    def is_accepted(value: np.float32) -> bool:
        return rule_of(codec, codec.encode(np.array([value])), 1, max_abs) is None

    assert float(limit) <= max_abs
    assert is_accepted(limit) or limit == 0
    if limit < np.finfo(np.float32).max:
        above = np.nextafter(limit, np.float32(np.inf))
        assert float(above) > max_abs or not is_accepted(above)
    if 1e-30 <= max_abs <= 1e30:
        assert float(limit) >= max_abs * (1 - 2**-22)


@pytest.mark.parametrize("name", ROUNDS_UP)
def test_codec_that_rounds_up_needs_the_clipping(name: str) -> None:
    """Without it, a trainer that clamps to the bound would pass with float32 and fail here."""
    codec, at_bound = codec_named(name), np.array([ROUNDS_UP[name]], np.float32)
    assert rule_of(codec, codec.encode(at_bound), 1, ROUNDS_UP[name]) == "max_abs"
    assert largest_encodable(name, ROUNDS_UP[name]) == np.nextafter(at_bound[0], np.float32(0))
