"""The floating-point types in which weights are stored, and their conversion from and to float32 in NumPy."""

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from epochal.state.model.tensors import Float32Array

RawBytes = npt.NDArray[np.uint8]

_MANTISSA_BITS = np.uint32(16)
"""Bits of a float32 that a bfloat16 lacks."""
_ALMOST_HALF = np.uint32(0x7FFF)


class FloatType(StrEnum):
    """A type of stored numbers, by PyTorch's name."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def code(self) -> str:
        """The type's name in safetensors files."""
        return {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}[self.value]

    @property
    def size_bytes(self) -> int:
        return 4 if self is FloatType.FLOAT32 else 2

    @property
    def largest(self) -> float:
        """The largest number that the type holds."""
        return {"float32": float(np.finfo(np.float32).max), "bfloat16": 2.0**128 - 2.0**120, "float16": 65504.0}[self]


def float_type_of(code: str) -> FloatType | None:
    """Return the type of this name in safetensors files; None for others."""
    return next((kind for kind in FloatType if kind.code == code), None)


def to_float32(raw: RawBytes, kind: FloatType, into: Float32Array) -> None:
    """Fill a flat array with the numbers in these little-endian bytes. Every number is represented exactly."""
    if kind is FloatType.BFLOAT16:
        np.left_shift(raw.view("<u2"), _MANTISSA_BITS, out=into.view(np.uint32), dtype=np.uint32)
    else:
        into[:] = raw.view("<f4" if kind is FloatType.FLOAT32 else "<f2")


def from_float32(values: Float32Array, kind: FloatType) -> bytes:
    """Return a flat array's numbers as little-endian bytes of the type, rounded to the nearest (ties to even).

    Args:
        values: finite, of a magnitude of at most `kind.largest`.
        kind: the type.
    """
    if kind is not FloatType.BFLOAT16:
        return values.astype("<f4" if kind is FloatType.FLOAT32 else "<f2").tobytes()
    bits = values.view(np.uint32)
    is_odd = np.bitwise_and(np.right_shift(bits, _MANTISSA_BITS), np.uint32(1))
    rounded: bytes = np.right_shift(bits + _ALMOST_HALF + is_odd, _MANTISSA_BITS).astype("<u2").tobytes()
    return rounded
