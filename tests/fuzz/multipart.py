"""Arbitrary bytes as the multipart body of an answer for several ranges.

Nothing but `BadMultipart` may be raised, and nothing but what a part held may be kept.
"""

from epochal.data_providers.sources.http.filled_buffer import Filling
from epochal.data_providers.sources.http.multipart import BadMultipart, MultipartReader, boundary_of

BOUNDARY = b"b"
SIZE_BYTES = 64
DELIMITER = b"\r\n--" + BOUNDARY
RANGES = ((2, 5), (9, 10), (20, 40))
MAX_PIECE_BYTES = 16


def fuzz_one(data: bytes) -> None:
    """Read the bytes in pieces whose size is the first byte's; check that only places of the ranges are written."""
    boundary_of(data[:128].decode("latin-1"))
    file = bytearray(b"\xff" * SIZE_BYTES)
    targets = [Filling(start, memoryview(file)[start:stop]) for start, stop in RANGES]
    reader = MultipartReader(BOUNDARY, targets, SIZE_BYTES)
    step = data[0] % MAX_PIECE_BYTES + 1 if data else 1
    body, at = data[1:], 0
    try:
        while at < len(body):
            piece = body[at : at + step]
            reader.feed(memoryview(piece))
            at += len(piece)
        if data and data[0] & 64:
            reader.break_off()
        else:
            reader.finish()
    except BadMultipart:
        pass
    else:
        assert not any(target.missing for target in targets) or data[0] & 64
    wanted = {place for start, stop in RANGES for place in range(start, stop)}
    assert all(file[place] == 0xFF for place in range(SIZE_BYTES) if place not in wanted)
    begun = [target.filled > 0 for target in targets]
    assert begun == sorted(begun, reverse=True)
    assert sum(target.filled for target in targets) <= len(body)
    assert all(_is_of_a_part(bytes(target.into[: target.filled]), body) for target in targets)


def _is_of_a_part(kept: bytes, body: bytes) -> bool:
    """Whether bytes stand after a head, and before a delimiter or the last bytes of a body that broke off."""
    at = body.rfind(b"\r\n\r\n" + kept)
    return not kept or b"\r\n\r\n" + kept + DELIMITER in body or (at >= 0 and DELIMITER not in body[at + 4 :])
