"""Error feedback: what is sent and what is left out together are what was wanted."""

import numpy as np
import pytest

from epochal.state.codecs.codec import ENCODED_VALUES, EncodedTensor
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.model.tensors import Float32Array
from tests.support.data.fed_back import encode_with_feedback

DECAY = 0.95


def values(seed: int, *shape: int) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", ["float32", "int8", "int4", "int2", "sparse-64"])
@pytest.mark.parametrize("shape", [(), (3, 50), (ENCODED_VALUES + 4099,)])
def test_feedback_is_what_the_codec_left_out(name: str, shape: tuple[int, ...]) -> None:
    codec, difference, before = codec_named(name), values(1, *shape), values(2, *shape)
    kept = difference.copy(), before.copy()
    block, residual = encode_with_feedback(codec, difference, before, DECAY)
    wanted = difference + before * np.float32(DECAY)
    sent = EncodedTensor(codec, shape, block).values()
    assert np.array_equal(residual, wanted - sent)
    assert np.array_equal(difference, kept[0])
    assert np.array_equal(before, kept[1])


def test_feedback_sends_every_value_in_time() -> None:
    codec, total = codec_named("sparse-64"), np.zeros(4096, np.float32)
    difference, residual = values(3, 4096), None
    for step in range(200):
        block, residual = encode_with_feedback(codec, difference if step == 0 else 0 * difference, residual, 1.0)
        total += EncodedTensor(codec, (4096,), block).values()
    assert np.abs(total - difference).max() < 0.2


def test_feedback_without_a_residual_begins_with_the_difference() -> None:
    codec, difference = codec_named("int8"), values(4, 100)
    block, _ = encode_with_feedback(codec, difference, None, DECAY)
    assert np.array_equal(block, codec.encode(difference))
