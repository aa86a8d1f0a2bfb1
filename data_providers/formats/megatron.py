"""Megatron-LM's indexed dataset: `NAME.bin` holds the tokens of all documents in a row, `NAME.idx` their lengths.

The index (version 1, all little-endian): the magic `MMIDIDX\\0\\0`, u64 version, u8 code of the tokens' type, u64
number of sequences *n*, u64 number of document boundaries; then *n* int32 lengths in tokens, *n* int64 byte offsets,
and the boundaries as int64. As in Megatron's own GPT dataset, the tokens are one stream of documents.
Only the header and the last sequence are read, which is enough to check that index and tokens belong together.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from epochal.data_providers.formats.token_file import TokenFile
from epochal.data_providers.protocol import CorruptData, DatasetSpec
from epochal.data_providers.sources.byte_source import SourceFile

INDEX_SUFFIX = ".idx"
TOKENS_SUFFIX = ".bin"
MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")
HEADER_BYTES = _HEADER.size
_LENGTH_BYTES, _OFFSET_BYTES = 4, 8
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_TOKEN_TYPES = {2: (3, 8), 4: (4,)}
"""The codes of integers, by their size."""


@dataclass(frozen=True, slots=True)
class MegatronIndex:
    """An index's header, checked; `tokens` is the file that it describes."""

    index: SourceFile
    tokens: SourceFile
    sequence_count: int
    token_size_bytes: int

    @property
    def last_parts(self) -> list[tuple[int, int]]:
        """The byte ranges `[start, stop)` in the index of the last sequence's length and offset."""
        if not self.sequence_count:
            return []
        length_at = HEADER_BYTES + (self.sequence_count - 1) * _LENGTH_BYTES
        offset_at = HEADER_BYTES + self.sequence_count * _LENGTH_BYTES + (self.sequence_count - 1) * _OFFSET_BYTES
        return [(length_at, length_at + _LENGTH_BYTES), (offset_at, offset_at + _OFFSET_BYTES)]


def index_of(index: SourceFile, head: bytes, tokens: SourceFile, spec: DatasetSpec) -> MegatronIndex:
    """Return the parsed index of a token file, from its first `HEADER_BYTES`.

    Raises:
        CorruptData: it is cut off, of another version, or its tokens are not those of the description.
    """
    name = index.name
    if len(head) < HEADER_BYTES:
        raise CorruptData(f"{name} has {index.size_bytes} bytes; allowed: {HEADER_BYTES} or more", name=name)
    _, version, code, count, boundaries = _HEADER.unpack(head)
    if version != VERSION:
        raise CorruptData(f"{name} is a Megatron index of version {version}; allowed: {VERSION}", name=name)
    if code not in _TOKEN_TYPES[spec.token_size_bytes]:
        allowed = " or ".join(_TYPES[known] for known in _TOKEN_TYPES[spec.token_size_bytes])
        held = _TYPES.get(code, f"type {code}")
        raise CorruptData(f"{name} says that {tokens.name} holds {held}; allowed: {allowed}", name=name)
    expected_bytes = HEADER_BYTES + count * (_LENGTH_BYTES + _OFFSET_BYTES) + boundaries * _OFFSET_BYTES
    if index.size_bytes != expected_bytes:
        raise CorruptData(f"{name} has {index.size_bytes} bytes; its header says {expected_bytes}", name=name)
    return MegatronIndex(index, tokens, count, spec.token_size_bytes)


def megatron_file(index: MegatronIndex, last: Sequence[bytes]) -> TokenFile:
    """Return the token file, from the bytes at `index.last_parts`; `CorruptData` if its size is not the index's."""
    expected_bytes = 0
    if last:
        length, offset = int.from_bytes(last[0], "little", signed=True), int.from_bytes(last[1], "little", signed=True)
        expected_bytes = offset + length * index.token_size_bytes
    tokens = index.tokens
    if tokens.size_bytes != expected_bytes:
        raise CorruptData(
            f"{tokens.name} has {tokens.size_bytes} bytes; {index.index.name} says {expected_bytes}", name=tokens.name
        )
    count = tokens.size_bytes // index.token_size_bytes
    return TokenFile(tokens.name, tokens.size_bytes, count, 0, format="Megatron")
