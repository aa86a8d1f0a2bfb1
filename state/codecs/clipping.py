"""Clipping: a client encodes nothing that its codec would round beyond `merge.max_abs` (`docs/merging.md`).

The check is about decoded values. An integer codec may decode its largest value to one unit in the last place more, and
error feedback may add up to more than a difference may hold. So a client cuts what it encodes off at the largest
magnitude that its codec keeps within the bound. Error feedback keeps what was cut off; without, it is lost.

A difference that itself breaks a rule is encoded as it is: the coordinator refuses it and says why.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from epochal.state.codecs.codec import Block, Codec, PartMap, parts_of
from epochal.state.codecs.codecs_by_name import codec_named
from epochal.state.model.tensors import Float32Array
from epochal.state.model.value_checks import check_values

_FLOAT_MAX = float(np.finfo(np.float32).max)


def encoded_parts(codec: Codec, values: Float32Array, max_abs: float, over: PartMap = map) -> Iterator[Block]:
    """Return the parts of a tensor, clipped and encoded, which take constant memory; together they are one block.

    Args:
        codec: the run's.
        values: float32 of any shape.
        max_abs: `merge.max_abs`; `math.inf` for none.
        over: encodes the parts.
    """
    flat = values.reshape(-1)
    return over(lambda part: codec.encode(clipped(codec, flat[part], flat[part], max_abs)), parts_of(codec, flat.size))


def clipped(codec: Codec, wanted: Float32Array, difference: Float32Array, max_abs: float) -> Float32Array:
    """Return what a client encodes instead of `wanted`: the same, or a copy with some values cut off.

    Args:
        codec: the run's.
        wanted: flat float32, the difference and what error feedback adds to it.
        difference: of the same length; if one of its values is not finite or beyond `max_abs`, nothing is cut off.
        max_abs: `merge.max_abs`; `math.inf` for none.
    """
    limit = largest_encodable(codec.name, max_abs)
    if check_values(wanted, float(limit)) is None or check_values(difference, max_abs) is not None:
        return wanted
    return np.clip(wanted, -limit, limit)


@lru_cache(maxsize=64)
def largest_encodable(codec_name: str, max_abs: float) -> np.float32:
    """Return the largest magnitude that a codec encodes within `max_abs`: so does each smaller one, and any together.

    It is `max_abs` rounded down to a float32, or slightly less. What a codec decodes grows with what it encodes, so the
    float32 bits are searched by halving.
    """
    codec = codec_named(codec_name)
    low, high = 0, _bits(min(max_abs, _FLOAT_MAX)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        value = np.array([middle], np.uint32).view(np.float32)
        is_within = float(value[0]) <= max_abs
        if is_within and not isinstance(codec.check(codec.encode(value).tobytes(), 0, 1, max_abs), str):
            low = middle
        else:
            high = middle
    return np.uint32(low).view(np.float32)


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))
