"""The loops of codecs, of the sum of results and of the outer step, compiled by numba if installed: with equal bits.

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
        decode: writes values to rows, (records, width), or adds them: of records, the bits of a code, the rows, whether
            they are added, and the weight of what is added.
        encode: writes the records of rows: of rows, records, the bits of a code (8 or 4) and the smallest scale.
        encode_two_bits: the same for codes of 2 bits.
        outer_step: writes v′ and θ′, flat: of Δ, v, θ, η, μ, v′ and θ′; returns whether all are finite.
    """

    decode: Callable[[Bytes, int, Float32Array, bool, np.float32], None]
    encode: Callable[[Float32Array, Bytes, int, np.float32], None]
    encode_two_bits: Callable[[Float32Array, Bytes, np.float32], None]
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
        kernel(_decode, read(uint8, 2), int64, float32[:, ::1], types.boolean, float32),
        kernel(_encode, read(float32, 2), uint8[:, ::1], int64, float32),
        kernel(_encode_two_bits, read(float32, 2), uint8[:, ::1], float32),
        kernel(_outer_step, *[read(float32, 1)] * 3, float32, float32, flat, flat),
    )


def _decode(records: Bytes, bits: int, out: Float32Array, is_sum: bool, weight: np.float32) -> None:
    scale_bits = np.empty(1, np.uint32)
    scale = scale_bits.view(np.float32)
    width = out.shape[1]
    room = np.empty(width, np.float32)
    for row in range(records.shape[0]):
        record, values = records[row], room if is_sum else out[row]
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
        elif bits == 2:
            for quad in range(width // 4):
                packed = np.int8(record[4 + quad])
                for place in range(4):
                    code = np.int8(packed << (6 - 2 * place)) >> 6  # keeps the sign
                    values[4 * quad + place] = np.float32(2 * code + 1) * factor
            for column in range(width - width % 4, width):
                code = np.int8(np.int8(record[4 + width // 4]) << (6 - 2 * (column % 4))) >> 6
                values[column] = np.float32(2 * code + 1) * factor
        else:
            for pair in range(width // 2):
                packed = np.int8(record[4 + pair])
                values[2 * pair] = np.float32(np.int8(packed << 4) >> 4) * factor
                values[2 * pair + 1] = np.float32(packed >> 4) * factor
            if width % 2:
                values[width - 1] = np.float32(np.int8(np.int8(record[4 + width // 2]) << 4) >> 4) * factor
        if is_sum:
            sums = out[row]
            for column in range(width):
                sums[column] = sums[column] + values[column] * weight


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


def _encode_two_bits(rows: Float32Array, records: Bytes, least: np.float32) -> None:
    two, three, infinite = np.float32(2), np.float32(3), np.float32(np.inf)
    width = rows.shape[1]
    magnitudes, room = np.empty(width, np.float32), np.empty(width, np.float32)
    codes = np.zeros(width + 3, np.uint8)  # with what stands in for missing last ones
    scale = np.empty(1, np.float32)
    scale_bytes = scale.view(np.uint8)
    for row in range(rows.shape[0]):
        values, record = rows[row], records[row]
        largest, smallest = np.float32(0), infinite
        for column in range(width):
            magnitudes[column] = abs(values[column])
            largest, smallest = max(largest, magnitudes[column]), min(smallest, magnitudes[column])
        total, mean, fitted = np.float32(0), np.float32(0), np.float32(0)
        for fit in range(3):
            outer_count = 0
            for column in range(width):
                is_added = fit == 0 or magnitudes[column] > two * fitted
                outer_count += is_added
                room[column] = magnitudes[column] if is_added else np.float32(0)
            left = width
            while left > 1:  # as `_row_sums` in `integers.py` adds
                half = left // 2
                for column in range(half):
                    room[column] = room[column] + room[half + column]
                if left % 2:
                    room[half] = room[left - 1]
                left = half + left % 2
            if fit == 0:
                total, mean = room[0], room[0] / np.float32(width)
                fitted = np.float32(0.624) * mean
            else:
                fitted = (total + two * room[0]) / np.float32(width + 8 * outer_count)
        if largest > two * fitted:
            fitted = min(fitted, largest / three)
        if smallest > two * fitted:
            fitted = mean
        fitted = max(min(fitted, largest), least)
        scale[0] = fitted
        for place in range(4):
            record[place] = scale_bytes[place]
        limit = two * fitted if three * fitted <= largest else infinite
        for column in range(width):
            sign = np.uint8(3) if values[column] < np.float32(0) else np.uint8(0)
            codes[column] = sign ^ np.uint8(magnitudes[column] > limit)
        for quad in range((width + 3) // 4):
            first = 4 * quad
            low, high = codes[first] | codes[first + 1] << 2, codes[first + 2] << 4 | codes[first + 3] << 6
            record[4 + quad] = np.uint8(low | high)


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
