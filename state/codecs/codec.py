"""The codec protocol: a pure function from a tensor's values to an array of bytes, and back.

`docs/merging.md` specifies the formats bit by bit. The rules kept here:

- **Decoding is the contract**: per value a table look-up or one float32 multiplication, so that every implementation
  agrees bit for bit. Encoding is a client's own, as long as its bytes keep the rules.
- One content has one byte string: `check` refuses every other one, and names the rule that it breaks.
- A tensor is cut into **groups** of consecutive values in C order, the last one shorter, which are encoded each on its
  own: any part that begins at a group is decoded without the rest.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from epochal.state.model.tensors import Float32Array, Readable, TensorLayout

Block: TypeAlias = npt.NDArray[Any]
"""An encoded tensor as it lies in a file: `uint8` of one dimension, or the float32 tensor itself."""

T = TypeVar("T")
R = TypeVar("R")

LEAST_SCALE = np.float32(2.0**-126)
"""The smallest normal float32: the smallest scale or level, so that no product of it is a denormal."""

ENCODED_VALUES = 1 << 16
"""Values that are encoded at a time, so that they stay in the processor's cache until they are hashed and written."""
PART_VALUES = 1 << 18
"""Values that are encoded, checked or decoded at a time, so that each takes constant memory (a few MiB)."""


class Codec(Protocol):
    """One way to encode differences."""

    @property
    def name(self) -> str:
        """The name that a result's metadata give: the codec, and its parameter if it has one."""
        ...

    @property
    def group(self) -> int:
        """Number of values of a group."""
        ...

    def encoded(self, layout: TensorLayout) -> TensorLayout:
        """Return type and shapes of the encoded tensors of a model with this layout; their sizes are exact."""
        ...

    def encode(self, values: Float32Array) -> Block:
        """Return a tensor of any shape, encoded. The values must be finite."""
        ...

    def check(self, data: Readable, start: int, count: int, max_abs: float) -> str | float:
        """Return the rule that an encoded tensor breaks, or the sum of its values' squares; takes constant memory.

        The values are those that `decode` returns, their squares and the sum are float64.

        Args:
            data: the file, read a piece at a time.
            start: where the tensor begins in it, in bytes; it has the size that `encoded` says.
            count: number of the tensor's values.
            max_abs: the largest magnitude that a decoded value may have.
        """
        ...

    def decode(self, block: Block, count: int, start: int, out: Float32Array) -> Float32Array:
        """Return the values `start` to `start + out.size` of an encoded tensor of `count`; takes constant memory.

        Args:
            block: an encoded tensor that `check` accepts. Others give some values, or `InvalidResult`.
            count: number of the tensor's values.
            start: a multiple of `group`.
            out: flat; filled with the values, unless they lie in `block` as they are. It ends at a multiple of `group`
                or at the tensor's end.
        """
        ...


class PartMap(Protocol):
    """Applies a function to parts, as `map` does, or side by side in several threads."""

    def __call__(self, call: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]: ...


def parts_of(codec: Codec, count: int) -> Iterator[slice]:
    """Yield the places of the parts in which a tensor of so many values is encoded; each begins at a group."""
    step = max(codec.group, ENCODED_VALUES // codec.group * codec.group)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


@dataclass(frozen=True, eq=False, slots=True)
class EncodedTensor:
    """One tensor of a difference, encoded.

    Attributes:
        codec: what decodes it.
        shape: of the tensor.
        block: its bytes.
    """

    codec: Codec
    shape: tuple[int, ...]
    block: Block

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def read(self, start: int, out: Float32Array) -> Float32Array:
        """Return a part of the flat values; see `Codec.decode`."""
        return self.codec.decode(self.block, self.size, start, out)

    def values(self) -> Float32Array:
        """Return the whole tensor, decoded."""
        out = np.empty(self.size, np.float32)
        return self.read(0, out).reshape(self.shape)
