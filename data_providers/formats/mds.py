"""MosaicML Streaming's MDS: `index.json` names the shards and their columns; a shard is an offset table and samples.

A shard (little-endian): u32 number of samples *n*, *n* + 1 u32 offsets of the samples within the file, the column
description again, then the samples. A sample begins with a u32 size for each column of variable size; then the columns'
bytes follow in their order. The tokens are the column `tokens` or `input_ids`, of encoding `ndarray:uint16:SHAPE`,
`ndarray:uint32:SHAPE`, the same without a shape or signed, or `bytes` (tokens of the described size). Without a shape
in its encoding, an array of one dimension begins with the byte `4 + k` and its length in `2^k` bytes, the fewest that
hold it. All samples of a shard must have the same length, as tokenised text has, so that a sample's place is computed
from its number. An index also covers the folders below it: a merged dataset names `00001/shard.00000.mds`.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_providers.file_names import MDS_INDEX_NAME
from data_providers.formats.token_file import TokenFile
from data_providers.protocol import CorruptData, DatasetSpec, Rejected
from data_providers.sources.protocol import SourceFile

SHARD_SUFFIX = ".mds"
MAX_INDEX_BYTES = 64 * 1024**2
MAX_SHARD_SAMPLES = 2**24
VERSION = 2
COLUMNS = ("tokens", "input_ids")
MAX_SHAPE_CHARACTERS = 64
_SIZE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as the index describes it.

    Attributes:
        fixed_before_bytes: from a sample's beginning to its tokens, without their shape.
        fixed_other_bytes: of a sample, all but its tokens and their shape.
        sample_tokens: tokens of one sample; None if only the shard's offsets give them.
        has_shape: whether each sample has its own shape before its tokens.
    """

    file: SourceFile
    sample_count: int
    fixed_before_bytes: int
    fixed_other_bytes: int
    sample_tokens: int | None
    has_shape: bool

    @property
    def header_bytes(self) -> int:
        """Number of first bytes of the file that `mds_file` needs."""
        return min(self.file.size_bytes, _SIZE_BYTES * (self.sample_count + 2))


def outermost(indexes: Iterable[str]) -> list[str]:
    """Return the names of the indexes that are not below the folder of another one, sorted."""
    folders = {name.removesuffix(MDS_INDEX_NAME) for name in indexes}
    highest = (folder for folder in folders if not any(above in folders for above in _above(folder)))
    return sorted(folder + MDS_INDEX_NAME for folder in highest)


def _above(folder: str) -> Iterator[str]:
    while folder:
        folder = folder[: folder.rstrip("/").rfind("/") + 1]
        yield folder


def shards_of(name: str, text: bytes, files: Mapping[str, SourceFile], spec: DatasetSpec) -> list[Shard]:
    """Return the shards of an index.

    Args:
        name: of the index, within its source.
        text: its whole content.
        files: every file of the source, by name.

    Raises:
        CorruptData: it is not an MDS index, or names a shard that is missing or has another size.
        Rejected: the shards are compressed, or their columns are not supported.
    """
    try:
        index = json.loads(text)
        entries = index["shards"]
        version = index.get("version")
        if not isinstance(entries, list):
            raise CorruptData(f"{name} is not an MDS index: its shards are not a list", name=name)
        if version != VERSION:
            raise CorruptData(f"{name} is an MDS index of version {version!r}; allowed: {VERSION}", name=name)
        folder = name.removesuffix(MDS_INDEX_NAME)
        return [_shard(name, folder, entry, files, spec) for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptData(f"{name} is not an MDS index: {type(error).__name__} {error}", name=name) from error


def _shard(name: str, folder: str, entry: Any, files: Mapping[str, SourceFile], spec: DatasetSpec) -> Shard:
    if entry["format"] != "mds":
        raise Rejected(f"{name}: shards of format {entry['format']!r} are not supported; allowed: mds", name=name)
    if entry.get("compression") is not None or entry.get("zip_data") is not None:
        raise Rejected(f"{name}: compressed shards are not supported; write them with compression=None", name=name)
    shard_name, size_bytes = folder + entry["raw_data"]["basename"], entry["raw_data"]["bytes"]
    file = files.get(shard_name)
    if file is None:
        raise CorruptData(f"{name} names {shard_name}, which does not exist", name=name)
    if file.size_bytes != size_bytes:
        raise CorruptData(f"{shard_name} has {file.size_bytes} bytes; {name} says {size_bytes}", name=shard_name)
    count = entry["samples"]
    if type(count) is not int or not 0 <= count <= MAX_SHARD_SAMPLES:
        raise CorruptData(f"{name}: {shard_name} has {count!r} samples; allowed: 0 to {MAX_SHARD_SAMPLES}", name=name)
    columns = list(zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True))
    return _with_columns(name, file, count, columns, spec)


