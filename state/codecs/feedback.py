"""Error feedback: what a codec left out of a difference is added to the client's next one.

    e ← β·e + Δ        sent ← encode(e)        e ← e − decode(sent)

The residual e is a client's own: it is in no digest, and other clients never see it. Source: Karimireddy and others,
2019, https://arxiv.org/abs/1901.09847; with the decay β of SparseLoCo, https://arxiv.org/abs/2508.15706.
"""

import numpy as np

from state.codecs.protocol import Block, Codec, EncodedTensor
from state.tensors import Float32Array


def encode_with_feedback(
    codec: Codec, difference: Float32Array, residual: Float32Array | None, decay: float
) -> tuple[Block, Float32Array]:
    """Return one tensor's difference, encoded with what was left out before, and what is left out now.

    Args:
        codec: the run's.
        difference: `start − end`, float32 of any shape, finite.
        residual: the tensor's residual, of the same shape; None if there is none yet.
        decay: β.

    Returns:
        The encoded tensor, and the new residual, of the difference's shape.
    """
    wanted = np.array(difference, np.float32, order="C")
    if residual is not None:
        with np.errstate(all="ignore"):
            wanted += np.multiply(residual, np.float32(decay))
    block = codec.encode(wanted)
    flat, left, encoded = (
        wanted.reshape(-1),
        np.empty(wanted.size, np.float32),
        EncodedTensor(codec, wanted.shape, block),
    )
    step = max(codec.group, FEEDBACK_VALUES // codec.group * codec.group)
    for start in range(0, flat.size, step):
        part = left[start : start + step]
        np.subtract(flat[start : start + step], encoded.read(start, part), out=part)
    return block, left.reshape(wanted.shape)


FEEDBACK_VALUES = 1 << 18
"""Values that are decoded at a time, to find what is left out."""
