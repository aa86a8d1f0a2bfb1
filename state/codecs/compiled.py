"""The innermost loops of codecs and of the outer step, compiled by numba where that is installed: with equal bits.

The rule kept here: each line is the float32 operation that NumPy would do, rounded once. numba compiles `fastmath` off:
LLVM may then neither contract a multiplication and an addition nor change their order. Whoever loads the loops compares
them with NumPy first, and goes on with NumPy if a bit differs.

Loading takes two seconds, and ten where nothing is in numba's cache: so a process loads them when a model is large.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from epochal.state.model.tensors import Float32Array

Bytes = npt.NDArray[np.uint8]

_EXPONENT = np.uint32(0x7F800000)


@dataclass(frozen=True, slots=True)
class CompiledLoops:
    """The loops, of contiguous arrays.

    Attributes:
        decode: writes `float32(code) · scale` to rows, (records, width): of records and the bits of a code.
        encode: writes the records of rows: of rows, records, the bits of a code and the smallest scale.
        outer_step: writes v′ and θ′, flat: of Δ, v, θ, η, μ, v′ and θ′; returns whether all are finite.
    """

    decode: Callable[[Bytes, int, Float32Array], None]
    encode: Callable[[Float32Array, Bytes, int, np.float32], None]
    outer_step: Callable[..., bool]


_loaded: CompiledLoops | None = None


def compiled() -> CompiledLoops | None:
    """Return the loops, once they are loaded."""
    return _loaded


def load(probe: Callable[[], bytes]) -> bool:
    """Compile the loops if numba is installed; return whether they are used from now on. It blocks for seconds.

    Args:
        probe: returns the bits of some computations, which must be the same with the loops as without.
    """
    global _loaded
    if _loaded is None and importlib.util.find_spec("numba") is not None:
        wanted, _loaded = probe(), _compile()
        if probe() != wanted:
            _loaded = None
    return _loaded is not None


def _compile() -> CompiledLoops:
    import numba
    from numba import types

    def kernel(loop: Callable[..., Any], *arguments: Any) -> Any:
        options = {"nogil": True, "error_model": "numpy", "fastmath": False}
        try:
            return numba.njit(arguments, cache=True, **options)(loop)
        except RuntimeError:  # no folder for numba's cache
            return numba.njit(arguments, **options)(loop)

    def read(dtype: Any, dimensions: int) -> Any:
        return types.Array(dtype, dimensions, "C", readonly=True)

    float32, uint8, int64 = types.float32, types.uint8, types.int64
    flat = float32[::1]
    return CompiledLoops(
        kernel(_decode, read(uint8, 2), int64, float32[:, ::1]),
        kernel(_encode, read(float32, 2), uint8[:, ::1], int64, float32),
        kernel(_outer_step, *[read(float32, 1)] * 3, float32, float32, flat, flat),
    )


def _decode(records: Bytes, bits: int, out: Float32Array) -> None:
    scale_bits = np.empty(1, np.uint32)
    scale = scale_bits.view(np.float32)
    width = out.shape[1]
    for row in range(records.shape[0]):
        record, values = records[row], out[row]
        scale_bits[0] = (
            np.uint32(record[0])
            | np.uint32(record[1]) << np.uint32(8)
            | np.uint32(record[2]) << np.uint32(16)
            | np.uint32(record[3]) << np.uint32(24)
        )
        factor = scale[0]
        if bits == 8:
            for column in range(width):
                values[column] = np.float32(np.int8(record[4 + column])) * factor
        else:
            for pair in range(width // 2):
                packed = np.int8(record[4 + pair])
                values[2 * pair] = np.float32(np.int8(packed << 4) >> 4) * factor
                values[2 * pair + 1] = np.float32(packed >> 4) * factor
            if width % 2:
                values[width - 1] = np.float32(np.int8(np.int8(record[4 + width // 2]) << 4) >> 4) * factor


def _encode(rows: Float32Array, records: Bytes, bits: int, least: np.float32) -> None:
    width = rows.shape[1]
    largest = np.float32(127) if bits == 8 else np.float32(7)
    scale = np.empty(1, np.float32)
    scale_bytes = scale.view(np.uint8)
    codes = np.empty(width + 1, np.int8)
    codes[width] = 0  # what stands in for a missing last one
    magnitude = np.empty(1, np.uint32)
    for row in range(rows.shape[0]):
        values, record = rows[row], records[row]
        bit_values = values.view(np.uint32)
        most = np.uint32(0)
        for column in range(width):  # magnitudes are in the order of their bits
            most = max(most, bit_values[column] & np.uint32(0x7FFFFFFF))
        magnitude[0] = most
        factor = max(magnitude.view(np.float32)[0] / largest, least)
        scale[0] = factor
        for place in range(4):
            record[place] = scale_bytes[place]
        for column in range(width):
            code = np.rint(values[column] / factor)  # half to even
            codes[column] = np.int8(min(max(code, -largest), largest))
        if bits == 8:
            for column in range(width):
                record[4 + column] = np.uint8(codes[column])
        else:
            for pair in range((width + 1) // 2):
                low, high = np.uint8(codes[2 * pair]), np.uint8(codes[2 * pair + 1])
                record[4 + pair] = (low & np.uint8(15)) | np.uint8(high << np.uint8(4))


def _outer_step(
    mean: Float32Array,
    momentum: Float32Array,
    parameters: Float32Array,
    rate: np.float32,
    decay: np.float32,
    new_momentum: Float32Array,
    new_parameters: Float32Array,
) -> bool:
    momentum_bits, parameter_bits = new_momentum.view(np.uint32), new_parameters.view(np.uint32)
    infinite = np.uint32(0)
    for place in range(mean.size):
        moved = momentum[place] * decay + mean[place]  # v′ = μ·v + Δ
        new_momentum[place] = moved
        ahead = mean[place] + moved * decay  # Δ + μ·v′
        new_parameters[place] = parameters[place] - ahead * rate  # θ′ = θ − η·(Δ + μ·v′)
    for place in range(mean.size):
        infinite |= np.uint32((momentum_bits[place] & _EXPONENT) == _EXPONENT)
        infinite |= np.uint32((parameter_bits[place] & _EXPONENT) == _EXPONENT)
    return bool(infinite == 0)
