"""The `float32` codec: values as they are, 4 bytes each."""

import numpy as np

from epochal.state.codecs.codec import Block
from epochal.state.model.tensors import Float32Array, Readable, TensorLayout, value_pieces
from epochal.state.model.value_checks import check_values, sum_of_squares

VALUE_BYTES = 4
ROUNDED = 2.0**-48
"""More than a product of two float64 numbers is rounded by, as a part of it."""


class Float32Codec:
    """Leaves tensors as they are. A part is a view of the file."""

    name = "float32"
    group = 1

    def encoded(self, layout: TensorLayout) -> TensorLayout:
        return layout

    def encode(self, values: Float32Array) -> Block:
        return values

    def check(self, data: Readable, start: int, count: int, max_abs: float) -> str | float:
        squares, within = 0.0, max_abs * max_abs * (1 - ROUNDED)
        for values in value_pieces(data, start, start + VALUE_BYTES * count):
            with np.errstate(invalid="ignore"):
                found = sum_of_squares(values)
            if not found < within:  # else each value is finite, and its square is at most the sum
                broken = check_values(values, max_abs)
                if broken is not None:
                    return broken
            squares += found
        return squares

    def decode(self, block: Block, count: int, start: int, out: Float32Array) -> Float32Array:  # noqa: ARG002
        part: Float32Array = block.reshape(-1)[start : start + out.size]
        return part
