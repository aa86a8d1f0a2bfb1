"""Several files in one string of bytes, for decoders that need more than one: each but the last after its length."""

from collections.abc import Sequence

LENGTH_BYTES = 2


def joined(contents: Sequence[bytes]) -> bytes:
    """The files in one string; all but the last of at most 65,535 bytes."""
    *first, last = contents
    return b"".join(len(content).to_bytes(LENGTH_BYTES, "little") + content for content in first) + last


def split(data: bytes, count: int) -> list[bytes]:
    """So many files of any bytes; what is missing is empty."""
    found: list[bytes] = []
    for _ in range(count - 1):
        length = int.from_bytes(data[:LENGTH_BYTES], "little")
        found.append(data[LENGTH_BYTES : LENGTH_BYTES + length])
        data = data[LENGTH_BYTES + length :]
    return [*found, data]
