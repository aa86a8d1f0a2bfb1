"""Sketches of results: sums of their values with secret signs, by which results are compared without being kept.

A result's values are laid in rows as wide as the sketch, tensor after tensor in name order, each tensor's last row
filled up with zeros. Row r is rotated by an offset and taken with a sign, both from number r (16 bits, lowest first)
of SHAKE-256 of the sketch's seed: the lowest bits are the offset, bit 15 is the sign. All rows are added up in float64.
The product of two sketches of one seed is that of the two results, on average over the seeds (the count sketch of
Charikar, Chen and Farach-Colton 2002, of whole rows), and their cosine is within about 1 ÷ √width of the results'. Who
does not know the seed cannot make two results that differ and whose sketches are alike.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from epochal.state.codecs.codec import EncodedTensor
from epochal.state.merging import CHUNK_ELEMENTS
from epochal.state.messages.replay_messages import Likeness
from epochal.state.model.tensors import Float32Array, TensorLayout
from epochal.state.results import Difference

MAX_WIDTH = 1 << 12
"""Width of the widest sketch: two results' cosine is then known to ± 1/64."""

Sketch = npt.NDArray[np.float64]
K = TypeVar("K")


class Sketcher:
    """Makes the sketches of one seed, for results of one layout.

    Args:
        seed: any bytes.
        layout: names and shapes of the model's parameters.
        width: number of a sketch's values, a power of two up to `MAX_WIDTH`.
    """

    def __init__(self, seed: bytes, layout: TensorLayout, width: int = MAX_WIDTH) -> None:
        assert width in {1 << bits for bits in range(MAX_WIDTH.bit_length())}, width
        rows = sum(-(-count // width) for _, count in layout.counts())
        numbers = np.frombuffer(hashlib.shake_256(seed).digest(2 * rows), "<u2")
        self._width = width
        self._offsets: list[int] = (numbers & (width - 1)).tolist()
        self._is_minus: list[bool] = (numbers >> 15).astype(bool).tolist()

    def sketches(self, difference: Difference) -> Sketch:
        """Return the sketch of a difference of the layout: float64, (width,)."""
        total, row = np.zeros(self._width), 0
        for name in sorted(difference):
            values = difference[name]
            for start in range(0, values.size, CHUNK_ELEMENTS):
                part = _part(values, start)
                part = np.pad(part, (0, -part.size % self._width)) if part.size % self._width else part
                for each in part.reshape(-1, self._width):
                    self._add(total, row, each)
                    row += 1
        return total

    def _add(self, total: Sketch, row: int, values: Float32Array) -> None:
        offset, first = self._offsets[row], self._width - self._offsets[row]
        change = np.subtract if self._is_minus[row] else np.add
        change(total[offset:], values[:first], out=total[offset:])
        change(total[:offset], values[first:], out=total[:offset])


def _part(values: Float32Array | EncodedTensor, start: int) -> Float32Array:
    stop = min(start + CHUNK_ELEMENTS, values.size)
    if isinstance(values, EncodedTensor):
        return values.read(start, np.empty(stop - start, np.float32))
    return values.reshape(-1)[start:stop]


def cosine(one: Sketch, other: Sketch) -> float:
    """Return the cosine of two sketches; 0 if one is zero."""
    length = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / length if length > 0 else 0.0


def likenesses(sketches: Mapping[K, Sketch], weights: Mapping[K, float]) -> dict[K, Likeness]:
    """Return how like each result of a round is to the others, without its client's own.

    Args:
        sketches: of the results, all of one seed, by any key.
        weights: of the results in the mean, above 0, by the same key.
    """
    if len(sketches) < 2:
        return dict.fromkeys(sketches, Likeness(None, None))
    keys, table = list(sketches), np.stack(list(sketches.values()))
    weighted = table * np.array([weights[key] for key in keys])[:, None]
    others = weighted.sum(axis=0) - weighted
    lengths = np.sqrt(np.square(table).sum(axis=1))
    units = table / np.where(lengths > 0, lengths, 1)[:, None]
    found = {}
    for place, key in enumerate(keys):
        near = np.delete(units @ units[place], place)
        found[key] = Likeness(cosine(table[place], others[place]), float(near.max()))
    return found


def largest_cosine(sketch: Sketch, others: Sequence[Sketch]) -> float | None:
    """Return the largest cosine of a sketch with others; None without any."""
    return max((cosine(sketch, one) for one in others), default=None)
