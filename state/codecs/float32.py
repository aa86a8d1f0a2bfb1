"""The `float32` codec: values as they are, 4 bytes each."""

from epochal.state.codecs.codec import Block
from epochal.state.model.tensors import Float32Array, Readable, TensorLayout, value_pieces
from epochal.state.model.value_checks import check_values, sum_of_squares

VALUE_BYTES = 4


class Float32Codec:
    """Leaves tensors as they are. A part is a view of the file."""

    name = "float32"
    group = 1

    def encoded(self, layout: TensorLayout) -> TensorLayout:
        return layout

    def encode(self, values: Float32Array) -> Block:
        return values

    def check(self, data: Readable, start: int, count: int, max_abs: float) -> str | float:
        squares = 0.0
        for values in value_pieces(data, start, start + VALUE_BYTES * count):
            broken = check_values(values, max_abs)
            if broken is not None:
                return broken
            squares += sum_of_squares(values)
        return squares

    def decode(self, block: Block, count: int, start: int, out: Float32Array) -> Float32Array:  # noqa: ARG002
        part: Float32Array = block.reshape(-1)[start : start + out.size]
        return part
