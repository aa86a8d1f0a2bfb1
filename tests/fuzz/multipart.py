"""Arbitrary bytes as the multipart body of an answer for several ranges.

Nothing but `BadMultipart` may be raised, and nothing but what a part held may be kept.
"""

from collections.abc import Sequence

from epochal.data_providers.sources.http.filled_buffer import Filling
from epochal.data_providers.sources.http.multipart import BadMultipart, Parts, boundary_of

BOUNDARY = b"b"
SIZE_BYTES = 64
DELIMITER = b"\r\n--" + BOUNDARY
RANGES = ((2, 5), (9, 10), (20, 40))


def _part(start: int, stop: int) -> bytes:
    head = b"\r\nContent-Range: bytes %d-%d/%d\r\n\r\n" % (start, stop - 1, SIZE_BYTES)
    return DELIMITER + head + bytes(stop - start)


SEEDS = [b"".join(_part(start, stop) for start, stop in RANGES) + DELIMITER + b"--"]


def fill_from_parts(body: bytes, targets: Sequence[Filling], piece_bytes: int) -> None:
    """Fill the targets from a body that comes in pieces. Raises `BadMultipart` at its first mistake."""
    parts = Parts(BOUNDARY, targets, SIZE_BYTES)
    for at in range(0, len(body), piece_bytes):
        parts.feed(memoryview(body)[at : at + piece_bytes])
    parts.finish()


def fuzz_one(data: bytes) -> None:
    """Take the bytes for a body; check that only places of the ranges are written."""
    boundary_of(data[:128].decode("latin-1"))
    file = bytearray(b"\xff" * SIZE_BYTES)
    targets = [Filling(start, memoryview(file)[start:stop]) for start, stop in RANGES]
    try:
        fill_from_parts(data, targets, 1 + len(data) // 3)
    except BadMultipart:
        pass
    else:
        assert not any(target.missing for target in targets)
    wanted = {place for start, stop in RANGES for place in range(start, stop)}
    assert all(file[place] == 0xFF for place in range(SIZE_BYTES) if place not in wanted)
    assert all(target.filled in (0, len(target.into)) for target in targets)
    assert all(not target.filled or b"\r\n\r\n" + target.into + DELIMITER in data for target in targets)
