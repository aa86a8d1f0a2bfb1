"""How far a result is from its replay: the same work, computed again, of which the difference is known unencoded.

The *excess distance* is x = ‖max(0, |r − d| − a)‖ ÷ ‖d‖: r is what the result decodes to, d the replay's difference,
and a what the codec explains of each value: half of its step, or what it leaves of d itself, whichever is more. The
step is the smaller one of the result's and of d encoded, so that no result enlarges what is explained. Whoever computes
exactly the same has x = 0 with every codec; with int4, comparing the decoded values would give about 0.12.

The rule kept here: a distance is a pure function of the bytes and of d, added up in float64 in the order of the values,
a part at a time, so that it takes constant memory besides d.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from epochal.state.codecs.clipping import encoded_parts
from epochal.state.codecs.codec import Block, Codec, EncodedTensor, parts_of
from epochal.state.codecs.codecs_by_name import FLOAT32
from epochal.state.codecs.record_codec import RecordCodec
from epochal.state.errors import InvalidInput
from epochal.state.model.tensors import Float32Array
from epochal.state.results import Difference

MAX_DISTANCE = 1e9
"""A distance or a ratio that is larger, also an infinite one, is given as this."""

_SPARSE = "sparse-"
_Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReplayDistance:
    """How far a result is from its replay.

    Attributes:
        excess: the excess distance, from 0 to `MAX_DISTANCE`.
        norm_ratio: the result's length ÷ the replay's, from 0 to `MAX_DISTANCE`.
        cosine: of the angle between the two, from −1 to 1; 0 where one of them has no length, 1 where neither has.
    """

    excess: float
    norm_ratio: float
    cosine: float


def check_comparable(codec_name: str) -> None:
    """Raise `InvalidInput` if results of this codec have no excess distance: a sparse one leaves most values out."""
    if codec_name.startswith(_SPARSE):
        raise InvalidInput(
            f"results of codec {codec_name} cannot be compared with replays; allowed: float32, int8, int4, int2"
        )


def replay_distance(result: Difference, replay: Mapping[str, Float32Array], max_abs: float) -> ReplayDistance:
    """Return how far a result is from its replay.

    Args:
        result: what `decode_result` returns of bytes that `check_result` accepts.
        replay: float32 by name, the same names and shapes, finite.
        max_abs: `merge.max_abs`, within which a client's codec keeps what it encodes.

    Raises:
        InvalidInput: see `check_comparable`.
    """
    excess = of_result = of_replay = product = 0.0
    for name, values in result.items():
        codec = values.codec if isinstance(values, EncodedTensor) else FLOAT32
        check_comparable(codec.name)
        flat = np.ascontiguousarray(replay[name], np.float32).reshape(-1)
        for part, own in zip(parts_of(codec, flat.size), encoded_parts(codec, flat, max_abs), strict=True):
            found, wanted = _part(values, part), flat[part].astype(np.float64)
            beyond = np.abs(found - wanted)
            if isinstance(values, EncodedTensor):
                beyond -= _explained(codec, values, part, own, wanted)
                np.maximum(beyond, 0.0, out=beyond)
            excess += float(np.square(beyond).sum())
            of_result += float(np.square(found).sum())
            of_replay += float(np.square(wanted).sum())
            product += float((found * wanted).sum())
    length = math.sqrt(of_replay)
    both = math.sqrt(of_result) * length
    cosine = product / both if both else float(of_result == of_replay)
    return ReplayDistance(
        _ratio(math.sqrt(excess), length, 0.0), _ratio(math.sqrt(of_result), length, 1.0), max(-1.0, min(1.0, cosine))
    )


def _part(values: Float32Array | EncodedTensor, part: slice) -> _Values:
    """Return a part of the flat values."""
    if isinstance(values, EncodedTensor):
        return values.read(part.start, np.empty(part.stop - part.start, np.float32)).astype(np.float64)
    return values.reshape(-1)[part].astype(np.float64)


def _explained(codec: Codec, values: EncodedTensor, part: slice, own: Block, wanted: _Values) -> _Values:
    """Return how far each value of a part may be from the replay's because of the codec."""
    assert isinstance(codec, RecordCodec), "every other codec is refused"
    count = part.stop - part.start
    left = np.abs(codec.decode(own, count, 0, np.empty(count, np.float32)) - wanted)
    steps = np.minimum(
        codec.steps(values.block, values.size, part.start, np.empty(count, np.float32)),
        codec.steps(own, count, 0, np.empty(count, np.float32)),
    )
    return np.maximum(left, steps.astype(np.float64) / 2)


def _ratio(part: float, whole: float, of_nothing: float) -> float:
    """Return part ÷ whole, at most `MAX_DISTANCE`; `of_nothing` if both are 0."""
    if not whole:
        return MAX_DISTANCE if part else of_nothing
    return min(part / whole, MAX_DISTANCE)
