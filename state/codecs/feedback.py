"""Error feedback: what a codec left out of a difference is added to the client's next one.

    e ← β·e + Δ        sent ← encode(clip(e))        e ← e − decode(sent)

The residual e is a client's own: it is in no digest, and other clients never see it. Source: Karimireddy and others,
2019, https://arxiv.org/abs/1901.09847; with the decay β of SparseLoCo, https://arxiv.org/abs/2508.15706.
"""

import math
from collections.abc import Iterator

import numpy as np

from epochal.state.codecs.clipping import clipped
from epochal.state.codecs.codec import Block, Codec, EncodedTensor, PartMap, parts_of
from epochal.state.model.tensors import Float32Array


def parts_with_feedback(
    codec: Codec,
    difference: Float32Array,
    residual: Float32Array | None,
    decay: float,
    max_abs: float = math.inf,
    over: PartMap = map,
) -> Iterator[tuple[Block, Float32Array]]:
    """Return one tensor's difference, encoded with what was left out before, in flat parts that take constant memory.

    Args:
        codec: the run's.
        difference: `start − end`, float32 of any shape, finite.
        residual: the tensor's residual, of the same shape; None before the first one.
        decay: β.
        max_abs: `merge.max_abs`, within which the encoded tensor stays (`state/codecs/clipping.py`).
        over: encodes the parts.

    Returns:
        Each part, encoded, and its residual, of which both are flat.
    """
    flat = np.ascontiguousarray(difference, np.float32).reshape(-1)
    before = None if residual is None else residual.reshape(-1)

    def encoded(part: slice) -> tuple[Block, Float32Array]:
        wanted = flat[part].copy()
        if before is not None:
            with np.errstate(all="ignore"):
                wanted += np.multiply(before[part], np.float32(decay))
        block = codec.encode(clipped(codec, wanted, flat[part], max_abs))
        left = np.empty(wanted.size, np.float32)
        np.subtract(wanted, EncodedTensor(codec, wanted.shape, block).read(0, left), out=left)
        return block, left

    return over(encoded, parts_of(codec, flat.size))
