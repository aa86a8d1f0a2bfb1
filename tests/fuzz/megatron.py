"""Arbitrary bytes as Megatron's index and its tokens: read within their bounds, or refused by a `DataError`."""

import struct

from epochal.data_providers.protocol import DatasetSpec
from epochal.state.errors import DataError
from tests.fuzz.several_files import joined, split
from tests.support.data.data_formats import discovered

INDEX, TOKENS = "a.idx", "a.bin"


def _index(lengths: list[int], size: int, code: int) -> bytes:
    starts = [size * sum(lengths[:number]) for number in range(len(lengths))]
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(lengths) + 1)
    places = struct.pack(f"<{len(lengths)}i{len(starts)}q", *lengths, *starts)
    return head + places + struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1))


SEEDS = [
    b"\0" + joined([_index([5, 3], 2, 8), bytes(16)]),
    b"\1" + joined([_index([2, 0, 4], 4, 4), bytes(24)]),
    b"\0" + joined([_index([], 2, 8), b""]),
]


def fuzz_one(data: bytes) -> None:
    """Give the bytes to the decoder; the first one chooses the size of tokens."""
    index, tokens = split(data[1:], 2)
    spec = DatasetSpec(4 if data[:1] == b"\1" else 2, 4)
    try:
        found = discovered({INDEX: index, TOKENS: tokens}, spec)
    except DataError:
        return
    for file in found:
        assert file.data_offset_bytes + file.token_count * spec.token_size_bytes <= len(tokens)
