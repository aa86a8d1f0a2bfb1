"""Every codec, by name; `float32` is one that leaves values as they are, 4 bytes each."""

import re

import numpy as np

from epochal.state.codecs.codec import Block, Codec
from epochal.state.codecs.integers import IntegerCodec, TwoBitCodec
from epochal.state.codecs.sparse import MAX_KEEP, SparseCodec
from epochal.state.errors import InternalError
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


FLOAT32 = Float32Codec()

SPOKEN = ("float32/1", "int2/1", "int4/1", "int8/1", "sparse/1")
"""The codecs that this version reads and writes, each with its format's version, as a client declares when it joins."""

_SPARSE = re.compile(r"sparse-([1-9][0-9]{0,3})")


def find_codec(name: str) -> Codec | None:
    """Return the codec of this name in a result's metadata, or None."""
    if name == FLOAT32.name:
        return FLOAT32
    if name in ("int8", "int4"):
        return IntegerCodec(name, int(name.removeprefix("int")))
    if name == "int2":
        return TwoBitCodec()
    found = _SPARSE.fullmatch(name)
    return SparseCodec(int(found[1])) if found is not None and int(found[1]) <= MAX_KEEP else None


def codec_named(name: str) -> Codec:
    """Return the codec of this name, which a configuration has checked."""
    codec = find_codec(name)
    if codec is None:
        raise InternalError(f"no codec {name!a}")
    return codec


def spoken_as(name: str) -> str:
    """Return the entry of `SPOKEN` that a run with this codec needs."""
    kind = name.partition("-")[0]
    return next(entry for entry in SPOKEN if entry.partition("/")[0] == kind)
