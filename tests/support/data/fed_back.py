"""A tensor encoded with error feedback as a whole."""

import math

import numpy as np

from epochal.state.codecs.codec import Block, Codec
from epochal.state.codecs.feedback import parts_with_feedback
from epochal.state.model.tensors import Float32Array


def encode_with_feedback(
    codec: Codec, difference: Float32Array, residual: Float32Array | None, decay: float, max_abs: float = math.inf
) -> tuple[Block, Float32Array]:
    """Return the encoded tensor, and the new residual, of the difference's shape."""
    blocks, left = zip(*parts_with_feedback(codec, difference, residual, decay, max_abs), strict=True)
    block, shape = np.concatenate(blocks), difference.shape
    return block if block.dtype == np.uint8 else block.reshape(shape), np.concatenate(left).reshape(shape)
