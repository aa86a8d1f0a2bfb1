"""Slices of a model: consecutive tensors, whose part of an update is made apart from the others'.

Values of a sum are independent of one another, and each tensor is encoded on its own. The rule kept here: however a
model is cut into slices, the update has the same bytes.
"""

import math
from dataclasses import dataclass

from epochal.state.codecs.codec import Block, Codec, EncodedTensor
from epochal.state.codecs.codecs_by_name import FLOAT32
from epochal.state.errors import InvalidResult
from epochal.state.model.tensors import (
    BYTES_TYPE,
    FLOAT32_TYPE,
    Buffer,
    InvalidTensorFile,
    Readable,
    TensorFile,
    TensorLayout,
    read_tensor_header,
    values_in,
)
from epochal.state.results import Difference

MAX_SLICES = 64
SLICE_VALUES = 1 << 24
"""Minimum number of a slice's values on average: for fewer, the requests of another slice cost more than they spare."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The tensors `[first, stop)` of a model, in name order."""

    first: int
    stop: int

    def of(self, layout: TensorLayout) -> TensorLayout:
        """Return the slice of a model's layout, encoded or not."""
        return TensorLayout(layout.entries[self.first : self.stop], layout.dtype)

    def place_in(self, data: Readable, layout: TensorLayout, codec: Codec) -> tuple[int, int]:
        """Return where the slice's bytes are in a result, `[start, stop)`. Of the result only the header is read.

        Args:
            data: the result.
            layout: names and shapes of the model's parameters.
            codec: of the result.

        Raises:
            InvalidResult: it is no result of this model and codec.
        """
        try:
            header = read_tensor_header(data, (FLOAT32_TYPE, BYTES_TYPE))
        except InvalidTensorFile as error:
            raise InvalidResult(error.rule, f"not a result: {error.message}") from error
        if header.layout != codec.encoded(layout):
            raise InvalidResult("layout", "a result whose tensors are not the model's")
        start = header.size_bytes + Slice(0, self.first).of(header.layout).size_bytes
        return start, start + self.of(header.layout).size_bytes


def slices_of(layout: TensorLayout, count: int) -> tuple[Slice, ...]:
    """Return a model cut into slices of about as many values each, as far as whole tensors allow.

    Args:
        layout: names and shapes of its parameters.
        count: maximum number of slices, ≥ 1; there are at most `MAX_SLICES`, and fewer of a small model.
    """
    total = sum(size for _, size in layout.counts())
    count = max(1, min(count, MAX_SLICES, total // SLICE_VALUES))
    slices, first, before, number = [], 0, 0, 0
    for place, (_, size) in enumerate(layout.counts()):
        found = (2 * before + size) * count // (2 * total)  # where the tensor's middle is
        if found != number and place > first:
            slices.append(Slice(first, place))
            first = place
        number, before = found, before + size
    return (*slices, Slice(first, len(layout.entries)))


def blocks_in(data: Buffer, layout: TensorLayout, codec: Codec) -> dict[str, Block]:
    """Return the encoded tensors that follow one another in `data`, as views of it.

    Args:
        data: bytes of a result or of an update, as many as the tensors take.
        layout: the slice's.
        codec: of the bytes.
    """
    encoded = codec.encoded(layout)
    return TensorFile({}, encoded, values_in(data, encoded)).tensors()


def decode_slice(data: Buffer, layout: TensorLayout, codec: Codec) -> Difference:
    """Return a slice of a result, whose arrays are views of `data`; arguments as for `blocks_in`."""
    blocks = blocks_in(data, layout, codec)
    if codec.name == FLOAT32.name:
        return blocks
    return {name: EncodedTensor(codec, shape, blocks[name]) for name, shape in layout.entries}


def rule_broken_by(data: Readable, layout: TensorLayout, codec: Codec) -> str | None:
    """Return the rule of the codec that a slice's encoded mean breaks; None if it keeps all of them."""
    start, encoded = 0, codec.encoded(layout)
    for (_, count), (_, size) in zip(layout.counts(), encoded.counts(), strict=True):
        found = codec.check(data, start, count, math.inf)
        if isinstance(found, str):
            return found
        start += size * encoded.item_bytes
    return None
