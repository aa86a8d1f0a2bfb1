"""The codecs of `docs/merging.md` once more, in plain Python, one value at a time: an oracle for `state/codecs/`.

Only `struct` rounds: a product of two float32 is exact in a float64, so packing it rounds once.
"""

import struct
from collections.abc import Iterator

GROUPS = {"int8": 256, "int4": 256, "int2": 256, "sparse": 4096}


def groups(kind: str, count: int) -> Iterator[int]:
    """Yield the number of values of each group."""
    while count > 0:
        yield min(count, GROUPS[kind])
        count -= GROUPS[kind]


def decode(codec: str, data: bytes, count: int) -> list[float]:
    """Return the values of an encoded tensor, in C order."""
    kind, _, keep = codec.partition("-")
    reader, values = _Reader(data), []
    for width in groups(kind, count):
        if kind == "sparse":
            values += _chunk(reader, width, -(-int(keep) * width // 4096))
        else:
            (scale,) = struct.unpack("<f", reader.take(4))
            codes = {"int8": _int8, "int4": _int4, "int2": _int2}[kind](reader, width)
            values += [rounded(code * scale) for code in codes]
    assert not reader.data
    return values


def rounded(value: float) -> float:
    """Return the nearest float32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        taken, self.data = self.data[:count], self.data[count:]
        return taken


def _int8(reader: _Reader, width: int) -> list[int]:
    return list(struct.unpack(f"<{width}b", reader.take(width)))


def _int4(reader: _Reader, width: int) -> list[int]:
    nibbles = [nibble for byte in reader.take((width + 1) // 2) for nibble in (byte & 15, byte >> 4)]
    return [nibble - 16 if nibble > 7 else nibble for nibble in nibbles[:width]]


def _int2(reader: _Reader, width: int) -> list[int]:
    bits = int.from_bytes(reader.take((2 * width + 7) // 8), "little")
    return [(1, 3, -3, -1)[(bits >> (2 * place)) & 3] for place in range(width)]


def _chunk(reader: _Reader, width: int, kept: int) -> list[float]:
    levels = struct.unpack("<ff", reader.take(8))
    bits = int.from_bytes(reader.take((12 * kept + 7) // 8), "little")
    indices = [(bits >> (12 * place)) & 4095 for place in range(kept)]
    bits = int.from_bytes(reader.take((2 * kept + 7) // 8), "little")
    values = [0.0] * width
    for place, index in enumerate(indices):
        code = (bits >> (2 * place)) & 3
        values[index] = -levels[code & 1] if code & 2 else levels[code & 1]
    return values