def _with_columns(
    name: str, file: SourceFile, count: int, columns: list[tuple[str, str, Any]], spec: DatasetSpec
) -> Shard:
    held = [column for column, _, _ in columns if column in COLUMNS]
    if len(held) != 1:
        allowed = " or ".join(COLUMNS)
        raise CorruptData(f"{name}: columns {[column for column, _, _ in columns]}; one must be {allowed}", name=name)
    position = next(number for number, (column, _, _) in enumerate(columns) if column in COLUMNS)
    encoding, size = columns[position][1:]
    others = [other for number, (_, _, other) in enumerate(columns) if number != position]
    if not all(type(other) is int and other >= 0 for other in others):
        raise Rejected(f"{name}: a column beside {held[0]} varies in size; write the tokens alone", name=name)
    tokens, has_shape = _sample_tokens(name, held[0], encoding, size, spec)
    sizes_bytes = _SIZE_BYTES * sum(column_size is None for _, _, column_size in columns)
    before = sizes_bytes + sum(others[:position])
    return Shard(file, count, before, sizes_bytes + sum(others), tokens, has_shape)


def _sample_tokens(name: str, column: str, encoding: str, size: Any, spec: DatasetSpec) -> tuple[int | None, bool]:
    """Return a sample's number of tokens, None if its encoding does not give it; and whether samples have a shape."""
    if encoding == "bytes" and size is None:
        return None, False
    kind, _, rest = encoding.partition(":")
    dtype, _, shape = rest.partition(":")
    bits = 8 * spec.token_size_bytes
    if kind != "ndarray" or dtype not in (f"uint{bits}", f"int{bits}") or len(shape) > MAX_SHAPE_CHARACTERS:
        allowed = f"ndarray:uint{bits}, ndarray:uint{bits}:LENGTH or bytes"
        raise Rejected(f"{name}: column {column} has encoding {encoding[:100]!r}; allowed: {allowed}", name=name)
    if not shape and size is None:
        return None, True
    extents = [int(extent) for extent in shape.split(",")]
    tokens = math.prod(extents)
    if size != tokens * spec.token_size_bytes or min(extents) < 1:
        raise CorruptData(f"{name}: column {column} of {encoding} has size {size!r}", name=name)
    return tokens, False


def mds_file(shard: Shard, header: bytes, spec: DatasetSpec) -> TokenFile:
    """Return a shard as a token file, from its first `header_bytes`.

    Raises:
        CorruptData: the offset table contradicts the index, or a sample is not a whole number of sequences.
    """
    name = shard.file.name
    numbers = np.frombuffer(header[: len(header) // _SIZE_BYTES * _SIZE_BYTES], dtype="<u4").astype(np.int64)
    if len(numbers) < shard.sample_count + 2 or numbers[0] != shard.sample_count:
        raise CorruptData(f"{name} does not begin with the offsets of {shard.sample_count} samples", name=name)
    if not shard.sample_count:
        return TokenFile(name, shard.file.size_bytes, 0, 0, format="MDS")
    offsets = numbers[1 : shard.sample_count + 2]
    lengths = np.diff(offsets)
    if offsets[0] < shard.header_bytes or offsets[-1] != shard.file.size_bytes or (lengths != lengths[0]).any():
        raise CorruptData(f"{name} does not hold samples of one length up to its end; not supported", name=name)
    stride = int(lengths[0])
    column_bytes = stride - shard.fixed_other_bytes
    shape = _shape_for(column_bytes, spec) if shard.has_shape else b""
    tokens, rest = divmod(column_bytes - len(shape), spec.token_size_bytes)
    unexplained = rest or tokens <= 0 or shard.sample_tokens not in (None, tokens)
    if unexplained or (shard.has_shape and not shape):
        raise CorruptData(f"{name} has samples of {stride} bytes, which its columns do not explain", name=name)
    if tokens % spec.sequence_length:
        allowed = f"a multiple of the sequence length {spec.sequence_length}"
        raise CorruptData(f"{name} has samples of {tokens} tokens; allowed: {allowed}", name=name)
    begin = int(offsets[0]) + shard.fixed_before_bytes + len(shape)
    count = shard.sample_count * tokens
    return TokenFile(name, shard.file.size_bytes, count, begin, stride, tokens // spec.sequence_length, "MDS")


def shape_before(layout: TokenFile, spec: DatasetSpec) -> bytes:
    """Return the bytes that must precede the first sample's tokens in a shard that `has_shape`.

    The other samples need no check: no other array of one dimension is as long in bytes.
    """
    return _shape_of(layout.samples_per_record * spec.sequence_length)


def _shape_for(column_bytes: int, spec: DatasetSpec) -> bytes:
    """Return the shape of tokens that have this size together with it; empty if there is none."""
    for width_bytes in (1, 2, 4):
        tokens = (column_bytes - 1 - width_bytes) // spec.token_size_bytes
        if tokens > 0 and len(_shape_of(tokens)) + tokens * spec.token_size_bytes == column_bytes:
            return _shape_of(tokens)
    return b""


def _shape_of(tokens: int) -> bytes:
    exponent = 0 if tokens < 2**8 else 1 if tokens < 2**16 else 2
    return bytes([1 << 2 | exponent]) + tokens.to_bytes(2**exponent, "little")
